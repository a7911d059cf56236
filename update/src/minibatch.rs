//! From samples to minibatches, and from a minibatch to packed trees.
//!
//! Tasks are assigned to minibatches round-robin (groups if there are too few tasks, samples if there are too
//! few groups). Later tasks never change earlier assignments, so the first minibatch can begin while later
//! tasks are still played. Within a minibatch samples are ordered by task and group, because those share
//! prefixes, which a tree computes once. Left out: balancing by samples or tokens.

use std::collections::BTreeMap;

use record::philox::{Draws, Part, Stream};

use crate::samples::Samples;
use crate::tree::{Sequence, Tree, pack};

/// Default of `--max-tokens-per-batch`.
pub const DEFAULT_TOKENS: u64 = 4096;

/// How samples are divided into optimizer batches, trees and parts.
#[derive(Clone, Copy, Debug)]
pub struct Batching {
    /// Optimizer steps of an epoch; fewer if there are fewer samples.
    pub minibatches: u64,
    /// Passes over the samples.
    pub epochs: u64,
    /// Deals the tasks to minibatches.
    pub seed: u64,
    /// Tokens computed at once, at most; shared prefixes count once.
    pub tokens: usize,
    /// Parts of an optimizer batch ([`crate::parts`]).
    pub parts: usize,
}

/// A tree of at least this many tokens is closed when the task changes.
const LEAST_TOKENS: usize = 64;

/// The samples of each minibatch of one epoch.
///
/// Tasks are dealt in random order, by an RNG stream for each `step` and `epoch`. There are fewer than `minibatches` if there are
/// fewer samples.
pub fn minibatches(
    samples: &Samples,
    minibatches: usize,
    seed: u64,
    epoch: u64,
    step: u64,
) -> Vec<Vec<usize>> {
    let rows = &samples.rows;
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&index| (rows[index].task, rows[index].group));
    // Number the items to assign, and give each sample the number of its item.
    let numbered = |differ: &dyn Fn(usize, usize) -> bool| -> Vec<usize> {
        let mut number = 0;
        let numbers = (0..order.len()).map(|at| {
            number += usize::from(at > 0 && differ(order[at - 1], order[at]));
            number
        });
        numbers.collect()
    };
    let by_task = numbered(&|a, b| rows[a].task != rows[b].task);
    let by_group = numbered(&|a, b| (rows[a].task, rows[a].group) != (rows[b].task, rows[b].group));
    let by_sample = numbered(&|_, _| true);
    let count = minibatches.min(order.len());
    let enough = |numbers: &Vec<usize>| numbers.last().is_some_and(|&last| last >= count.saturating_sub(1));
    let Some(numbers) = [by_task, by_group, by_sample].into_iter().find(enough) else { return Vec::new() };
    let parts = [Part::Text("update"), Part::Text("minibatches"), Part::Number(step), Part::Number(epoch)];
    let draws = Draws::new(Stream::named(seed, &parts));
    let minibatch_of = assign_round_robin(numbers.last().map_or(0, |&last| last + 1), count, draws);
    let mut dealt = vec![Vec::new(); count];
    order.into_iter().zip(numbers).for_each(|(index, number)| dealt[minibatch_of[number]].push(index));
    dealt
}

/// Assigns `count` items to minibatches round-robin, so later items never change earlier assignments.
fn assign_round_robin(count: usize, minibatches: usize, mut draws: Draws) -> Vec<usize> {
    let mut dealt = Vec::with_capacity(count + minibatches);
    while dealt.len() < count {
        let mut round: Vec<usize> = (0..minibatches).collect();
        draws.shuffle(&mut round);
        dealt.extend(round);
    }
    dealt
}

/// Trees of one temperature, with the samples packed into each.
#[derive(Debug)]
pub struct TreeBatch {
    /// The divisor of the logits.
    pub temperature: f32,
    /// Trees, each within the token limit unless a single sample exceeds it.
    pub trees: Vec<Tree>,
    /// For each tree the samples in it, in the order of its sequences.
    pub members: Vec<Vec<usize>>,
}

impl TreeBatch {
    /// Tokens computed, shared ones once.
    pub fn unique_tokens(&self) -> usize {
        self.trees.iter().map(Tree::len).sum()
    }
}

/// Packs samples into trees of at most `limit` unique tokens, temperatures apart.
///
/// A task has a separate tree, or several if the limit requires it; small tasks share one. A prefix shared by
/// several tasks, such as instructions, is computed once per tree: a small cost, for trees that threads can
/// take one by one. The split depends on the samples only, never on the number of threads, because the order
/// of summation follows it.
pub fn pack_trees(samples: &Samples, order: &[usize], limit: usize) -> Vec<TreeBatch> {
    let mut temperatures: Vec<f32> = Vec::new();
    for &index in order {
        let temperature = samples.rows[index].temperature;
        if !temperatures.contains(&temperature) {
            temperatures.push(temperature);
        }
    }
    let batch = |temperature: f32| {
        let own = order.iter().copied().filter(|&index| samples.rows[index].temperature == temperature);
        let members = tree_members(samples, own, limit);
        TreeBatch { temperature, trees: trees(samples, &members), members }
    };
    temperatures.into_iter().map(batch).collect()
}

/// A tree for each of these sets of samples.
pub fn trees(samples: &Samples, members: &[Vec<usize>]) -> Vec<Tree> {
    members.iter().map(|members| pack(&sequences(samples, members), true)).collect()
}

/// Tokens that the model computes, for memory to be planned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Unique tokens of all samples; shared tokens count once per task.
    pub unique: usize,
    /// Upper bound of the tokens of any tree by [`pack_trees`].
    pub largest_tree: usize,
    /// Tokens of the longest sequence.
    pub longest: usize,
}

/// The sizes of samples that are packed into trees of at most `limit` unique tokens.
pub fn sizes(samples: &Samples, limit: usize) -> Sizes {
    let mut tasks: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, row) in samples.rows.iter().enumerate() {
        tasks.entry(row.task).or_default().push(index);
    }
    let of_task = |members: &Vec<usize>| pack(&sequences(samples, members), true).len();
    let (unique, task) =
        tasks.values().map(of_task).fold((0, 0), |(sum, most), task| (sum + task, most.max(task)));
    let longest = (0..samples.rows.len()).map(|index| computed(&samples.sequence(index))).max().unwrap_or(0);
    // A tree's last task may be a whole one; the tasks before it are smaller than what closes a tree.
    let largest_tree = limit.min(LEAST_TOKENS - 1 + task).min(unique).max(longest);
    Sizes { unique, largest_tree, longest }
}

fn sequences<'a>(samples: &'a Samples, members: &[usize]) -> Vec<Sequence<'a>> {
    members.iter().map(|&index| samples.sequence(index)).collect()
}

/// Tokens of a sequence that the model computes: all but the last.
fn computed(sequence: &Sequence) -> usize {
    sequence.prompt.len() + sequence.completion.len() - 1
}

/// An upper bound of the tokens that a sequence adds to a tree with `before`: it may share more with a third.
fn added(before: &Sequence, sequence: &Sequence) -> usize {
    let (a, b) =
        (before.prompt.iter().chain(before.completion), sequence.prompt.iter().chain(sequence.completion));
    let shared = a.zip(b).take_while(|(x, y)| x == y).count();
    computed(sequence).saturating_sub(shared.min(computed(before)))
}

/// The samples of each tree, for the samples in `order`. A tree that is not the last depends only on earlier
/// samples and on the first sample after it.
pub fn tree_members(samples: &Samples, order: impl Iterator<Item = usize>, limit: usize) -> Vec<Vec<usize>> {
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let mut size = 0;
    for index in order {
        let sequence = samples.sequence(index);
        if let Some(run) = runs.last_mut()
            && let Some(&last) = run.last()
        {
            let fresh = added(&samples.sequence(last), &sequence);
            let another_task = samples.rows[last].task != samples.rows[index].task;
            if size + fresh <= limit && !(another_task && size >= LEAST_TOKENS) {
                run.push(index);
                size += fresh;
                continue;
            }
        }
        runs.push(vec![index]);
        size = computed(&sequence);
    }
    runs
}

#[cfg(test)]
mod tests;
