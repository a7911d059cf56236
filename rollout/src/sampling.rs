//! How each agent's completions are sampled and ended: `--temperature 0.7 --temperature planner=1`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::Sampling;
use serde_json::value::RawValue;

use crate::arguments::Arguments;
use crate::by_agent::{AgentFlag, ByAgent, Widths};
use crate::engine::SamplingParams;
use crate::prompts::raw_json;

/// Completion limit without `--max-tokens`.
const MAX_TOKENS: u32 = 256;

/// How one agent's completions are sampled and ended.
#[derive(Clone, Debug)]
pub struct AgentSampling {
    /// How tokens are chosen.
    pub params: SamplingParams,
    /// The longest completion in tokens, stop token included.
    pub max_tokens: u32,
    /// Texts of which each ends a completion.
    pub stop: Vec<String>,
    /// Field `sampling` of its samples.
    pub json: Box<RawValue>,
}

const fn number(name: &'static str, value: &'static str, hint: &'static str) -> AgentFlag {
    AgentFlag { name, value, range: "a number", hint }
}

const TEMPERATURE: AgentFlag = number(
    "--temperature",
    "T",
    "--temperature 0.7 --temperature planner=1: logits are divided by 1 for the planner, by 0.7 for all others",
);
const TOP_P: AgentFlag = number("--top-p", "P", "--top-p 0.95 for all agents, --top-p planner=0.9 for one");
const TOP_K: AgentFlag = AgentFlag {
    range: "a whole number",
    ..number(
        "--top-k",
        "N",
        "--top-k 20 for all agents, --top-k planner=0 for one that samples from all tokens",
    )
};
const MIN_P: AgentFlag = number("--min-p", "P", "--min-p 0.05 for all agents, --min-p planner=0 for one");
const TOKENS: AgentFlag = AgentFlag {
    range: "a whole number from 1",
    ..number(
        "--max-tokens",
        "N",
        "--max-tokens 64 --max-tokens planner=8: 8 tokens of the planner, 64 of all others",
    )
};

/// The values of the sampling flags.
struct Values {
    temperature: ByAgent<f32>,
    top_p: ByAgent<f32>,
    top_k: ByAgent<u32>,
    min_p: ByAgent<f32>,
    max_tokens: ByAgent<u32>,
    stop: ByAgent<Vec<String>>,
}

impl Values {
    fn read(flags: &Arguments) -> Result<Values> {
        let real = |flag, values: &[String], default| ByAgent::parse(flag, values, default, parsed::<f32>);
        let limit = |text: &str| parsed(text).filter(|&tokens: &u32| tokens > 0);
        Ok(Values {
            temperature: real(&TEMPERATURE, &flags.temperature, 1.0)?,
            top_p: real(&TOP_P, &flags.top_p, 1.0)?,
            top_k: ByAgent::parse(&TOP_K, &flags.top_k, 0, parsed)?,
            min_p: real(&MIN_P, &flags.min_p, 0.0)?,
            max_tokens: ByAgent::parse(&TOKENS, &flags.max_tokens, MAX_TOKENS, limit)?,
            stop: stop_strings(&flags.stop)?,
        })
    }

    /// Refuses flags that greedy decoding ignores; their values that change nothing are allowed.
    fn check_greedy(params: &SamplingParams) -> Result<()> {
        let ignored = [
            ("--top-p", params.top_p != 1.0),
            ("--top-k", params.top_k != 0),
            ("--min-p", params.min_p != 0.0),
        ];
        match ignored.iter().find(|(_, is_ignored)| params.greedy && *is_ignored) {
            None => Ok(()),
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} has no effect at --temperature 0, which takes the most likely token every time"
            ))
            .hint(format!("leave out {flag}, or choose another temperature"))),
        }
    }

    /// The agents that a flag names.
    fn roles(&self) -> BTreeSet<&String> {
        let reals = [&self.temperature, &self.top_p, &self.min_p].into_iter().flat_map(|by| by.own.keys());
        let wholes = [&self.top_k, &self.max_tokens].into_iter().flat_map(|by| by.own.keys());
        reals.chain(wholes).chain(self.stop.own.keys()).collect()
    }

    /// What an agent has that is named by `of`, or with `None` each agent that no flag names.
    fn of(&self, agent: Option<&str>, seed: u64) -> Result<AgentSampling> {
        fn pick<'a, T>(by: &'a ByAgent<T>, agent: Option<&str>) -> &'a T {
            agent.map_or(&by.common, |agent| by.of(agent))
        }
        let temperature = *pick(&self.temperature, agent);
        let greedy = temperature == 0.0;
        let params = SamplingParams {
            temperature: if greedy { 1.0 } else { temperature }, // of the log-probabilities
            top_p: *pick(&self.top_p, agent),
            top_k: *pick(&self.top_k, agent),
            min_p: *pick(&self.min_p, agent),
            greedy,
        };
        params.check()?;
        Values::check_greedy(&params)?;
        let (stop, max_tokens) = (pick(&self.stop, agent).clone(), *pick(&self.max_tokens, agent));
        let SamplingParams { temperature, top_p, top_k, min_p, greedy } = params;
        let json = raw_json(&Sampling {
            temperature,
            top_p,
            top_k,
            greedy,
            seed,
            // Fields that were asked for: a stream without these flags is as it always was.
            min_p: Some(min_p).filter(|&min_p| min_p > 0.0),
            stop: Some(stop.clone()).filter(|stop| !stop.is_empty()),
            max_tokens: Some(max_tokens).filter(|_| !self.max_tokens.own.is_empty()),
        })?;
        Ok(AgentSampling { params, max_tokens, stop, json })
    }
}

fn parsed<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// Refuses several candidates of a greedy agent, which would all be the same.
///
/// # Errors
/// Usage, with the agent.
pub fn check_candidates(sampling: &ByAgent<Arc<AgentSampling>>, widths: &Widths) -> Result<()> {
    let agents = sampling.own.keys().chain(widths.own.keys()).map(|agent| Some(agent.as_str())).chain([None]);
    for agent in agents {
        let (params, width) = match agent {
            Some(agent) => (sampling.of(agent).params, *widths.of(agent)),
            None => (sampling.common.params, widths.common),
        };
        if params.greedy && width > 1 {
            let equals = agent.map_or(String::new(), |agent| format!("{agent}="));
            return Err(Failure::usage(format!(
                "--branches {equals}{width} has no effect at temperature 0, where the candidates are all the same"
            ))
            .hint(format!("--branches {equals}1, or choose another temperature")));
        }
    }
    Ok(())
}

/// The values of `--stop`, each `TEXT` or `AGENT=TEXT`. The texts of a role replace those for all agents.
fn stop_strings(values: &[String]) -> Result<ByAgent<Vec<String>>> {
    let (mut common, mut own) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    for value in values {
        let (role, text) = value.split_once('=').unwrap_or(("", value));
        if text.is_empty() {
            return Err(Failure::usage(format!("--stop {value}: not TEXT or AGENT=TEXT, with a text that is not empty"))
                .hint("--stop '</answer>' for all agents, --stop 'planner=</plan>' for one, --stop '=a=b' for a text with = in it"));
        }
        let texts = if role.is_empty() { &mut common } else { own.entry(role.to_owned()).or_default() };
        if texts.iter().any(|known| known == text) {
            return Err(Failure::usage(format!("--stop {value} is given twice")));
        }
        texts.push(text.to_owned());
    }
    Ok(ByAgent { common, own })
}

/// How each agent's completions are sampled.
///
/// # Errors
/// Usage: a value out of range, two for one agent, or one that greedy decoding would ignore.
pub fn by_agent(flags: &Arguments) -> Result<ByAgent<Arc<AgentSampling>>> {
    let values = Values::read(flags)?;
    let of = |agent: Option<&str>| values.of(agent, flags.seed).map(Arc::new);
    let own = values.roles().into_iter().map(|role| Ok((role.clone(), of(Some(role))?)));
    Ok(ByAgent { common: of(None)?, own: own.collect::<Result<_>>()? })
}

/// The first flag that names an agent for which `is_unknown` is true, with that agent.
pub fn unknown_agent(flags: &Arguments, is_unknown: impl Fn(&str) -> bool) -> Option<(&'static str, String)> {
    let all = [
        ("--branches", &flags.branches),
        ("--temperature", &flags.temperature),
        ("--top-p", &flags.top_p),
        ("--top-k", &flags.top_k),
        ("--min-p", &flags.min_p),
        ("--max-tokens", &flags.max_tokens),
        ("--stop", &flags.stop),
    ];
    all.into_iter().find_map(|(flag, values)| {
        let mut roles = values.iter().filter_map(|value| value.split_once('=')).map(|(role, _)| role);
        let role = roles.find(|role| !role.is_empty() && is_unknown(role))?;
        Some((flag, role.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::CommandLine;
    use clap::Parser;

    fn sampling(flags: &[&str]) -> Result<ByAgent<Arc<AgentSampling>>> {
        by_agent(&CommandLine::parse_from(["rollout", "--policy", "p"].iter().chain(flags)).arguments)
    }

    #[test]
    fn an_agent_has_its_own_values_or_the_common_ones() {
        let flags = [
            "--temperature",
            "0.7",
            "--temperature",
            "planner=1.5",
            "--max-tokens",
            "planner=8",
            "--top-k=3",
        ];
        let by_agent = sampling(&flags).expect("usable flags");
        let (planner, tool) = (by_agent.of("planner"), by_agent.of("tool"));
        assert_eq!((planner.params.temperature, planner.params.top_k, planner.max_tokens), (1.5, 3, 8));
        assert_eq!((tool.params.temperature, tool.params.top_k, tool.max_tokens), (0.7, 3, 256));
    }

    #[test]
    fn only_what_was_asked_for_is_recorded() {
        let json =
            |flags: &[&str], agent| sampling(flags).expect("usable flags").of(agent).json.get().to_owned();
        let plain = r#"{"temperature":1.0,"top_p":1.0,"top_k":0,"greedy":false,"seed":1"#;
        assert_eq!(json(&[], "a"), format!("{plain}}}"));
        assert_eq!(json(&["--max-tokens", "8", "--top-p", "1", "--min-p", "0"], "a"), format!("{plain}}}"));
        let flags = ["--min-p", "0.05", "--stop", "</a>", "--stop", "b=\n", "--max-tokens", "b=8"];
        assert_eq!(json(&flags, "a"), format!(r#"{plain},"min_p":0.05,"stop":["</a>"],"max_tokens":256}}"#));
        assert_eq!(json(&flags, "b"), format!(r#"{plain},"min_p":0.05,"stop":["\n"],"max_tokens":8}}"#));
    }

    #[test]
    fn a_stop_string_with_an_equals_sign_is_said_so() {
        let by_agent = sampling(&["--stop", "=a=b", "--stop", "planner=x=y"]).expect("usable flags");
        assert_eq!(
            (&by_agent.of("tool").stop[..], &by_agent.of("planner").stop[..]),
            (&["a=b".to_owned()][..], &["x=y".to_owned()][..])
        );
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        for (flags, said) in [
            (&["--temperature", "planner=-1"][..], "--temperature -1: must be 0 or above"),
            (
                &["--temperature", "planner=warm"],
                "--temperature planner=warm: not T or AGENT=T with T a number",
            ),
            (&["--temperature", "1", "--temperature", "2"], "--temperature gives two values for all agents"),
            (&["--top-p", "a=1.5"], "--top-p 1.5: must be above 0 and at most 1"),
            (&["--top-k", "a=-1"], "--top-k a=-1: not N or AGENT=N with N a whole number"),
            (&["--min-p", "1.5"], "--min-p 1.5: must be from 0 to 1"),
            (&["--max-tokens", "0"], "--max-tokens 0: not N or AGENT=N with N a whole number from 1"),
            (&["--stop", ""], "--stop : not TEXT or AGENT=TEXT, with a text that is not empty"),
            (&["--stop", "a=x", "--stop", "a=x"], "--stop a=x is given twice"),
            (
                &["--temperature", "a=0", "--min-p", "0.1"],
                "--min-p has no effect at --temperature 0, which takes the most likely token every time",
            ),
        ] {
            let failure = sampling(flags).expect_err("no sampling");
            assert_eq!((failure.code, failure.message.as_str()), (2, said), "{flags:?}");
        }
        let greedy = sampling(&["--temperature", "planner=0", "--stop", "x"]).expect("usable flags");
        let params = |agent: &str| (greedy.of(agent).params.greedy, greedy.of(agent).params.temperature);
        assert_eq!((params("planner"), params("tool")), ((true, 1.0), (false, 1.0)));
    }
}
