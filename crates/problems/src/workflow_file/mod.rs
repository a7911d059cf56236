//! Workflows as data: a TOML file says who acts when, who sees what, and who has the last word, for any task with a
//! checker ([`Checker`]).
//!
//! [`Definition`] is the file, [`read`] reads and checks it, [`state`] plays it, [`prompt`] writes prompts. The state of an
//! episode holds the whole definition, so that `envs step` needs no file. Left out: the compact encoding of tiny policies,
//! and demonstrations.

mod prompt;
mod read;
pub mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

use environment::Workflow;
use record::failure::Result;
use serde::{Deserialize, Serialize};

pub use read::{is_file, load};

/// A task whose answers a program can check.
pub trait Checker: Send + Sync {
    /// The problem as every agent is shown it.
    fn problem(&self) -> String;
    /// The request that says how an answer is written.
    fn form(&self) -> &'static str;
    /// True for short prompts, for small models.
    fn is_brief(&self) -> bool;
    /// The answer in `text`, if one can be found.
    fn answer(&self, text: &str) -> Option<String>;
    /// The worth of an answer in [0, 1]; 1: right.
    ///
    /// # Errors
    /// No sandbox to run a program in: unavailable.
    fn grade(&self, answer: &str) -> Result<f64>;
    /// Returns true if two answers mean the same.
    fn same(&self, left: &str, right: &str) -> bool;
    /// A right answer as an agent would write it, if one is known.
    fn solution(&self) -> Option<String>;
}

/// The content of a workflow file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Roles in the order in which they act in a turn; those in an inner list act at once.
    order: Vec<Stage>,
    /// The role whose answer counts; of several agents the most frequent answer.
    last: String,
    /// Turns in an episode.
    #[serde(default = "one")]
    turns: u32,
    /// The role whose verdict `right` ends the episode.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<String>,
    role: BTreeMap<String, Role>,
}

/// Roles that act at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a role or a list of roles")]
enum Stage {
    One(String),
    Several(Vec<String>),
}

/// What agents of a role do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Role {
    /// Agents of this role, who act at once.
    #[serde(default = "one")]
    count: u32,
    /// Roles whose last texts are shown.
    #[serde(default)]
    sees: Vec<String>,
    #[serde(default)]
    gives: Gives,
    #[serde(default)]
    when: When,
    /// The request, in place of the default one; `{form}` in it says how an answer is written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    ask: String,
}

/// What an agent's text is read for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Gives {
    /// An answer to the problem.
    #[default]
    Answer,
    /// True if the answer that it sees is right.
    Verdict,
    /// Nothing: it is shown to others.
    Note,
}

/// The turns in which a role acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum When {
    #[default]
    Always,
    First,
    Last,
}

fn one() -> u32 {
    1
}

impl Stage {
    fn roles(&self) -> &[String] {
        match self {
            Stage::One(role) => std::slice::from_ref(role),
            Stage::Several(roles) => roles,
        }
    }
}

impl Definition {
    /// The roles with the number of their stage, from 0.
    fn in_order(&self) -> impl Iterator<Item = (usize, &String)> {
        let stages = self.order.iter().enumerate();
        stages.flat_map(|(stage, roles)| roles.roles().iter().map(move |role| (stage, role)))
    }

    /// The agents of a role: its name, or `NAME-1` to `NAME-N`.
    fn agents_of(&self, role: &str) -> Vec<String> {
        match self.role.get(role).map_or(1, |role| role.count) {
            1 => vec![role.to_owned()],
            count => (1..=count).map(|number| format!("{role}-{number}")).collect(),
        }
    }

    /// The role that `agent` has.
    fn role_of(&self, agent: &str) -> Option<(&String, &Role)> {
        self.role.iter().find(|(name, role)| match role.count {
            1 => *name == agent,
            count => agent
                .strip_prefix(name.as_str())
                .and_then(|rest| rest.strip_prefix('-')?.parse::<u32>().ok())
                .is_some_and(|number| (1..=count).contains(&number)),
        })
    }

    /// The agents and their order, under the name `name`.
    pub fn workflow(&self, name: &str) -> Result<Arc<Workflow>> {
        let agents = |stage: &Stage| stage.roles().iter().flat_map(|role| self.agents_of(role)).collect();
        Workflow::staged(name, self.order.iter().map(agents).collect())
    }
}
