//! Demonstrations: which to write, and an action of an expert as a sample.

use record::line::Task;
use record::philox::{Draws, Part, Stream};
use record::sample::{Message, Sample};

use crate::selection::Selection;

/// Settings of demonstrations: text of imperfect experts, to warm up a policy.
#[derive(Clone, Debug)]
pub struct Demonstration {
    /// The tasks to demonstrate.
    pub tasks: Selection,
    /// The workflow whose agents are demonstrated.
    pub workflow: String,
    /// Share of each kind of demonstrator, in the order given; the shares sum to 1.
    pub mix: Vec<(String, f64)>,
    /// States demonstrated for each task.
    pub states: u32,
    /// Probability that an agent adopts the previous agent's action instead of choosing one.
    pub follow: f64,
}

impl Demonstration {
    /// The random numbers of the demonstrations of the task at `index`.
    pub fn draws(&self, environment: &str, index: u64) -> Draws {
        let name = [Part::Text(environment), Part::Text("demo"), Part::Number(index)];
        Draws::new(Stream::named(self.tasks.seed, &name))
    }

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

/// The sample of `agent` answering `prompt` at turn 0 of `episode`, as text.
pub fn sample(
    task: &Task,
    episode: &str,
    agent: &str,
    prompt: Vec<Message>,
    completion: String,
) -> Sample<'static> {
    Sample {
        env: Some(task.env.clone().into()),
        task: Some(task.task.clone().into()),
        episode: Some(episode.to_owned().into()),
        turn: Some(0),
        agent: Some(agent.to_owned().into()),
        branch: Some(0),
        branches: Some(1),
        id: Some(format!("{episode}/0/{agent}/0").into()),
        prompt: Some(prompt),
        completion: Some(completion.into()),
        finish_reason: Some("stop".into()),
        ..Sample::default()
    }
}
