//! The contract that every environment keeps, tested on its own tasks: `envs check`.
//!
//! Each rule is one [`Finding`]. [`explore`] walks every situation that can be reached on some tasks;
//! [`episodes`] plays many at random; [`shipped`] compares streams of tasks and ways of answering; [`outside`] does
//! what can be done for a program of which nothing is known but the lines that it answers.
//!
//! Left out: whether the tasks are interesting, and whether the oracle of a task that cannot be enumerated is
//! the best there is.

mod episodes;
mod explore;
pub mod outside;
mod shipped;

use record::failure::{Failure, Result};
use record::line::Task;

use crate::environment::{Environment, Outcome, RewardRange, State};
use crate::settings::Settings;

pub use shipped::check;

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

/// What situations and episodes are explored of: a shipped environment, or a program.
pub(crate) trait Subject {
    /// Names the random streams.
    fn name(&self) -> &str;
    /// Bounds of the rewards.
    fn reward_range(&self) -> RewardRange;
    /// The workflows to play.
    fn workflows(&self) -> Vec<String>;
    /// Situations explored on one task; what lies beyond is not looked at.
    fn situations(&self) -> usize;
    /// Whether cloning a state is the environment's own doing, which can be wrong.
    fn has_clones(&self) -> bool {
        true
    }
    /// The first state of `task`.
    fn reset(&self, task: &Task, workflow: &str) -> Result<Box<dyn State>>;
    /// Tests that nothing but the state decides what comes of `agent` saying `text`.
    fn fidelity(&self, state: &dyn State, agent: &str, text: &str, ledger: &mut Ledger) -> Result<()>;
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
    /// No rule tried yet.
    pub(crate) fn new() -> Ledger {
        Ledger { findings: Vec::new() }
    }

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

/// What holds for every outcome.
pub(crate) fn outcome_rules(
    subject: &dyn Subject,
    outcome: &Outcome,
    ledger: &mut Ledger,
    place: impl Fn() -> String,
) {
    let range = subject.reward_range();
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

/// The verdict on all findings about `environment`.
///
/// # Errors
/// A rule was broken: exit 1.
pub fn verdict(environment: &dyn Environment, findings: &[Finding]) -> Result<()> {
    verdict_on(environment.name(), findings)
}

/// The verdict on all findings about the environment called `name`.
///
/// # Errors
/// A rule was broken: exit 1.
pub fn verdict_on(name: &str, findings: &[Finding]) -> Result<()> {
    let broken = findings.iter().filter(|finding| finding.broken.is_some()).count();
    if broken == 0 {
        return Ok(());
    }
    Err(Failure::work(format!("{name} breaks {broken} of {} rules", findings.len())))
}
