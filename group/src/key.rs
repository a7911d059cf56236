//! The group key: the fields that the members of a group share. A new grouping is one variant and its arms.

use std::borrow::Cow;

use clap::ValueEnum;
use record::sample::Sample;
use record::text::Text;

/// The groupings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// One agent at one turn and node of one episode (AT-GRPO, arXiv 2510.11062; MAGRPO, arXiv 2508.04652)
    AgentTurn,
    /// One agent of one episode, all turns together
    Agent,
    /// One turn of one episode, all agents together
    Turn,
    /// All samples of one episode
    Episode,
    /// All samples of one task, over all its episodes (GRPO, arXiv 2402.03300)
    Task,
}

impl By {
    /// Returns true if the members of a group are siblings: candidates for one action in one state.
    pub fn siblings(self) -> bool {
        self == By::AgentTurn
    }

    /// The parts of a sample's group key; joined by `/` they are the group's name. The sample has
    /// `episode`, `turn` and `agent`, and for [`By::Task`] `task`.
    pub fn parts<'a>(self, sample: &'a Sample) -> Vec<Cow<'a, str>> {
        let text = |field: &'a Option<Text>| Cow::Borrowed(field.as_deref().unwrap_or_default());
        let (episode, agent) = (text(&sample.episode), text(&sample.agent));
        let turn = Cow::Owned(sample.turn.unwrap_or_default().to_string());
        match self {
            By::AgentTurn => {
                let node = sample.node.as_deref().map(Cow::Borrowed);
                [Some(episode), node, Some(agent), Some(turn)].into_iter().flatten().collect()
            }
            By::Agent => vec![episode, agent],
            By::Turn => vec![episode, turn],
            By::Episode => vec![episode],
            By::Task => vec![text(&sample.task)],
        }
    }
}
