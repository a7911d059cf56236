//! What the members of a group have in common. A new grouping is one arm here.

use clap::ValueEnum;
use record::sample::{Field, Sample};

/// The groupings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// One agent at one turn of one episode (AT-GRPO, arXiv 2510.11062)
    AgentTurn,
    /// One agent of one episode, all turns together
    Agent,
    /// One turn of one episode, all agents together
    Turn,
    /// All samples of one episode
    Episode,
    /// All samples of one task, over all its episodes (GRPO, arXiv 2402.03300)
    Task,
    /// Reserved for samples that are rewarded jointly (MAGRPO, arXiv 2508.04652)
    #[value(hide = true)]
    Joint,
}

impl By {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            By::AgentTurn => "agent-turn",
            By::Agent => "agent",
            By::Turn => "turn",
            By::Episode => "episode",
            By::Task => "task",
            By::Joint => "joint",
        }
    }

    /// Whether the members of a group are siblings: candidates for one action in one state.
    pub fn siblings(self) -> bool {
        self == By::AgentTurn
    }

    /// The fields that the key is made of, beyond those that every grouping needs.
    pub fn fields(self) -> &'static [Field] {
        match self {
            By::Task => &[Field::Task],
            _ => &[],
        }
    }

    /// The group that a sample belongs to. The sample has [`By::fields`], `episode`, `turn` and `agent`.
    pub fn key(self, sample: &Sample) -> String {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (episode, agent) = (text(&sample.episode), text(&sample.agent));
        let turn = sample.turn.unwrap_or_default();
        match self {
            By::AgentTurn | By::Joint => format!("{episode}/{agent}/{turn}"),
            By::Agent => format!("{episode}/{agent}"),
            By::Turn => format!("{episode}/{turn}"),
            By::Episode => episode,
            By::Task => text(&sample.task),
        }
    }
}
