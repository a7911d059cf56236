//! The team of a run: who speaks for whom, and what to say when nobody does.

use policy::ownership::{Owner, Ownership};
use record::failure::{Failure, Result};

/// Agents and the policies that speak for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team(Ownership);

impl Team {
    /// The team that the values of `--policy` describe.
    ///
    /// # Errors
    /// Usage: an agent named twice.
    pub fn new(values: &[String]) -> Result<Team> {
        Ownership::parse("--policy", values).map(Team)
    }

    /// The policies, each once, in the order of the command line. Samples call them by these names.
    pub fn policies(&self) -> &[Owner] {
        self.0.owners()
    }

    /// The index of the policy that speaks for `agent`.
    ///
    /// # Errors
    /// Usage: none does.
    pub fn policy_of(&self, agent: &str) -> Result<usize> {
        self.0.of(agent).ok_or_else(|| {
            Failure::usage(format!("no --policy for the agent {agent}"))
                .hint(format!("add --policy {agent}=DIR, or let one directory own all agents: --policy DIR"))
        })
    }

    /// Checks that every one of `agents` has a policy.
    ///
    /// # Errors
    /// Usage: one has none.
    pub fn covers<S: AsRef<str>>(&self, agents: &[S]) -> Result<()> {
        agents.iter().try_for_each(|agent| self.policy_of(agent.as_ref()).map(|_| ()))
    }

    /// An agent that a flag names and that is not among `agents`.
    pub fn stranger(&self, agents: &[String]) -> Option<&str> {
        self.0.named().map(|(agent, _)| agent).find(|&named| agents.iter().all(|agent| agent != named))
    }
}
