//! The random streams of one task.
//!
//! A stream is keyed by the seed, the step, the task, the task's occurrence among the tasks so far, the turn, the agent and
//! the branch; the position in a completion is the counter. So random numbers never depend on the number of threads, on
//! the rest of the batch or on the order in which episodes finish.

use record::philox::{Draws, Part, Stream};

/// The streams of one task.
#[derive(Clone, Debug)]
pub struct Streams {
    seed: u64,
    step: u64,
    task: String,
    occurrence: u64,
}

impl Streams {
    /// The streams of the `occurrence`-th appearance of `task`, from 0, in the tasks of `step`.
    pub fn new(seed: u64, step: u64, task: &str, occurrence: u64) -> Streams {
        Streams { seed, step, task: task.to_owned(), occurrence }
    }

    /// The stream that samples the completion of `branch`.
    pub fn completion(&self, turn: u32, agent: &str, branch: u32) -> Stream {
        self.named("completion", turn, agent, u64::from(branch))
    }

    /// The random numbers that pick a candidate with `--select random`.
    pub fn choice(&self, turn: u32, agent: &str) -> Draws {
        Draws::new(self.named("choice", turn, agent, 0))
    }

    fn named(&self, purpose: &str, turn: u32, agent: &str, branch: u64) -> Stream {
        Stream::named(
            self.seed,
            &[
                Part::Text(purpose),
                Part::Number(self.step),
                Part::Text(&self.task),
                Part::Number(self.occurrence),
                Part::Number(u64::from(turn)),
                Part::Text(agent),
                Part::Number(branch),
            ],
        )
    }
}

/// The shard, of `count`, that owns `task`: a function of the task alone, so shards neither overlap nor miss any.
pub fn shard_of(task: &str, count: u32) -> u32 {
    Draws::new(Stream::named(0, &[Part::Text("shard"), Part::Text(task)])).below(count)
}
