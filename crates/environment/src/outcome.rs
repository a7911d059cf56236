//! What an action earns.

use std::collections::BTreeMap;

use record::sample::Rewards;
use serde::Serialize;

/// How an action was generated, for programs that answer for a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Generation {
    /// `stop`, or `length` if the action was cut at the token limit.
    pub finish_reason: &'static str,
    /// Tokens of the prompt, where they are known.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the action, where they are known.
    pub completion_tokens: Option<u64>,
}

/// The consequence of one agent's action.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The team's and the agent's local reward, each within [`crate::State::reward_range`].
    pub rewards: Rewards,
    /// Local rewards by agent after a joint action, or of opponents at the end of their game, within the same
    /// range. Empty if `rewards.local` has the value.
    pub locals: BTreeMap<String, f64>,
    /// Components of the rewards, each in [0, 1] before its weight; a component of one agent of a joint
    /// action is named `AGENT.NAME`.
    pub components: BTreeMap<String, f64>,
    /// The episode is over: no agent may act any more.
    pub terminated: bool,
    /// The task is solved. Implies `terminated`.
    pub success: bool,
    /// What people may read about the action, a JSON object as text; no model sees it.
    pub info: Option<String>,
}

impl Outcome {
    /// An outcome after which the episode goes on.
    pub fn new(team: f64, local: f64, components: &[(&str, f64)]) -> Outcome {
        Outcome {
            rewards: Rewards { team, local },
            locals: BTreeMap::new(),
            components: components.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            terminated: false,
            success: false,
            info: None,
        }
    }

    /// The outcome of a joint action that earned the team `team`, from each agent's part: local rewards and
    /// components by agent. `rewards.local` is their mean. It does not end the episode.
    pub fn together(team: f64, parts: &[(&str, Outcome)]) -> Outcome {
        let locals: BTreeMap<String, f64> =
            parts.iter().map(|(agent, part)| ((*agent).to_owned(), part.rewards.local)).collect();
        let local = locals.values().sum::<f64>() / locals.len().max(1) as f64;
        let named = |(agent, part): &(&str, Outcome)| -> Vec<(String, f64)> {
            part.components.iter().map(|(name, value)| (format!("{agent}.{name}"), *value)).collect()
        };
        let components = parts.iter().flat_map(named).collect();
        Outcome { locals, components, ..Outcome::new(team, local, &[]) }
    }

    /// What `agent` earned itself.
    pub fn local_of(&self, agent: &str) -> f64 {
        self.locals.get(agent).copied().unwrap_or(self.rewards.local)
    }
}
