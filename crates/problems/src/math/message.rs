//! Agents by what they do, and what one said.

use serde::{Deserialize, Serialize};

/// An agent's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Thinks; so does a solver.
    Reasoner,
    /// Checks the solution that it is shown.
    Checker,
    /// Writes a program.
    Tool,
    /// Chooses among the answers of the others.
    Judge,
}

impl Role {
    /// The role of an agent: its name without a number.
    pub fn of(agent: &str) -> Role {
        match agent.split('-').next() {
            Some("tool") => Role::Tool,
            Some("judge") => Role::Judge,
            Some("checker") => Role::Checker,
            _ => Role::Reasoner,
        }
    }
}

/// An agent's last message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentMessage {
    /// The text shown to others.
    pub shown: String,
    /// Its answer as written, if there is one.
    pub answer: Option<String>,
    /// It ends the episode: the judge chose it, or the agent has said it twice.
    #[serde(default)]
    pub stands: bool,
}
