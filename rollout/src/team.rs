//! Which policy speaks for which agent, from the `--policy` flags.
//!
//! `--policy AGENT=DIR` owns that agent, a bare `--policy DIR` owns all of them. Flags that name one directory
//! are one policy, loaded once.

use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};

/// Agents and the policies that speak for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    /// The directory of each policy, as it was first named.
    pub directories: Vec<PathBuf>,
    owners: Vec<(Option<String>, usize)>,
}

impl Team {
    /// The team that the flags describe.
    ///
    /// # Errors
    /// Usage: no flag at all, an agent named twice, a bare directory beside others.
    pub fn new(flags: &[String]) -> Result<Team> {
        let mut directories: Vec<PathBuf> = Vec::new();
        let mut identities: Vec<PathBuf> = Vec::new();
        let mut owners: Vec<(Option<String>, usize)> = Vec::new();
        for flag in flags {
            let (agent, directory) = split(flag)?;
            let identity = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
            let policy = identities.iter().position(|known| *known == identity).unwrap_or_else(|| {
                identities.push(identity);
                directories.push(directory.to_owned());
                directories.len() - 1
            });
            let agent = agent.map(str::to_owned);
            if let Some((twice, _)) = owners.iter().find(|(owned, _)| *owned == agent) {
                let whom = twice.as_deref().unwrap_or("all agents");
                return Err(Failure::usage(format!("two --policy flags for {whom}"))
                    .hint("name each agent once: --policy tool=run/tool --policy planner=run/planner"));
            }
            owners.push((agent, policy));
        }
        if owners.len() > 1 && owners.iter().any(|(agent, _)| agent.is_none()) {
            return Err(Failure::usage("a --policy without an agent owns all agents, so it is the only one")
                .hint("name the agent in each flag: --policy tool=run/tool --policy planner=run/planner"));
        }
        Ok(Team { directories, owners })
    }

    /// The index of the policy that speaks for `agent`.
    ///
    /// # Errors
    /// Usage: none does.
    pub fn policy_of(&self, agent: &str) -> Result<usize> {
        self.owners
            .iter()
            .find(|(owned, _)| owned.as_deref().is_none_or(|owned| owned == agent))
            .map(|&(_, policy)| policy)
            .ok_or_else(|| {
                Failure::usage(format!("no --policy for the agent {agent}")).hint(format!(
                    "add --policy {agent}=DIR, or let one directory own all agents: --policy DIR"
                ))
            })
    }

    /// Checks that every one of `agents` has a policy.
    ///
    /// # Errors
    /// Usage: one has none.
    pub fn covers<S: AsRef<str>>(&self, agents: &[S]) -> Result<()> {
        agents.iter().try_for_each(|agent| self.policy_of(agent.as_ref()).map(|_| ()))
    }

    /// Agents that flags name and that are not among `agents`.
    pub fn strangers<S: AsRef<str>>(&self, agents: &[S]) -> Vec<&str> {
        self.owners
            .iter()
            .filter_map(|(agent, _)| agent.as_deref())
            .filter(|owned| agents.iter().all(|agent| agent.as_ref() != *owned))
            .collect()
    }

    /// What samples call each policy: the last part of its directory; the whole of it where two would be called
    /// alike.
    pub fn labels(&self) -> Vec<String> {
        let short: Vec<String> = self.directories.iter().map(|directory| last_part(directory)).collect();
        let alike = |label: &String| short.iter().filter(|other| *other == label).count() > 1;
        short
            .iter()
            .zip(&self.directories)
            .map(
                |(label, directory)| {
                    if alike(label) { directory.display().to_string() } else { label.clone() }
                },
            )
            .collect()
    }
}

/// `AGENT=DIR` or `DIR`. What stands before the first `=` is an agent unless it could be a path.
fn split(flag: &str) -> Result<(Option<&str>, &Path)> {
    let (agent, directory) = match flag.split_once('=') {
        Some((agent, directory)) if !agent.contains(['/', '.']) => (Some(agent), directory),
        _ => (None, flag),
    };
    if directory.is_empty() || agent.is_some_and(str::is_empty) {
        return Err(Failure::usage(format!("--policy {flag}: neither AGENT=DIR nor DIR"))
            .hint("for example --policy run/shared or --policy planner=run/planner"));
    }
    Ok((agent, Path::new(directory)))
}

fn last_part(directory: &Path) -> String {
    let whole = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    whole.file_name().map_or_else(|| whole.display().to_string(), |name| name.to_string_lossy().into_owned())
}
