//! Systems without the fences: nothing runs there.

use record::failure::{Failure, Result};

use super::{Execution, Program};

/// The sandbox; on this system there is none.
pub struct Sandbox {}

impl Sandbox {
    /// # Errors
    /// Always: unavailable.
    pub fn shared() -> Result<&'static Sandbox> {
        Err(Failure::unavailable("the sandbox for model-written programs needs Linux")
            .hint("run this in a Linux machine or container"))
    }

    /// The fences that stand, in words.
    pub fn description(&self) -> &str {
        ""
    }

    /// # Errors
    /// Always: unavailable.
    pub fn run(&self, _program: &Program<'_>) -> Result<Execution> {
        Err(Failure::unavailable("the sandbox for model-written programs needs Linux"))
    }
}
