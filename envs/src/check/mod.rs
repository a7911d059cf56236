//! The contract that every environment keeps, tested on its own tasks: `envs check`.
//!
//! Each rule is one [`Finding`]. [`explore`] walks every situation that can be reached on some tasks;
//! [`episodes`] plays many at random; this file compares streams of tasks and ways of answering.
//!
//! Left out: whether the tasks are interesting, and whether the oracle of a task that cannot be enumerated is
//! the best there is.

mod episodes;
mod explore;

use std::collections::HashSet;

use record::failure::{Failure, Result};
use record::line::Task;

use crate::environment::{Environment, Outcome, Selection, Split, State};
use crate::settings::Settings;

/// How much is tried.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Tasks of each split whose situations are all explored.
    pub tasks: u64,
    /// Episodes played at random.
    pub episodes: u64,
    /// Seed of what is drawn.
    pub seed: u64,
    /// Values given with `--set`.
    pub settings: Settings,
}

/// A rule and how it fared.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule, in a few words.
    pub rule: &'static str,
    /// How often it was tried.
    pub tried: u64,
    /// The first case in which it was broken.
    pub broken: Option<String>,
}

/// Counts how often rules were tried, and keeps the first case in which each was broken.
pub(crate) struct Ledger {
    findings: Vec<Finding>,
}

impl Ledger {
    /// Counts one try of `rule`; `case` tells what was seen if it does not `hold`.
    pub(crate) fn rule(&mut self, rule: &'static str, holds: bool, case: impl FnOnce() -> String) {
        let index = self.findings.iter().position(|finding| finding.rule == rule).unwrap_or_else(|| {
            self.findings.push(Finding { rule, tried: 0, broken: None });
            self.findings.len() - 1
        });
        let finding = &mut self.findings[index];
        finding.tried += 1;
        if !holds && finding.broken.is_none() {
            finding.broken = Some(case());
        }
    }
}

/// Tests every rule; `advance` is told of each task explored and each hundred episodes.
///
/// # Errors
/// The environment fails where it should answer.
pub fn check(
    environment: &dyn Environment,
    effort: &Effort,
    advance: &mut dyn FnMut(),
) -> Result<Vec<Finding>> {
    let mut ledger = Ledger { findings: Vec::new() };
    streams(environment, effort, &mut ledger)?;
    answers(environment, &mut ledger)?;
    for split in [Split::Train, Split::Test] {
        for task in draw(environment, effort, split, effort.seed, effort.tasks)? {
            for workflow in environment.workflows() {
                explore::explore(environment, &task, workflow, &mut ledger)?;
            }
            advance();
        }
    }
    episodes::play(environment, effort, &mut ledger, advance)?;
    Ok(ledger.findings)
}

fn draw(
    environment: &dyn Environment,
    effort: &Effort,
    split: Split,
    seed: u64,
    count: u64,
) -> Result<Vec<Task>> {
    let selection = Selection { split, seed, settings: effort.settings.clone() };
    environment.tasks(&selection)?.take(count as usize).collect()
}

/// What holds for the streams of tasks.
fn streams(environment: &dyn Environment, effort: &Effort, ledger: &mut Ledger) -> Result<()> {
    const COUNT: u64 = 1000;
    let seed = effort.seed;
    let train = draw(environment, effort, Split::Train, seed, COUNT)?;
    let again = draw(environment, effort, Split::Train, seed, COUNT / 10)?;
    for (index, (task, same)) in train.iter().zip(&again).enumerate() {
        ledger.rule("the same seed gives the same tasks", task == same, || {
            format!("train task {index} of seed {seed} is {} and then {}", task.task, same.task)
        });
    }
    let test = draw(environment, effort, Split::Test, seed, COUNT)?;
    let other = draw(environment, effort, Split::Test, seed.wrapping_add(1), COUNT)?;
    let mut names = HashSet::new();
    for (index, (task, same)) in test.iter().zip(&other).enumerate() {
        // The split ends where its first task comes back; from there on the seed decides the order.
        if !names.insert(task.task.as_str()) {
            break;
        }
        ledger.rule("no seed changes the test split", task == same, || {
            format!("test task {index} is {} for one seed and {} for another", task.task, same.task)
        });
    }
    let held_out: HashSet<&str> = test.iter().map(|task| name(&task.task)).collect();
    for task in &train {
        ledger.rule("train and test are disjoint", !held_out.contains(name(&task.task)), || {
            format!("{} is also a test task", task.task)
        });
    }
    Ok(())
}

/// The part of a task's name that names the instance, whatever the split.
fn name(task: &str) -> &str {
    task.rsplit('/').next().unwrap_or(task)
}

/// What holds for the ways of answering.
fn answers(environment: &dyn Environment, ledger: &mut Ledger) -> Result<()> {
    for case in environment.extraction_cases() {
        let start = environment.reset(&case.spec, case.workflow)?;
        let apply = |text: &str| -> Result<(Outcome, String)> {
            let mut state = start.clone_state();
            let outcome = state.apply(case.agent, text)?;
            Ok((outcome, state.to_json().to_string()))
        };
        let (outcome, state) = apply(&case.text)?;
        let holds = match &case.means {
            Some(plain) => (outcome, state) == apply(plain)?,
            None => outcome.rewards.team == 0.0 && outcome.rewards.local == 0.0 && !outcome.terminated,
        };
        ledger.rule("answers are read as a reader expects", holds, || {
            format!("{}: {:?} of {} is not read as {:?}", case.name, case.text, case.agent, case.means)
        });
    }
    Ok(())
}

/// What holds for every outcome.
pub(crate) fn outcome_rules(
    environment: &dyn Environment,
    outcome: &Outcome,
    ledger: &mut Ledger,
    place: impl Fn() -> String,
) {
    let range = environment.reward_range();
    let within = |value: f64, (least, most): (f64, f64)| value >= least && value <= most;
    let holds = within(outcome.rewards.team, range.team)
        && within(outcome.rewards.local, range.local)
        && outcome.components.values().all(|value| within(*value, (0.0, 1.0)));
    ledger.rule("rewards stay in their range", holds, || format!("{}: {outcome:?}", place()));
    ledger.rule("a success ends the episode", !outcome.success || outcome.terminated, place);
}

/// Where a rule was broken: enough to see it again with `envs step`.
pub(crate) fn place(state: &dyn State, agent: &str, text: &str) -> String {
    format!("{agent} says {text:?} at {}", state.to_json())
}

/// The verdict on all findings.
///
/// # Errors
/// A rule was broken: exit 1.
pub fn verdict(environment: &dyn Environment, findings: &[Finding]) -> Result<()> {
    let broken = findings.iter().filter(|finding| finding.broken.is_some()).count();
    if broken == 0 {
        return Ok(());
    }
    Err(Failure::work(format!("{} breaks {broken} of {} rules", environment.name(), findings.len())))
}
