//! Refill: tasks are played in waves until enough of them teach (DAPO's dynamic sampling, arXiv 2503.14476, section 3.2).
//!
//! A wave is the next W tasks of the input; only after all of them are written is it known whether another is needed, so
//! that the tasks played follow from the seed, the step, N and W, and not from threads. All of them are written, and all by
//! one version of the policies; `advantage --drop-flat` leaves out what does not teach. Left out: the credit rule, under
//! which a task that teaches by its rewards may still be flat.

use std::collections::BTreeMap;

use clap::ValueEnum;
use record::failure::{Failure, Result};
use record::stage::{choice, counted, note};
use serde_json::{Value, json};

use crate::episode::group::Group;
use crate::episode::joint::{JointAction, Node};
use crate::stage::Totals;

/// The condition under which a task teaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FillBy {
    /// The rewards of one of its groups differ
    Reward,
    /// Some of its plays succeed and some do not
    Success,
}

/// A refill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FillConfig {
    /// Tasks that teach.
    pub wanted: u64,
    /// The condition under which a task teaches.
    pub by: FillBy,
    /// Tasks of a wave.
    pub wave: u64,
    /// The greatest difference of rewards that is none.
    pub flat_below: f64,
    /// True if too few are a failure.
    pub strict: bool,
}

impl FillConfig {
    /// `counts.fill` of the `end` line.
    pub fn counts(&self, totals: &Totals) -> Value {
        let (teaching, played) = (totals.stats.teaching, totals.stats.tasks);
        json!({
            "wanted": self.wanted,
            "teaching": teaching,
            "played": played,
            "offered": totals.tasks_read,
            "waves": played.div_ceil(self.wave),
            "by": choice(&self.by),
            "stopped": if teaching >= self.wanted { "filled" } else { "bound" },
            "tokens_not_teaching": totals.stats.tokens_not_teaching,
        })
    }

    /// Says that too few tasks teach.
    ///
    /// # Errors
    /// With `--fill-strict`.
    pub fn judge(&self, totals: &Totals) -> Result<()> {
        let (teaching, wanted) = (totals.stats.teaching, self.wanted);
        if teaching >= wanted {
            return Ok(());
        }
        let tasks = counted(totals.stats.tasks, "task");
        let message = format!("--fill {wanted}: {teaching} of all {tasks} on stdin teach");
        if self.strict {
            return Err(Failure::work(message)
                .hint("offer more tasks (envs tasks --count), or leave out --fill-strict"));
        }
        note("rollout", format!("warning: {message}"));
        Ok(())
    }
}

/// Least and greatest reward of each group so far, and whether plays that are over succeeded or failed.
#[derive(Clone, Debug, Default)]
pub struct Lessons {
    rewards: BTreeMap<(Node, u32, usize), (f64, f64)>,
    succeeded: bool,
    failed: bool,
}

impl Lessons {
    /// Takes in the candidates of an agent; in parallel sampling those of one episode.
    pub fn group(&mut self, group: &Group) {
        let key = (group.node.clone(), group.turn, group.agent);
        let (least, greatest) = self.rewards.entry(key).or_insert((f64::INFINITY, f64::NEG_INFINITY));
        for member in &group.members {
            (*least, *greatest) = (least.min(member.reward), greatest.max(member.reward));
        }
    }

    /// Takes in candidates, each of which is the end of a play or goes on.
    pub fn ends_of_candidates(&mut self, group: &Group) {
        for member in group.members.iter().filter(|member| member.outcome.terminated || member.truncated) {
            self.end(member.outcome.success);
        }
    }

    /// The rule for joint actions.
    pub fn ends_of_actions(&mut self, actions: &[JointAction]) {
        for action in actions.iter().filter(|action| action.outcome.terminated || action.truncated) {
            self.end(action.outcome.success);
        }
    }

    /// A play is over.
    pub fn end(&mut self, success: bool) {
        self.succeeded |= success;
        self.failed |= !success;
    }

    /// True if the task teaches.
    pub fn teaches(&self, config: &FillConfig) -> bool {
        match config.by {
            FillBy::Reward => {
                self.rewards.values().any(|(least, greatest)| greatest - least > config.flat_below)
            }
            FillBy::Success => self.succeeded && self.failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use envs::Outcome;

    /// Like candidates, joint actions fail where the turn limit ends their play, and say nothing where it goes on.
    #[test]
    fn a_joint_action_that_the_turn_limit_ends_has_failed() {
        for (truncated, terminated, success, expected) in [
            (true, false, false, (false, true)),
            (false, true, false, (false, true)),
            (false, true, true, (true, false)),
            (false, false, false, (false, false)),
        ] {
            let outcome = Outcome { terminated, success, ..Outcome::new(0.0, 0.0, &[]) };
            let action = JointAction {
                path: Node::default(),
                members: Vec::new(),
                choices: Vec::new(),
                reward: 0.0,
                rewards: record::line::JointRewards { team: 0.0, local: BTreeMap::new() },
                outcome,
                selected: false,
                truncated,
            };
            let mut lessons = Lessons::default();
            lessons.ends_of_actions(&[action]);
            assert_eq!((lessons.succeeded, lessons.failed), expected);
        }
    }
}
