//! Where episodes take place: the shipped environments, or a program behind `--env-command`.

use envs::State;
use record::failure::Result;
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

    fn find(&self, task: &Task) -> Result<(&'static dyn envs::Environment, &'static envs::Workflow)> {
        let environment = envs::find(&task.env)?;
        let workflow = match &self.workflow {
            Some(name) => envs::find_workflow(environment, name)?,
            None => &environment.workflows()[0],
        };
        Ok((environment, workflow))
    }
}

impl World for Shipped {
    fn agents(&self, task: &Task) -> Result<Vec<String>> {
        let (_, workflow) = self.find(task)?;
        Ok(workflow.agents.iter().map(|&agent| agent.to_owned()).collect())
    }

    fn reset(&self, task: &Task) -> Result<Box<dyn State>> {
        let (environment, workflow) = self.find(task)?;
        environment.reset(&task.spec, workflow.name)
    }
}
