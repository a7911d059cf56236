//! Assigns trees to micro-batches and micro-batches to streams.
//!
//! Micro-batches are independent, so streams take them without barriers. To give the same bytes for any
//! number of streams, the cut into micro-batches depends on the trees alone, and gradients are added in the
//! order of the micro-batches. Several streams sum each micro-batch's gradient in a buffer first; at most one
//! more buffer than streams exists at a time. A single stream, as in large models ([`super::memory`]), needs
//! no buffer.

use crate::backend::add_and_clear;
use crate::tree::Tree;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Values kept for the backward pass that a micro-batch aims at: 32 MiB of f32.
const KEPT_VALUES: usize = 8 << 20;
/// Range of the tokens of a micro-batch, if there are enough tokens: enough rows for matrix products to reach
/// their speed, few enough to stay near the caches.
const TOKENS: Range<usize> = 256..4096;
/// Least number of micro-batches per call, if each then has [`SHARED_TOKENS`]: threads need something to
/// share. A smaller number is a power of two, so that threads finish together.
const SHARES: usize = 8;
/// Least tokens of a micro-batch if all threads have little work: products are slightly slower, but no thread
/// waits.
const SHARED_TOKENS: usize = 160;
/// Values kept per token from which a model is wide: all threads share one micro-batch at a time ([`super::memory`]).
const WIDE: usize = 128 << 10;
/// Most tokens in a micro-batch of a wide model, unless a single tree is larger. Each micro-batch packs all weights again, which took
/// a fifth of the time at 160 tokens.
const WIDE_TOKENS: usize = 512;

/// Target size of a micro-batch in tokens, for `total` tokens.
fn aim(total: usize, kept_values: usize) -> usize {
    let kept = (KEPT_VALUES / kept_values.max(1)).clamp(TOKENS.start, TOKENS.end);
    kept.min(total.div_ceil(SHARES).max(SHARED_TOKENS))
}

/// Number of micro-batches for `total` tokens.
fn parts(total: usize, kept_values: usize) -> usize {
    let aim = aim(total, kept_values);
    let parts = ((total + aim / 2) / aim).max(1);
    if parts < SHARES { 1 << parts.ilog2() } else { parts }
}

/// Tokens of a micro-batch at most, of up to `total` in trees of up to `largest`.
pub(super) fn most_tokens(total: usize, largest: usize, kept_values: usize) -> usize {
    if kept_values >= WIDE {
        return total.min(WIDE_TOKENS.max(largest));
    }
    // Rounding leaves a part up to twice the least target, or an eighth more than a larger one. The middles
    // of a micro-batch's trees lie in its part, so two or more trees exceed the part by at most its length.
    let aim = aim(total, kept_values);
    let part = (aim + aim / 8).max(2 * SHARED_TOKENS);
    total.min((part + largest).min(2 * part).max(largest))
}

/// Cuts trees into micro-batches: equal parts of all tokens, with each tree in the part of its middle; or,
/// for a wide model, all consecutive trees that fit [`WIDE_TOKENS`].
pub(super) fn micro_batches(trees: &[Tree], kept_values: usize) -> Vec<Range<usize>> {
    if kept_values >= WIDE {
        return filled(trees);
    }
    let total: usize = trees.iter().map(Tree::len).sum();
    let parts = parts(total, kept_values);
    let mut batches: Vec<Range<usize>> = Vec::with_capacity(parts);
    let (mut before, mut last) = (0, None);
    for (index, tree) in trees.iter().enumerate() {
        let part = (2 * before + tree.len()) * parts / (2 * total).max(1);
        match batches.last_mut().filter(|_| last == Some(part)) {
            Some(batch) => batch.end = index + 1,
            None => batches.push(index..index + 1),
        }
        (before, last) = (before + tree.len(), Some(part));
    }
    batches
}

/// Micro-batches of consecutive trees that fit [`WIDE_TOKENS`]; a larger tree is one by itself.
fn filled(trees: &[Tree]) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    let mut tokens = 0;
    for (index, tree) in trees.iter().enumerate() {
        tokens += tree.len();
        match batches.last_mut().filter(|_| tokens <= WIDE_TOKENS) {
            Some(batch) => batch.end = index + 1,
            None => {
                batches.push(index..index + 1);
                tokens = tree.len();
            }
        }
    }
    batches
}

/// Runs `work` on `threads` threads, including this one; each takes the next remaining item. Fewer threads
/// run if the system starts no more.
pub(crate) fn on_threads(threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        let started = |_: &usize| std::thread::Builder::new().spawn_scoped(scope, &work).is_ok();
        (1..threads).take_while(started).for_each(drop);
        work();
    });
}

/// Locks, whether or not another thread has panicked: its panic ends the scope anyway.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct State {
    /// The next micro-batch to hand out.
    next: usize,
    /// The next whose gradient is added to the total.
    added: usize,
    adding: bool,
    /// Gradients that wait for an earlier one.
    waiting: BTreeMap<usize, Vec<f32>>,
    /// Buffers of zeros.
    free: Vec<Vec<f32>>,
    allocated: usize,
}

/// Gradients of single micro-batches that exist at a time, for `streams` streams.
pub(super) fn buffers(streams: usize) -> usize {
    if streams > 1 { streams + 1 } else { 0 }
}

/// Hands out micro-batches with a zeroed gradient each, and adds the gradients in order.
pub(super) struct Reduction<'a> {
    batches: usize,
    length: usize,
    buffers: usize,
    state: Mutex<State>,
    freed: Condvar,
    total: Mutex<&'a mut Vec<f32>>,
}

impl<'a> Reduction<'a> {
    /// A reduction of the gradients of `batches` micro-batches into `total`, for `streams` streams.
    pub(super) fn new(batches: usize, streams: usize, total: &'a mut Vec<f32>) -> Reduction<'a> {
        let (length, total) = (total.len(), Mutex::new(total));
        Reduction {
            batches,
            length,
            buffers: buffers(streams),
            state: Mutex::default(),
            freed: Condvar::new(),
            total,
        }
    }

    /// The next micro-batch and zeros to sum its gradient in; `None` when all are handed out.
    pub(super) fn take(&self) -> Option<(usize, Vec<f32>)> {
        let mut state = lock(&self.state);
        loop {
            if state.next == self.batches {
                return None;
            }
            let buffer = match state.free.pop() {
                Some(buffer) => Some(buffer),
                None if state.allocated < self.buffers => {
                    state.allocated += 1;
                    Some(vec![0.0; self.length])
                }
                None => None,
            };
            if let Some(buffer) = buffer {
                state.next += 1;
                return Some((state.next - 1, buffer));
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a micro-batch's gradient and adds whatever is next in order.
    pub(super) fn finish(&self, batch: usize, gradient: Vec<f32>) {
        let mut state = lock(&self.state);
        state.waiting.insert(batch, gradient);
        while !state.adding {
            let added = state.added;
            let Some(mut gradient) = state.waiting.remove(&added) else { break };
            state.adding = true;
            drop(state);
            add_and_clear(&mut gradient, &mut lock(&self.total));
            state = lock(&self.state);
            state.adding = false;
            state.added += 1;
            state.free.push(gradient);
            self.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_tree_is_in_one_micro_batch() {
        for count in [0, 1, 5, 100] {
            let trees: Vec<Tree> =
                (0..count).map(|size| Tree { ids: vec![0; size * 7], ..Tree::default() }).collect();
            for kept_values in [KEPT_VALUES / 1000, WIDE] {
                let batches = micro_batches(&trees, kept_values);
                let flat: Vec<usize> = batches.iter().cloned().flatten().collect();
                assert_eq!(flat, (0..count).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn micro_batches_are_even_and_no_larger_than_was_planned() {
        for (count, size) in [(16, 43), (16, 70), (1, 5000), (32, 380), (7, 33), (100, 9), (1000, 90)] {
            let trees: Vec<Tree> = (0..count)
                .map(|index| Tree { ids: vec![0; size + index * 5 % 4], ..Tree::default() })
                .collect();
            let (total, largest) = (trees.iter().map(Tree::len).sum(), size + 3);
            for kept_values in [1000, 11_280, 400_000] {
                let batches = micro_batches(&trees, kept_values);
                let sizes: Vec<usize> =
                    batches.iter().map(|batch| trees[batch.clone()].iter().map(Tree::len).sum()).collect();
                let [least, most] = [sizes.iter().min(), sizes.iter().max()].map(|size| *size.expect("one"));
                assert!(most <= most_tokens(total, largest, kept_values), "{count} of {size}: {sizes:?}");
                assert!(most <= most_tokens(2 * total, largest, kept_values), "{count} of {size}: {sizes:?}");
                let enough = match kept_values >= WIDE {
                    // No two neighbors would have fitted.
                    true => sizes.windows(2).all(|pair| pair[0] + largest > WIDE_TOKENS),
                    false => {
                        most - least <= 2 * largest
                            && (sizes.len() >= SHARES || sizes.len().is_power_of_two())
                    }
                };
                assert!(enough, "{count} of {size}: {sizes:?}");
            }
        }
    }

    #[test]
    fn gradients_are_added_in_order_whatever_the_streams() {
        let sum = |threads: usize| {
            let mut total = vec![0.0f32; 3];
            let reduction = Reduction::new(40, threads.max(2), &mut total);
            let turn = AtomicUsize::new(0);
            on_threads(threads, || {
                while let Some((batch, mut gradient)) = reduction.take() {
                    assert_eq!(gradient, [0.0; 3]);
                    // Some dawdle, so that later ones finish first.
                    if turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
                        std::thread::yield_now();
                    }
                    gradient.fill(1.0 / (1.0 + batch as f32).powi(3));
                    reduction.finish(batch, gradient);
                }
            });
            drop(reduction);
            total
        };
        let one = sum(1);
        assert!(one[0] > 1.0);
        for threads in [2, 3, 8] {
            assert_eq!(one, sum(threads));
        }
    }
}
