//! Anchors: sets of samples of one agent in one task with equal prompts, in any episode and turn (GiGPO,
//! arXiv 2505.10978, section 4.2). The paper compares states of the environment; here prompts are
//! compared token by token.
//!
//! An anchor is named after its first sample. Left out: prompts that are merely similar.

use std::collections::HashMap;

use record::sample::Sample;
use record::text::Text;

/// Task, agent and prompt.
type Key = (String, String, Vec<u32>);

/// The anchors of a stream.
#[derive(Debug, Default)]
pub struct Anchors {
    by_prompt: HashMap<Key, usize>,
    /// Each anchor's name and number of samples.
    anchors: Vec<(String, u64)>,
}

impl Anchors {
    /// The index of the anchor of `sample`, which must have `id`, `task`, `agent` and `prompt_ids`.
    pub fn of(&mut self, sample: &Sample) -> usize {
        let text = |field: &Option<Text>| field.as_deref().unwrap_or_default().to_owned();
        let prompt = sample.prompt_ids.clone().unwrap_or_default();
        let next = self.anchors.len();
        let index = *self.by_prompt.entry((text(&sample.task), text(&sample.agent), prompt)).or_insert(next);
        if index == next {
            self.anchors.push((text(&sample.id), 0));
        }
        index
    }

    /// Counts a sample that will be written.
    pub fn join(&mut self, index: usize) {
        self.anchors[index].1 += 1;
    }

    /// An anchor's name and number of samples.
    pub fn anchor(&self, index: usize) -> (&str, u64) {
        let (name, size) = &self.anchors[index];
        (name, *size)
    }

    /// Number of anchors.
    pub fn len(&self) -> usize {
        self.anchors.iter().filter(|(_, size)| *size > 0).count()
    }
}
