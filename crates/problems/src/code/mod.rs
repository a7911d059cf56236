//! Code: a coder writes a program, a tester a test case, until they agree.
//!
//! From Stronger-MAS (arXiv 2510.11062). In the workflow `team` both answer at once, seeing the state before the turn.
//! When the program does on the tester's input what the tester expects, the episode ends. Success is another matter: the
//! program has to pass every golden test, and agents see no more of these than the examples in the statement. In `single`
//! the coder is alone and is shown the example on which its program failed; in `one-shot` it has one turn.
//!
//! Programs run in [`sandbox`]; expected outputs stay outside of it. The expressions of tiny policies are
//! evaluated without one ([`expression`]).
//!
//! - [`spec`]: settings and the `spec` of a task; [`generate`], [`list`], [`expression`]: generated tasks;
//!   [`mutate`]: wrong programs made of right ones;
//! - [`extract`]: test cases in answers; [`full`], [`compact`]: the two encodings of prompts and answers;
//! - [`judge`], [`compare`]: runs programs, compares outputs;
//! - [`task`]: generated and imported tasks; [`state`]: an episode, and what answers earn; `test_actions`: for `envs check`.

mod compact;
pub mod compare;
pub mod expression;
mod extract;
mod full;
mod generate;
pub mod judge;
mod list;
pub mod mutate;
pub mod spec;
mod state;
mod task;
mod test_actions;

use std::sync::{Arc, LazyLock};

use crate::problem;
use environment::{Metadata, Workflow};

/// The environment's name.
pub const NAME: &str = "code";

/// The environment.
pub static CODE: problem::ProblemEnvironment<spec::Instance> = problem::ProblemEnvironment::new(
    NAME,
    Metadata {
        summary: "write a program and a test case that agree, and pass the golden tests",
        workflows: &WORKFLOWS,
        settings: spec::SETTINGS,
        demonstrators: &[("opt", 0.45), ("careless", 0.55)],
        max_tokens: |settings| {
            // In prose there is room for a one-line function with some words; programs on lists are longer.
            let is_brief = !matches!(settings.text("reasoning"), Some("steps"));
            let prose =
                if is_brief && matches!(settings.text("level"), None | Some("1")) { 128 } else { 256 };
            problem::max_tokens(settings, 24, prose)
        },
    },
);

static WORKFLOWS: LazyLock<Vec<Arc<Workflow>>> = LazyLock::new(|| {
    vec![
        Workflow::parallel("team", &["coder", "tester"]),
        Workflow::sequential("single", &["coder"]),
        Workflow::sequential("one-shot", &["coder"]),
    ]
});
