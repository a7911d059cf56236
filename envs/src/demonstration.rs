//! What demonstrations of all environments have in common: drawing a demonstrator by its share, and writing
//! what it says as a sample.

use record::line::Task;
use record::philox::Draws;
use record::sample::{Message, Sample};

use crate::environment::Demonstration;

impl Demonstration {
    /// A kind of demonstrator, drawn by its share.
    pub fn kind(&self, draws: &mut Draws) -> &str {
        let mut left = f64::from(draws.uniform());
        for (kind, share) in &self.mix {
            if left < *share {
                return kind;
            }
            left -= share;
        }
        // Shares that sum to 1 in decimals may sum to a little less in binary.
        self.mix.iter().rev().find(|(_, share)| *share > 0.0).map_or("", |(kind, _)| kind)
    }
}

/// What `agent` says to `prompt` at turn 0 of `episode`, as text.
pub fn sample(task: &Task, episode: &str, agent: &str, prompt: Vec<Message>, completion: String) -> Sample {
    Sample {
        env: Some(task.env.clone()),
        task: Some(task.task.clone()),
        episode: Some(episode.to_owned()),
        turn: Some(0),
        agent: Some(agent.to_owned()),
        branch: Some(0),
        branches: Some(1),
        id: Some(format!("{episode}/0/{agent}/0")),
        prompt: Some(prompt),
        completion: Some(completion),
        finish_reason: Some("stop".to_owned()),
        ..Sample::default()
    }
}
