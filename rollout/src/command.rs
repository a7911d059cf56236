//! `--env-command`: episodes whose environment is any program that speaks the step protocol of `envs step`.

use std::time::Duration;

use envs::State;
use envs::outside::Outside;
use record::failure::{DATA, Failure, Result};
use record::line::Task;

use crate::world::World;

/// The world behind a command.
pub struct CommandWorld(Outside);

impl CommandWorld {
    /// Episodes of `workflow` (`None`: the program's default) played by `command`, each answer within `timeout`.
    pub fn new(command: &str, timeout: Duration, workflow: Option<String>) -> CommandWorld {
        CommandWorld(Outside::new(command, timeout, workflow))
    }
}

impl World for CommandWorld {
    /// Only the program knows them; when it refuses this task, none are known.
    fn agents(&self, task: &Task) -> Result<Vec<String>> {
        match self.0.begin(task) {
            Ok(state) => Ok(state.workflow().agents().to_vec()),
            Err(failure) if failure.code == DATA => Ok(Vec::new()),
            Err(failure) if failure.is_interruption() => Err(failure),
            Err(failure) => Err(Failure::usage(format!("--env-command {}", failure.message))
                .hint("the program answers one line of JSON for each line, like: envs step plan-path")),
        }
    }

    fn reset(&self, task: &Task) -> Result<Box<dyn State>> {
        Ok(Box::new(self.0.begin(task)?))
    }
}
