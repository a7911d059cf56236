//! The team of a run: who speaks for whom, what to say when nobody does, and what samples call each policy.

use std::path::{Path, PathBuf};

use policy::ownership::Ownership;
use record::failure::{Failure, Result};

/// Agents and the policies that speak for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team(Ownership);

impl Team {
    /// The team that the values of `--policy` describe.
    ///
    /// # Errors
    /// Usage: no value, an agent named twice.
    pub fn new(values: &[String]) -> Result<Team> {
        Ownership::parse(values).map(Team)
    }

    /// The directory of each policy, once, in the order of the command line.
    pub fn directories(&self) -> &[PathBuf] {
        self.0.directories()
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

    /// What samples call each policy: the last part of its directory; the whole of it where two would be called
    /// alike.
    pub fn labels(&self) -> Vec<String> {
        let short: Vec<String> = self.directories().iter().map(|directory| last_part(directory)).collect();
        let alike = |label: &String| short.iter().filter(|other| *other == label).count() > 1;
        short
            .iter()
            .zip(self.directories())
            .map(
                |(label, directory)| {
                    if alike(label) { directory.display().to_string() } else { label.clone() }
                },
            )
            .collect()
    }
}

fn last_part(directory: &Path) -> String {
    let whole = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    whole.file_name().map_or_else(|| whole.display().to_string(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[&str]) -> Vec<String> {
        let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        Team::new(&values).unwrap().labels()
    }

    #[test]
    fn a_policy_is_called_after_its_directory() {
        assert_eq!(labels(&["tool=run/tool", "planner=run/other/"]), ["tool", "other"]);
        assert_eq!(labels(&["run/shared"]), ["shared"]);
        assert_eq!(labels(&["tool=a/policy", "planner=b/policy"]), ["a/policy", "b/policy"]);
    }
}
