//! Which policy plays which agent: the meaning of `--policy [AGENT=]DIR`, the same in every program that has the flag.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};

/// The policies of a command line and the agents they own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    directories: Vec<PathBuf>,
    by_agent: BTreeMap<String, usize>,
    others: Option<usize>,
}

impl Ownership {
    /// Reads the flag's values. `AGENT=DIR` owns that agent; a bare `DIR` owns all agents without one of their own.
    /// Values that name one directory are one policy.
    ///
    /// # Errors
    /// No value, an agent named twice, two bare directories (exit 2).
    pub fn parse(values: &[String]) -> Result<Ownership> {
        let mut ownership = Ownership { directories: Vec::new(), by_agent: BTreeMap::new(), others: None };
        for value in values {
            // A path may hold an equals sign; an agent's name holds no slash.
            let (agent, directory) = match value.split_once('=') {
                Some((agent, directory)) if !agent.contains('/') => (Some(agent), directory),
                _ => (None, value.as_str()),
            };
            if directory.is_empty() || agent == Some("") {
                return Err(Failure::usage(format!("--policy {value}: not [AGENT=]DIR")));
            }
            let policy = ownership.add(Path::new(directory));
            let previous = match agent {
                Some(agent) => ownership.by_agent.insert(agent.to_owned(), policy),
                None => ownership.others.replace(policy),
            };
            if previous.is_some() {
                let whom = agent.map_or_else(|| "all agents".to_owned(), |agent| format!("agent {agent:?}"));
                return Err(Failure::usage(format!("--policy is given twice for {whom}"))
                    .hint("name the agents: --policy tool=run/tool --policy planner=run/planner"));
            }
        }
        if ownership.directories.is_empty() {
            return Err(Failure::usage("--policy is missing").hint("name a directory: --policy run/tool"));
        }
        Ok(ownership)
    }

    fn add(&mut self, directory: &Path) -> usize {
        let same = |known: &PathBuf| {
            known == directory
                || matches!((known.canonicalize(), directory.canonicalize()), (Ok(left), Ok(right)) if left == right)
        };
        self.directories.iter().position(same).unwrap_or_else(|| {
            self.directories.push(directory.to_owned());
            self.directories.len() - 1
        })
    }

    /// The policies' directories, each once, in the order of the command line.
    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// The policy, as an index into [`Ownership::directories`], that owns an agent.
    pub fn of(&self, agent: &str) -> Option<usize> {
        self.by_agent.get(agent).copied().or(self.others)
    }

    /// The agents that are named, with their policies.
    pub fn named(&self) -> impl Iterator<Item = (&str, usize)> {
        self.by_agent.iter().map(|(agent, &policy)| (agent.as_str(), policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Result<Ownership> {
        Ownership::parse(&values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn who_owns_whom() {
        let one = parse(&["run/all"]).unwrap();
        assert_eq!((one.of("tool"), one.of("planner")), (Some(0), Some(0)));
        let two = parse(&["tool=run/a", "planner=run/b", "judge=run/a"]).unwrap();
        assert_eq!(two.directories(), [Path::new("run/a"), Path::new("run/b")]);
        assert_eq!(
            (two.of("tool"), two.of("planner"), two.of("judge"), two.of("x")),
            (Some(0), Some(1), Some(0), None)
        );
        let rest = parse(&["tool=a", "b"]).unwrap();
        assert_eq!((rest.of("tool"), rest.of("x")), (Some(0), Some(1)));
        assert_eq!(parse(&["./odd=name"]).unwrap().directories(), [Path::new("./odd=name")]);
        assert_eq!(parse(&["/", "tool=/tmp/.."]).unwrap().directories().len(), 1);
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for values in [&["a", "b"][..], &["x=a", "x=b"], &["x=a", "x=a"], &[], &["=a"], &["a="]] {
            assert_eq!(parse(values).unwrap_err().code, 2, "{values:?}");
        }
    }
}
