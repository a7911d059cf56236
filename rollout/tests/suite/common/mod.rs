//! An environment and a policy of a few lines each, to test trees, order and errors without a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Parser;
use envs::{Environment, Outcome, State, Workflow};
use record::failure::{Failure, Result};
use record::philox::Stream;
use record::read::Reader;
use record::sample::{Message, Rewards};
use record::write::Writer;
use rollout::arguments::CommandLine;
use rollout::episode::group::Candidate;
use rollout::generator::{Generated, Generator, GroupRequest};
use rollout::lines::PolicyLabel;
use rollout::opponents::Opponents;
use rollout::prompts::{Prompt, PromptCache};
use rollout::settings::Settings;
use rollout::stage::{self, Run, Totals};
use rollout::task_run::RunContext;
use serde_json::{Value, json};
use troupe_tests::program::lines;

pub fn sequential() -> Arc<Workflow> {
    Workflow::sequential("sequential", &["asker", "doer"])
}

pub fn parallel() -> Arc<Workflow> {
    Workflow::parallel("parallel", &["asker", "doer"])
}

/// Two askers in parallel, then a doer.
pub fn staged() -> Arc<Workflow> {
    let stages = vec![vec!["asker-1".to_owned(), "asker-2".to_owned()], vec!["doer".to_owned()]];
    Workflow::staged("staged", stages).expect("agents with names of their own")
}

/// How a [`Talk`] rewards joint actions.
#[derive(Clone, Copy, PartialEq)]
pub enum Joint {
    /// Like actions one after another.
    InOrder,
    /// Only the team is rewarded, by the product of the digits; nothing ends it, and all prompts of an agent
    /// are equal.
    Shared,
    /// `Shared`, plus a local reward for each agent's digit.
    Own,
    /// It is not: the agents are scored one by one.
    Never,
}

/// A state: the actions so far. An action is a digit: the reward is a tenth of it, a doer's 9 solves the task, `end` ends it
/// unsolved, and `fails_on` makes the environment itself fail.
#[derive(Clone)]
pub struct Talk {
    pub workflow: Arc<Workflow>,
    pub actions: Vec<(String, String)>,
    pub fails_on: Option<String>,
    /// True if all agents are asked the same.
    pub anonymous: bool,
    pub joint: Joint,
    /// True if the others lose what an agent earns.
    pub zero_sum: bool,
    /// Whether an agent acts after what was said so far.
    pub acts: fn(&[(String, String)], &str) -> bool,
}

impl Talk {
    pub fn new(workflow: Arc<Workflow>) -> Talk {
        Talk {
            workflow,
            actions: Vec::new(),
            fails_on: None,
            anonymous: false,
            joint: Joint::InOrder,
            zero_sum: false,
            acts: |_, _| true,
        }
    }

    fn is_shared(&self) -> bool {
        [Joint::Shared, Joint::Own].contains(&self.joint)
    }
}

impl State for Talk {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        3
    }

    fn acts(&self, agent: &str) -> bool {
        (self.acts)(&self.actions, agent)
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let actions: Vec<String> = self.actions.iter().map(|(who, what)| format!("{who}:{what}")).collect();
        let agent = if self.anonymous { "" } else { agent };
        let actions = if self.is_shared() { Vec::new() } else { actions };
        vec![Message { role: "user".to_owned(), content: format!("{agent}? {}", actions.join(" ")) }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        if self.fails_on.as_deref() == Some(text) {
            return Err(Failure::work(format!("{agent} said {text}")));
        }
        self.actions.push((agent.to_owned(), text.to_owned()));
        let digit: f64 = text.parse().unwrap_or(0.0);
        let success = agent == "doer" && text == "9";
        let part = |name: &String| if name == agent { digit / 10.0 } else { -digit / 10.0 };
        let locals = self.workflow.agents().iter().map(|name| (name.clone(), part(name)));
        Ok(Outcome {
            rewards: Rewards { team: f64::from(u8::from(success)), local: digit / 10.0 },
            locals: locals.filter(|_| self.zero_sum).collect(),
            components: BTreeMap::from([("digit".to_owned(), digit)]),
            terminated: success || text == "end",
            success,
            info: self.zero_sum.then(|| json!({"said": text}).to_string()),
        })
    }

    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        if !self.is_shared() {
            return envs::apply_in_order(self, actions);
        }
        let parts: Vec<(&str, Outcome)> = actions
            .iter()
            .map(|(agent, text)| Ok((*agent, self.apply(agent, text)?)))
            .collect::<Result<_>>()?;
        let team = parts.iter().map(|(_, part)| part.rewards.local).product();
        let together = Outcome::together(team, &parts);
        let locals = if self.joint == Joint::Own { together.locals } else { BTreeMap::new() };
        Ok(Outcome { locals, rewards: Rewards { team, local: 0.0 }, ..together })
    }

    fn scores_together(&self) -> bool {
        self.joint != Joint::Never
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        json!(self.actions)
    }
}

/// Makes [`Talk`]s; a spec's `fails_on` is theirs, and a spec `null` is refused.
pub struct Talks(pub Arc<Workflow>);

impl Environment for Talks {
    fn name(&self) -> &str {
        "talk"
    }

    fn workflow(&self, _name: &str, _spec: &Value) -> Result<Arc<Workflow>> {
        Ok(Arc::clone(&self.0))
    }

    fn reset(&self, spec: &Value, _workflow: &str) -> Result<Box<dyn State>> {
        if spec.is_null() {
            return Err(Failure::data("nothing to play"));
        }
        let fails_on = spec["fails_on"].as_str().map(str::to_owned);
        let anonymous = spec["anonymous"] == true;
        let joint = match spec["joint"].as_str() {
            Some("shared") => Joint::Shared,
            Some("own") => Joint::Own,
            Some("never") => Joint::Never,
            _ => Joint::InOrder,
        };
        let zero_sum = spec["zero_sum"] == true;
        Ok(Box::new(Talk { fails_on, anonymous, joint, zero_sum, ..Talk::new(Arc::clone(&self.0)) }))
    }
}

/// Generates a random digit after a random number of runs; bytes are its tokens. The newest group comes first, so that
/// nothing finishes in the order of its submission.
#[derive(Default)]
pub struct Dice {
    prompts: PromptCache,
    requests: Vec<(u64, Vec<Stream>, u32)>,
}

impl Generator for Dice {
    fn submit(&mut self, request: GroupRequest<'_>) -> Result<Arc<Prompt>> {
        if request.sampling.max_tokens > 4096 {
            return Err(Failure::data("no room"));
        }
        let runs = request.streams.iter().map(|stream| stream.block(1)[0] % 5).max().unwrap_or(0);
        self.requests.push((request.id, request.streams, runs));
        self.prompts.get(request.messages, request.tools, || {
            let bytes = request.messages.iter().flat_map(|message| message.content.bytes());
            Ok((bytes.map(u32::from).collect(), false))
        })
    }

    fn advance(&mut self, _wait: bool) -> Result<Vec<Generated>> {
        self.requests.iter_mut().for_each(|(.., runs)| *runs = runs.wrapping_sub(1));
        let (done, going): (Vec<_>, Vec<_>) = self.requests.drain(..).partition(|(.., runs)| *runs > 5);
        self.requests = going;
        Ok(done
            .into_iter()
            .rev()
            .map(|(id, streams, _)| (id, Ok(streams.iter().map(say).collect())))
            .collect())
    }

    fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }
}

fn say(stream: &Stream) -> Candidate {
    let digit = b'0' + (stream.uniform(0) * 10.0) as u8;
    Candidate {
        text: char::from(digit).to_string(),
        ids: vec![u32::from(digit)],
        logprobs: vec![-stream.uniform(2)],
        stopped: true,
        ..Candidate::default()
    }
}

pub fn settings(flags: &[&str]) -> Settings {
    let fixed = ["rollout", "--policy", "somewhere/fake", "--quiet"];
    CommandLine::parse_from(fixed.iter().chain(flags)).arguments.resolve().expect("usable flags")
}

/// Task lines `t0`, `t1`, … with these specs.
pub fn tasks(specs: &[Value]) -> String {
    let line = |(index, spec)| {
        json!({"type": "task", "v": 1, "env": "talk", "task": format!("t{index}"), "spec": spec}).to_string()
            + "\n"
    };
    specs.iter().enumerate().map(line).collect()
}

/// Runs the stage on `input` with `limit` tasks in progress on each thread; returns output and outcome.
pub fn play(
    settings: Settings,
    workflow: Arc<Workflow>,
    limit: usize,
    input: &str,
) -> (String, Totals, Result<()>) {
    let count = (settings.flags.opponents.0 as usize).max(1);
    let label = |version: usize| PolicyLabel {
        name: "fake".into(),
        version: format!("{}:00000000", count - 1 - version).into(),
        served: false,
    };
    let labels = (0..count).map(label).collect();
    let opponents = match settings.flags.opponents.0 {
        0 => Opponents::default(),
        _ => Opponents { versions: vec![(0..count).collect()] },
    };
    let external: Option<Box<dyn Environment>> = Some(Box::new(Talks(workflow)));
    let mut reader = Reader::new("tasks", std::io::Cursor::new(input.to_owned()));
    let run = Run {
        context: Arc::new(RunContext { settings: Arc::new(settings), external, labels, opponents }),
        generators: Box::new(move || {
            Ok((0..count).map(|_| Box::new(Dice::default()) as Box<dyn Generator>).collect())
        }),
        lines: std::iter::from_fn(move || reader.next().transpose()),
        tasks_per_thread: limit,
    };
    let mut writer = Writer::new(Vec::new());
    let (totals, outcome) = stage::play(run, &mut writer);
    let bytes = writer.into_inner().expect("a writable buffer");
    (String::from_utf8(bytes).expect("UTF-8"), totals, outcome)
}

/// The lines of one type.
pub fn of_type(output: &str, kind: &str) -> Vec<Value> {
    lines(output).into_iter().filter(|line| line["type"] == kind).collect()
}

/// The samples, in runs of the same episode, turn and agent.
pub fn groups(output: &str) -> Vec<Vec<Value>> {
    let mut groups: Vec<Vec<Value>> = Vec::new();
    for sample in of_type(output, "sample") {
        let key =
            |sample: &Value| (sample["episode"].clone(), sample["turn"].clone(), sample["agent"].clone());
        match groups.last_mut() {
            Some(group) if key(&group[0]) == key(&sample) => group.push(sample),
            _ => groups.push(vec![sample]),
        }
    }
    groups
}
