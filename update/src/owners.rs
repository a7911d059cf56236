//! Who trains on what: the policies of `--policy [AGENT=]DIR`, and which of them owns an agent's samples.
//!
//! Ownership goes by the sample's `agent`; its `policy` is a label. A flag with an agent's name owns that agent, a
//! bare one owns every agent that no other flag names, and flags that name one directory are one policy.

use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};

/// One policy of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Its directory as the user wrote it.
    pub directory: PathBuf,
    /// What it is called in messages and metrics: the directory's last component.
    pub name: String,
    /// The agents named for it.
    pub agents: Vec<String>,
}

/// Policies by directory, and how agents find theirs.
#[derive(Clone, Debug)]
pub struct Owners {
    /// Each directory once, in the order of the flags.
    pub policies: Vec<Owned>,
    identities: Vec<PathBuf>,
    rest: Option<usize>,
}

impl Owners {
    /// The owners that the values of `flag` name.
    ///
    /// # Errors
    /// An agent, or the rest of the agents, given to two directories (usage).
    pub fn parse(flag: &str, values: &[String]) -> Result<Owners> {
        let mut owners = Owners { policies: Vec::new(), identities: Vec::new(), rest: None };
        for value in values {
            let (agent, directory) = split(value);
            if directory.is_empty() || agent.is_some_and(str::is_empty) {
                return Err(Failure::usage(format!("{flag} {value}: not of the form [AGENT=]DIR")));
            }
            let index = owners.index_of(Path::new(directory));
            let holder = match agent {
                Some(agent) => owners.named(agent),
                None => owners.rest,
            };
            if let Some(holder) = holder
                && holder != index
            {
                let who = agent.map_or("all agents".to_owned(), |agent| format!("agent {agent}"));
                let first = owners.policies[holder].directory.display().to_string();
                return Err(Failure::usage(format!("{flag} {value}: {who} already belong(s) to {first}"))
                    .hint("an agent has one policy; name the agents with AGENT=DIR"));
            }
            match agent {
                Some(agent) if holder.is_none() => owners.policies[index].agents.push(agent.to_owned()),
                Some(_) => {}
                None => owners.rest = Some(index),
            }
        }
        Ok(owners)
    }

    /// The policy that owns this agent's samples.
    pub fn owner(&self, agent: &str) -> Option<usize> {
        self.named(agent).or(self.rest)
    }

    fn named(&self, agent: &str) -> Option<usize> {
        self.policies.iter().position(|policy| policy.agents.iter().any(|own| own == agent))
    }

    /// The policy in this directory, added where it is new. Two spellings of one directory are one policy.
    fn index_of(&mut self, directory: &Path) -> usize {
        let identity = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        if let Some(index) = self.identities.iter().position(|known| *known == identity) {
            return index;
        }
        let name = identity.file_name().unwrap_or(identity.as_os_str()).to_string_lossy().into_owned();
        self.policies.push(Owned { directory: directory.to_owned(), name, agents: Vec::new() });
        self.identities.push(identity);
        self.policies.len() - 1
    }
}

/// `tool=run/tool` is an agent and a directory; a path with a `/` before its first `=` is a directory only.
fn split(value: &str) -> (Option<&str>, &str) {
    match value.split_once('=') {
        Some((agent, directory)) if !agent.contains('/') => (Some(agent), directory),
        _ => (None, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Result<Owners> {
        Owners::parse("--policy", &values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn agents_find_their_policy() {
        let owners = parse(&["tool=run/tool", "run/shared", "planner=run/../run/tool"]).unwrap();
        assert_eq!(owners.owner("tool"), Some(0));
        assert_eq!(owners.owner("anyone"), Some(1));
        assert_eq!(parse(&["tool=run/tool"]).unwrap().owner("planner"), None);
        assert_eq!(parse(&["./a=b"]).unwrap().policies[0].directory, Path::new("./a=b"));
    }

    #[test]
    fn one_directory_is_one_policy() {
        let folder = std::env::temp_dir();
        let plain = folder.display().to_string();
        let owners = parse(&[&format!("tool={plain}"), &format!("planner={plain}/.")]).unwrap();
        assert_eq!(owners.policies.len(), 1);
        assert_eq!(owners.policies[0].agents, ["tool", "planner"]);
    }

    #[test]
    fn two_owners_of_one_agent_are_refused() {
        for values in [&["a=x", "a=y"][..], &["x", "y"], &["=x"], &["a="]] {
            assert_eq!(parse(values).unwrap_err().code, 2, "{values:?}");
        }
        assert!(parse(&["a=x", "a=x"]).is_ok());
    }
}
