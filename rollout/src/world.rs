//! Where episodes take place: the shipped environments, or a program behind `--env-command`.

use std::sync::Arc;

use envs::{State, Workflow};
use record::failure::{DATA, Result};
use record::line::Task;

/// Something that can begin the episode of a task.
pub trait World: Send + Sync {
    /// The agents that will act in `task`, to be known before a policy is loaded; none where only playing can tell.
    ///
    /// # Errors
    /// No such environment or workflow, or a command that does not answer: usage.
    fn agents(&self, task: &Task) -> Result<Vec<String>>;

    /// The first state of `task`.
    ///
    /// # Errors
    /// No such environment or workflow: usage, which ends the run. A task that is refused: data.
    fn reset(&self, task: &Task) -> Result<Box<dyn State>>;
}

/// The environments that are compiled in.
pub struct Shipped {
    workflow: Option<String>,
}

impl Shipped {
    /// Episodes are played with `workflow`; `None`: each environment's default.
    pub fn new(workflow: Option<String>) -> Shipped {
        Shipped { workflow }
    }

    fn find(&self, task: &Task) -> Result<(&'static dyn envs::Environment, Arc<Workflow>)> {
        let environment = envs::find(&task.env)?;
        let name = self.workflow.as_deref().unwrap_or_else(|| environment.workflows()[0].name());
        Ok((environment, environment.workflow(name, &task.spec)?))
    }
}

impl World for Shipped {
    fn agents(&self, task: &Task) -> Result<Vec<String>> {
        match self.find(task) {
            Ok((_, workflow)) => Ok(workflow.agents().to_vec()),
            // A task that is refused is data: what it was is told when it is played.
            Err(failure) if failure.code == DATA => Ok(Vec::new()),
            Err(failure) => Err(failure),
        }
    }

    fn reset(&self, task: &Task) -> Result<Box<dyn State>> {
        let (environment, workflow) = self.find(task)?;
        environment.reset(&task.spec, workflow.name())
    }
}
