//! The methods of `--method`. Each is only a name for a set of stage flags; docs/stream-format.md has the same table.
//!
//! Adding a method means adding one entry here. `--flags STAGE=…` overrides its flags.

use std::path::Path;

use record::failure::{Failure, Result};

use crate::disk;
use crate::settings::Settings;

/// Stage, flag and value.
type Flag = (&'static str, &'static str, &'static str);

/// Placeholder for the run directory in a flag's value.
const RUN: &str = "RUN";

/// A named set of flags.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    pub name: &'static str,
    /// Source and a one-line description.
    pub about: &'static str,
    /// Its flags, in the order of the stages.
    pub flags: &'static [&'static [Flag]],
    /// Optimizer steps per training step; 0 uses `--minibatches`.
    pub minibatches: u64,
    /// A flag that the user must give: stage, flag, example value.
    pub asks: Option<(&'static str, &'static str, &'static str)>,
}

const PARALLEL: &[Flag] = &[("rollout", "--sampling", "parallel")];
const BY_EPISODE: &[Flag] = &[("group", "--by", "episode")];
const BY_AGENT: &[Flag] = &[("group", "--by", "agent")];
const EPISODE: &[Flag] = &[("advantage", "--credit", "episode")];
const CALLS: &[Flag] = &[("advantage", "--count", "calls")];
const ALIGNED: &[Flag] = &[("rollout", "--joint", "aligned")];
const EXPANDED: &[Flag] = &[("rollout", "--expand", "all")];
const TREE: &[Flag] = &[("advantage", "--credit", "tree")];
const MEAN: &[Flag] = &[("advantage", "--estimator", "dr-grpo")];
/// arXiv 2508.04652: the loss sums over tokens. There is one optimizer step per rollout, so all ratios are 1.
const SUM: &[Flag] = &[("update", "--aggregate", "constant"), ("update", "--max-tokens", "1")];

const fn method(name: &'static str, about: &'static str, flags: &'static [&'static [Flag]]) -> Method {
    Method { name, about, flags, minibatches: 0, asks: None }
}

pub const METHODS: &[Method] = &[
    method("at-grpo", "arXiv 2510.11062: the candidates of one agent at one turn, by their own reward", &[]),
    method(
        "trajectory",
        "arXiv 2402.03300: whole episodes of a task, one advantage for all samples of an episode",
        &[PARALLEL, BY_EPISODE, EPISODE],
    ),
    Method {
        minibatches: 1,
        ..method(
            "magrpo",
            "arXiv 2508.04652: parallel episodes by their return from each turn on, agents who act at once together",
            &[ALIGNED, PARALLEL, TREE, MEAN, SUM],
        )
    },
    Method {
        minibatches: 1,
        ..method(
            "magrpo-cross",
            "arXiv 2508.04652: every combination of candidates of agents who act at once, each turn by itself",
            &[&[("rollout", "--joint", "cross")], MEAN, SUM],
        )
    },
    method(
        "c3",
        "arXiv 2603.06859: siblings by the mean of their leaves, less the mean of the others (reward_only)",
        &[ALIGNED, EXPANDED, TREE, &[("advantage", "--estimator", "rloo")]],
    ),
    method(
        "c3-zscore",
        "what the repository of arXiv 2603.06859 computes: the same, divided by the siblings' deviation",
        &[
            ALIGNED,
            EXPANDED,
            TREE,
            &[
                ("advantage", "--estimator", "grpo"),
                ("advantage", "--std", "population"),
                ("advantage", "--epsilon", "0"),
            ],
        ],
    ),
    method(
        "drmas",
        "arXiv 2602.08847: whole episodes, normalized for each agent over its calls",
        &[PARALLEL, BY_AGENT, EPISODE, CALLS],
    ),
    method(
        "gigpo",
        "arXiv 2505.10978: whole episodes, and returns among equal prompts",
        &[
            PARALLEL,
            BY_AGENT,
            &[
                ("group", "--anchor", "prompt"),
                ("advantage", "--credit", "gigpo"),
                ("advantage", "--gamma", "0.95"),
            ],
        ],
    ),
    Method {
        asks: Some(("advantage", "--components", "success=1,format=0.5")),
        ..method(
            "gdpo",
            "arXiv 2601.05242: each component of the reward normalized by itself, then the sum over the step",
            &[&[
                ("advantage", "--estimator", "gdpo"),
                ("advantage", "--epsilon", "1e-4"),
                ("advantage", "--whiten", "samples"),
            ]],
        )
    },
    method(
        "rae",
        "arXiv 2506.24119: an agent's own episode, less a moving average of its rewards in this environment",
        &[
            PARALLEL,
            BY_AGENT,
            &[
                ("advantage", "--estimator", "rae"),
                ("advantage", "--credit", "episode-own"),
                ("advantage", "--baselines", "RUN/baselines"),
            ],
        ],
    ),
    method(
        "matpo",
        "arXiv 2510.04678: whole episodes; workers get the advantage of their planner, so trajectory",
        &[PARALLEL, BY_EPISODE, EPISODE],
    ),
    method(
        "flow-grpo",
        "arXiv 2510.05592: the final reward at every turn of one trained agent (--train AGENT), over all its calls",
        &[PARALLEL, BY_AGENT, EPISODE, CALLS],
    ),
    method(
        "hierarchical",
        "prime-rl: solvers among attempts at one problem, proposers among each other, the mean alone",
        &[ALIGNED, EXPANDED, TREE, MEAN],
    ),
];

pub const NAMES: [&str; METHODS.len()] = {
    let (mut names, mut index) = ([""; METHODS.len()], 0);
    while index < names.len() {
        names[index] = METHODS[index].name;
        index += 1;
    }
    names
};

pub fn find(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.name == name)
}

impl Method {
    fn all(&self) -> impl Iterator<Item = &'static Flag> {
        self.flags.iter().flat_map(|flags| flags.iter())
    }

    /// The flags for `stage`, except those for which `has` returns true, as words.
    fn words(&self, stage: &str, run: &str, has: impl Fn(&str) -> bool) -> Vec<String> {
        let asked = self.all().filter(|(of, flag, _)| *of == stage && !has(flag));
        asked.flat_map(|(_, flag, value)| [(*flag).to_owned(), value.replace(RUN, run)]).collect()
    }
}

/// The flags that the run's method adds to a stage, except those that `--flags` sets.
pub fn of_stage(settings: &Settings, stage: &str, run: &Path) -> Vec<String> {
    let has = |flag: &str| settings.has_flag(stage, flag);
    let run = run.display().to_string();
    find(settings.text("method")).map_or(Vec::new(), |method| method.words(stage, &run, has))
}

/// Creates the state that a method keeps between steps: baselines, initially 0.
pub fn begin(settings: &Settings, run: &Path) -> Result<()> {
    let Some((_, _, folder)) = find(settings.text("method"))
        .and_then(|method| method.all().find(|(_, flag, _)| *flag == "--baselines"))
    else {
        return Ok(());
    };
    let folder = run.join(folder.trim_start_matches(RUN).trim_start_matches('/'));
    disk::make(&folder)?;
    disk::replace(&folder.join("000000.json"), "{}\n")?;
    disk::sync(&folder)
}

/// Applies a method's effects on settings that are not stage flags.
///
/// # Errors
/// Usage: the method needs a flag that only the user can choose.
pub fn settle(settings: &mut Settings) -> Result<()> {
    let Some(method) = find(settings.text("method")) else { return Ok(()) };
    if let Some((stage, flag, value)) = method.asks
        && !settings.has_flag(stage, flag)
    {
        return Err(Failure::usage(format!(
            "--method {} needs {flag}, which depends on the environment",
            method.name
        ))
        .hint(format!("--flags {stage}='{flag} {value}'")));
    }
    if method.minibatches > 0 {
        settings.set_text("minibatches", method.minibatches.to_string());
    }
    Ok(())
}

/// The pipe of the run's method, one stage a line.
pub fn explain(settings: &Settings) -> String {
    let Some(method) = find(settings.text("method")) else { return String::new() };
    let mut text = format!("# {}: {}\n", method.name, method.about);
    for stage in ["rollout", "group", "advantage", "update"] {
        let given = settings.flags.get(stage).map_or("", String::as_str).split_whitespace();
        let mut words = vec![stage.to_owned()];
        words.extend(method.words(stage, RUN, |flag| settings.has_flag(stage, flag)));
        words.extend(given.map(str::to_owned));
        if stage == "update" && method.minibatches > 0 {
            words.extend(["--minibatches".to_owned(), method.minibatches.to_string()]);
        }
        if let Some((of, flag, value)) =
            method.asks.filter(|(of, flag, _)| *of == stage && !settings.has_flag(of, flag))
        {
            debug_assert_eq!(of, stage);
            words.extend([flag.to_owned(), value.to_owned()]);
        }
        text += &format!("{}\n", words.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    fn explained(words: &str) -> String {
        let words: Vec<String> = words.split(' ').map(Into::into).collect();
        explain(&Settings::new(&flags::parse(&words).unwrap().expect("no help")).unwrap())
    }

    #[test]
    fn a_method_has_one_entry_and_known_stages() {
        let mut names: Vec<&str> = METHODS.iter().map(|method| method.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METHODS.len());
        for (stage, flag, _) in METHODS.iter().flat_map(Method::all) {
            assert!(["rollout", "group", "advantage", "update"].contains(stage) && flag.starts_with("--"));
        }
    }

    /// Compares each method's commands with its specification.
    #[test]
    fn methods_are_their_commands() {
        let pipe = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        for (method, expected) in [
            ("at-grpo", ["rollout", "group", "advantage", "update"]),
            (
                "trajectory",
                ["rollout --sampling parallel", "group --by episode", "advantage --credit episode", "update"],
            ),
            (
                "matpo",
                ["rollout --sampling parallel", "group --by episode", "advantage --credit episode", "update"],
            ),
            (
                "magrpo",
                [
                    "rollout --joint aligned --sampling parallel",
                    "group",
                    "advantage --credit tree --estimator dr-grpo",
                    "update --aggregate constant --max-tokens 1 --minibatches 1",
                ],
            ),
            (
                "magrpo-cross",
                [
                    "rollout --joint cross",
                    "group",
                    "advantage --estimator dr-grpo",
                    "update --aggregate constant --max-tokens 1 --minibatches 1",
                ],
            ),
            (
                "c3",
                [
                    "rollout --joint aligned --expand all",
                    "group",
                    "advantage --credit tree --estimator rloo",
                    "update",
                ],
            ),
            (
                "c3-zscore",
                [
                    "rollout --joint aligned --expand all",
                    "group",
                    "advantage --credit tree --estimator grpo --std population --epsilon 0",
                    "update",
                ],
            ),
            (
                "drmas",
                [
                    "rollout --sampling parallel",
                    "group --by agent",
                    "advantage --credit episode --count calls",
                    "update",
                ],
            ),
            (
                "gigpo",
                [
                    "rollout --sampling parallel",
                    "group --by agent --anchor prompt",
                    "advantage --credit gigpo --gamma 0.95",
                    "update",
                ],
            ),
            (
                "gdpo",
                [
                    "rollout",
                    "group",
                    "advantage --estimator gdpo --epsilon 1e-4 --whiten samples --components success=1,format=0.5",
                    "update",
                ],
            ),
            (
                "rae",
                [
                    "rollout --sampling parallel",
                    "group --by agent",
                    "advantage --estimator rae --credit episode-own --baselines RUN/baselines",
                    "update",
                ],
            ),
            (
                "flow-grpo",
                [
                    "rollout --sampling parallel",
                    "group --by agent",
                    "advantage --credit episode --count calls",
                    "update",
                ],
            ),
            (
                "hierarchical",
                [
                    "rollout --joint aligned --expand all",
                    "group",
                    "advantage --credit tree --estimator dr-grpo",
                    "update",
                ],
            ),
        ] {
            assert_eq!(pipe(&explained(&format!("--method {method} --explain"))), expected, "{method}");
        }
    }

    #[test]
    fn flags_of_a_run_go_before_those_of_its_method() {
        let text = explained("--method c3 --flags advantage=--estimator=grpo --explain");
        assert!(text.contains("\nadvantage --credit tree --estimator=grpo\n"), "{text}");
    }
}
