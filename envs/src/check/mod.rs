//! `envs check`: tests the contract of an environment on its tasks, over the step protocol. An environment that is built in
//! is the program `envs step NAME`.
//!
//! Each rule is one [`Finding`]. [`program`] tests requests and answers; [`explore`] walks every situation that can be
//! reached on some tasks; [`episodes`] plays many at random; [`built_in`] adds task streams and answer formats of built-in
//! environments.
//!
//! Left out: whether the tasks are interesting, and whether the oracle is optimal on
//! tasks too large to enumerate.

mod built_in;
mod episodes;
mod explore;
mod program;

use record::failure::{Failure, Result};
use record::sample::Rewards;
use record::stage::interrupted;

use environment::{Outcome, State};

pub use built_in::check_built_in;
pub use program::{Program, Report, check};

/// How much to test.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Tasks of each split whose situations are all explored.
    pub tasks: u64,
    /// Episodes played at random.
    pub episodes: u64,
    /// Seed of all random draws.
    pub seed: u64,
}

/// A rule and its result.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule, in a few words.
    pub rule: &'static str,
    /// How often it was tested.
    pub tried: u64,
    /// The first violation.
    pub broken: Option<String>,
    /// True if the rule is advice, whose violation breaks no contract.
    pub advice: bool,
}

/// Counts how often each rule was tested, and keeps its first violation.
#[derive(Default)]
pub(crate) struct Ledger {
    findings: Vec<Finding>,
}

impl Ledger {
    /// Counts a test of `rule`; `case` describes the violation if it does not `hold`.
    pub(crate) fn rule(&mut self, rule: &'static str, holds: bool, case: impl FnOnce() -> String) {
        self.record(rule, false, holds, case);
    }

    /// Counts a test of advice, like [`Ledger::rule`].
    pub(crate) fn advice(&mut self, rule: &'static str, holds: bool, case: impl FnOnce() -> String) {
        self.record(rule, true, holds, case);
    }

    fn record(&mut self, rule: &'static str, advice: bool, holds: bool, case: impl FnOnce() -> String) {
        let index = self.findings.iter().position(|finding| finding.rule == rule).unwrap_or_else(|| {
            self.findings.push(Finding { rule, tried: 0, broken: None, advice });
            self.findings.len() - 1
        });
        let finding = &mut self.findings[index];
        finding.tried += 1;
        if !holds && finding.broken.is_none() {
            finding.broken = Some(case());
        }
    }
}

/// Rules about every outcome.
pub(crate) fn outcome_rules(
    (least, most): (f64, f64),
    outcome: &Outcome,
    ledger: &mut Ledger,
    place: impl Fn() -> String,
) {
    let rewards = [outcome.rewards.team, outcome.rewards.local];
    let holds = rewards.iter().chain(outcome.locals.values()).all(|value| (least..=most).contains(value));
    ledger.rule("rewards stay in their range", holds, || {
        let locals = outcome.locals.iter().map(|(agent, local)| format!(", {agent} {local}"));
        let Rewards { team, local } = outcome.rewards;
        format!(
            "{}: team {team}, local {local}{}, not in [{least}, {most}]",
            place(),
            locals.collect::<String>()
        )
    });
    ledger.rule("a success ends the episode", !outcome.success || outcome.terminated, place);
}

/// Call this regularly during long loops.
pub(crate) fn unless_interrupted() -> Result<()> {
    match interrupted() {
        true => Err(Failure::interrupted()),
        false => Ok(()),
    }
}

/// Describes a violation's place, so that `envs step` can reproduce it.
pub(crate) fn place(state: &dyn State, agent: &str, text: &str) -> String {
    format!("{agent} says {text:?} at {}", state.to_json())
}

/// The verdict on all findings about the environment called `name`.
pub fn verdict(name: &str, findings: &[Finding]) -> Result<()> {
    let broken = findings.iter().filter(|finding| finding.broken.is_some() && !finding.advice).count();
    if broken == 0 {
        return Ok(());
    }
    Err(Failure::work(format!("{name} breaks {broken} of {} rules", findings.len())))
}
