//! Math: solve a problem by thinking and by program.
//!
//! From Stronger-MAS (arXiv 2510.11062). Workflows:
//!
//! - `team`: a tool, who writes a program, and a reasoner, who thinks. Both see the state before the turn; the episode ends
//!   when their answers agree, in success if the answer is right. Running out of turns is no success, even where the
//!   reasoner is right.
//! - `single`: a reasoner who answers once; `tool`: a tool who does.
//! - `turns`: a reasoner who sees its last solution, until it gives the same answer twice.
//! - `ensemble`: the numbers of reasoners and tools in the task's `spec`, in parallel, then a judge, who sees
//!   them all; the episode ends when the judge adopts one of their answers.
//!
//! Files:
//! - [`answer`]: parses answers, finds them in solutions, compares them;
//! - [`story`]: generated word problems; [`spec`]: settings and the `spec` of a task;
//! - [`task`]: generated and imported tasks; [`state`]: an episode, and what answers earn; [`compact`], [`full`]: the two encodings of prompts and answers;
//! - [`demonstrate`]: demonstrations for the warm-up; `test_actions`: for `envs check`.

pub mod answer;
mod compact;
mod demonstrate;
mod full;
mod message;
#[cfg(test)]
mod paid;
mod spec;
mod state;
mod story;
mod task;
mod test_actions;

use std::sync::{Arc, LazyLock};

use crate::problem;
use environment::{Metadata, Workflow};

/// The environment's name.
pub const NAME: &str = "math";

/// The environment.
pub static MATH: problem::ProblemEnvironment<spec::MathProblem> = problem::ProblemEnvironment::new(
    NAME,
    Metadata {
        summary: "work out the answer of a problem, by thinking and by program",
        workflows: &WORKFLOWS,
        settings: spec::SETTINGS,
        demonstrators: demonstrate::KINDS,
        max_tokens: |settings| {
            // In prose there is room for an equation with some words, or for all steps.
            problem::max_tokens(
                settings,
                24,
                if settings.text("reasoning") == Some("steps") { 512 } else { 128 },
            )
        },
    },
);

static WORKFLOWS: LazyLock<Vec<Arc<Workflow>>> = LazyLock::new(|| {
    let mut workflows = vec![
        Workflow::parallel("team", &["tool", "reasoner"]),
        Workflow::sequential("single", &["reasoner"]),
        Workflow::sequential("tool", &["tool"]),
        Workflow::sequential("turns", &["reasoner"]),
        Workflow::sequential("check", &["solver", "checker"]),
    ];
    // The default numbers are in range.
    workflows.extend(spec::MathProblem::ensemble(&spec::Spec::default()));
    workflows
});
