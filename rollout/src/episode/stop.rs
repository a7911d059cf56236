//! How an episode ends.

use record::failure::{Failure, UNAVAILABLE};

/// Why an episode could not go on. It ends the episode, not the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpisodeError {
    /// Where it went wrong: `policy` (its chat template, tokenizer or context length), `env`, `sandbox` or `task` (the
    /// environment refuses it).
    pub boundary: &'static str,
    /// The cause.
    pub message: String,
}

impl EpisodeError {
    pub fn at(boundary: &'static str, message: impl ToString) -> EpisodeError {
        EpisodeError { boundary, message: message.to_string() }
    }
}

/// How an episode ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// The task is solved.
    Success,
    /// The environment ended it, unsolved.
    Terminated,
    /// The turn limit was reached.
    Turns,
    /// The mean reward of a node was above the threshold.
    Threshold,
    /// It could not be scored.
    Error(EpisodeError),
}

impl Stop {
    /// Field `stop` of an `episode` line.
    pub fn name(&self) -> &'static str {
        match self {
            Stop::Success => "success",
            Stop::Terminated => "terminated",
            Stop::Turns => "turns",
            Stop::Threshold => "threshold",
            Stop::Error(_) => "error",
        }
    }
}

impl From<Failure> for EpisodeError {
    /// An environment that failed. A missing sandbox has a boundary of its own, because the cure is a different one.
    fn from(failure: Failure) -> EpisodeError {
        EpisodeError::at(if failure.code == UNAVAILABLE { "sandbox" } else { "env" }, failure.message)
    }
}
