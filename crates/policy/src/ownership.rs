//! Assigns policies to agents: `--policy [AGENT=]DIR` and similar flags, parsed the same way by every
//! program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};

/// One policy of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user's text: a directory, or the URL of a server.
    pub directory: PathBuf,
    /// Its label in messages, samples and metrics: the last component of its directory, or all of it where two policies would
    /// have the same label.
    pub name: String,
    /// The text that an absent agent says every time.
    pub said: Option<String>,
}

/// The policies of a command line and the agents they own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    owners: Vec<Owner>,
    /// By agent; `None` stands for all others.
    by_agent: BTreeMap<Option<String>, usize>,
}

impl Owner {
    /// Returns true if it is an OpenAI-compatible server, by its URL.
    pub fn is_server(&self) -> bool {
        is_url(&self.directory)
    }

    /// Returns true if it is a directory.
    pub fn has_weights(&self) -> bool {
        !self.is_server() && self.said.is_none()
    }
}

fn is_url(text: &Path) -> bool {
    record::address::is_server(&text.to_string_lossy())
}

impl Ownership {
    /// [`Ownership::parse`] for a program that needs weights.
    ///
    /// # Errors
    /// The errors of [`Ownership::parse`], and a server instead of a directory (exit 2).
    pub fn of_directories(flag: &str, values: &[String]) -> Result<Ownership> {
        let ownership = Ownership::parse(flag, values)?;
        match ownership.owners.iter().find(|owner| owner.is_server()) {
            None => Ok(ownership),
            Some(Owner { directory, .. }) => Err(Failure::usage(format!(
                "{flag} {}: a server's policy is not trained",
                directory.display()
            ))
            .hint("leave it out here: only rollout plays with servers, and their answers are not `sample` lines")),
        }
    }

    /// Returns true if a server plays an agent, or nobody: it has no weights.
    pub fn is_served(&self, agent: &str) -> bool {
        self.of(agent).is_some_and(|owner| !self.owners[owner].has_weights())
    }

    /// Puts a text in the place of an agent's policy.
    pub fn silence(&mut self, agent: &str, text: &str) {
        let owner =
            Owner { directory: PathBuf::new(), name: "absent".to_owned(), said: Some(text.to_owned()) };
        self.owners.push(owner);
        self.by_agent.insert(Some(agent.to_owned()), self.owners.len() - 1);
    }

    /// Parses the values of `flag`. `AGENT=DIR` owns that agent; a bare `DIR` owns all other agents. Values with the same
    /// directory are one policy.
    ///
    /// # Errors
    /// An agent named twice, two bare directories (exit 2).
    pub fn parse(flag: &str, values: &[String]) -> Result<Ownership> {
        let mut ownership = Ownership { owners: Vec::new(), by_agent: BTreeMap::new() };
        for value in values {
            // A path may contain an equals sign; an agent's name contains no slash.
            let (agent, directory) = match value.split_once('=') {
                Some((agent, directory)) if !agent.contains('/') => (Some(agent), directory),
                _ => (None, value.as_str()),
            };
            if directory.is_empty() || agent == Some("") {
                return Err(Failure::usage(format!("{flag} {value}: not [AGENT=]DIR")));
            }
            let owner = ownership.add(Path::new(directory));
            if ownership.by_agent.insert(agent.map(str::to_owned), owner).is_some() {
                let whom = agent.map_or_else(|| "all agents".to_owned(), |agent| format!("agent {agent:?}"));
                return Err(Failure::usage(format!("{flag} is given twice for {whom}"))
                    .hint(format!("name the agents: {flag} tool=run/tool {flag} planner=run/planner")));
            }
        }
        ownership.tell_apart();
        Ok(ownership)
    }

    fn add(&mut self, directory: &Path) -> usize {
        let place = |directory: &Path| directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let same = |known: &Owner| place(&known.directory) == place(directory);
        self.owners.iter().position(same).unwrap_or_else(|| {
            let name = last_part(directory);
            self.owners.push(Owner { directory: directory.to_owned(), name, said: None });
            self.owners.len() - 1
        })
    }

    /// Labels policies that share a name with their whole directories.
    fn tell_apart(&mut self) {
        let short: Vec<String> = self.owners.iter().map(|owner| owner.name.clone()).collect();
        for owner in &mut self.owners {
            if short.iter().filter(|&other| *other == owner.name).count() > 1 {
                owner.name = owner.directory.display().to_string();
            }
        }
    }

    /// The policies, each once, in the order of the command line.
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// The policy, as an index into [`Ownership::owners`], that owns an agent.
    pub fn of(&self, agent: &str) -> Option<usize> {
        self.by_agent.get(&Some(agent.to_owned())).or_else(|| self.by_agent.get(&None)).copied()
    }

    /// Agents that are named explicitly, with the index of their policy.
    pub fn named(&self) -> impl Iterator<Item = (&str, usize)> {
        self.by_agent.iter().filter_map(|(agent, &policy)| Some((agent.as_deref()?, policy)))
    }
}

fn last_part(directory: &Path) -> String {
    if is_url(directory) {
        // Host, port and path; settings follow.
        let text = directory.to_string_lossy();
        let place = text.split_once("://").map_or(&*text, |(_, place)| place);
        return place.split('?').next().unwrap_or(place).trim_end_matches('/').to_owned();
    }
    let whole = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    whole.file_name().map_or_else(|| whole.display().to_string(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Result<Ownership> {
        Ownership::parse("--policy", &values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn agents_of_one_directory_share_an_owner() {
        let one = parse(&["run/all"]).unwrap();
        assert_eq!((one.of("tool"), one.of("planner")), (Some(0), Some(0)));
        let two = parse(&["tool=run/a", "planner=run/b", "judge=run/a"]).unwrap();
        let directories: Vec<&Path> = two.owners().iter().map(|owner| owner.directory.as_path()).collect();
        assert_eq!(directories, [Path::new("run/a"), Path::new("run/b")]);
        assert_eq!(
            (two.of("tool"), two.of("planner"), two.of("judge"), two.of("x")),
            (Some(0), Some(1), Some(0), None)
        );
        let rest = parse(&["tool=a", "b"]).unwrap();
        assert_eq!((rest.of("tool"), rest.of("x")), (Some(0), Some(1)));
        assert_eq!(parse(&["./odd=name"]).unwrap().owners()[0].directory, Path::new("./odd=name"));
        assert_eq!(parse(&["/", "tool=/tmp/.."]).unwrap().owners().len(), 1);
        assert_eq!(parse(&[]).unwrap().of("tool"), None);
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for values in [&["a", "b"][..], &["x=a", "x=b"], &["x=a", "x=a"], &["=a"], &["a="]] {
            assert_eq!(parse(values).unwrap_err().code, 2, "{values:?}");
        }
    }

    #[test]
    fn a_policy_is_called_after_its_directory() {
        let names = |values: &[&str]| -> Vec<String> {
            parse(values).unwrap().owners().iter().map(|owner| owner.name.clone()).collect()
        };
        assert_eq!(names(&["tool=run/tool", "planner=run/other/"]), ["tool", "other"]);
        assert_eq!(names(&["run/shared"]), ["shared"]);
        assert_eq!(names(&["tool=a/policy", "planner=b/policy"]), ["a/policy", "b/policy"]);
    }

    #[test]
    fn an_absent_agent_has_no_weights() {
        let mut team = parse(&["run/shared"]).unwrap();
        team.silence("tool", "wait");
        assert_eq!((team.of("tool"), team.of("planner")), (Some(1), Some(0)));
        assert_eq!((team.is_served("tool"), team.is_served("planner")), (true, false));
        assert_eq!(team.owners()[1].said.as_deref(), Some("wait"));
    }

    #[test]
    fn a_server_is_called_after_its_place_and_is_not_trained() {
        let values = ["tool=run/tool", "planner=http://localhost:8000/v1/?model=a/b&max_tokens=3"];
        let team = parse(&values).unwrap();
        assert_eq!((team.owners()[0].is_server(), team.owners()[1].is_server()), (false, true));
        assert_eq!(
            (team.is_served("tool"), team.is_served("planner"), team.is_served("x")),
            (false, true, false)
        );
        assert_eq!(team.owners()[1].name, "localhost:8000/v1");
        assert!(parse(&["https://host/v1?model=a=b"]).unwrap().is_served("anybody"));
        let refused = Ownership::of_directories("--policy", &values.map(str::to_owned)).unwrap_err();
        assert_eq!(refused.code, 2);
    }

    #[test]
    fn messages_name_the_flag() {
        let failure = Ownership::parse("--reference", &["x=a".to_owned(), "x=b".to_owned()]).unwrap_err();
        assert_eq!(failure.message, "--reference is given twice for agent \"x\"");
    }
}
