//! The random streams of one task.
//!
//! A stream is keyed by the seed, the step, the task, the task's occurrence among the tasks so far, the turn, the agent,
//! the branch, and below the root of a tree of joint actions the node; the position in a completion is the counter. So random numbers never depend on the number of threads, on
//! the rest of the batch or on the order in which episodes finish.

use record::philox::{Draws, Part, Stream};

use crate::episode::joint::Node;

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

    /// The stream that samples the completion of `branch` at `node`.
    pub fn completion(&self, node: &Node, turn: u32, agent: &str, branch: u32) -> Stream {
        self.named("completion", node, turn, agent, u64::from(branch))
    }

    /// The random numbers that pick a candidate with `--select random`.
    pub fn choice(&self, turn: u32, agent: &str) -> Draws {
        Draws::new(self.named("choice", &Node::default(), turn, agent, 0))
    }

    /// The random numbers that pick a joint action at `node` with `--select random`.
    pub fn joint_choice(&self, turn: u32, node: &Node) -> Draws {
        Draws::new(self.named("joint", node, turn, "", 0))
    }

    /// The random numbers that pick the version of an opponent.
    pub fn opponent(&self, agent: &str) -> Draws {
        Draws::new(self.named("opponent", &Node::default(), 0, agent, 0))
    }

    fn named(&self, purpose: &str, node: &Node, turn: u32, agent: &str, branch: u64) -> Stream {
        let mut parts = vec![
            Part::Text(purpose),
            Part::Number(self.step),
            Part::Text(&self.task),
            Part::Number(self.occurrence),
            Part::Number(u64::from(turn)),
            Part::Text(agent),
            Part::Number(branch),
        ];
        // Empty at the root, so that draws there do not depend on --joint.
        parts.extend(node.0.iter().map(|&index| Part::Number(u64::from(index))));
        Stream::named(self.seed, &parts)
    }
}
