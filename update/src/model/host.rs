//! What the passes hold on the CPU: the counterpart of a device's plan, as an upper bound.

use super::schedule;
use super::workspace::{Counts, Workspace, saved_values};
use crate::backend::cpu_logits_values;
use policy::config::Config;

/// Bytes that all threads together hold beside weights and gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What passes keep and use of the largest micro-batch.
    pub activations: u64,
    /// A block of logits.
    pub logits: u64,
    /// Angles of the rotary embedding.
    pub other: u64,
    /// Tokens of a micro-batch at most.
    pub tokens: usize,
}

/// Threads that have work of their own in a training: no more than there are partial gradients.
pub fn workers(threads: usize) -> usize {
    threads.min(schedule::CHUNKS)
}

/// What so many threads hold for `tokens` of work in trees of up to `largest`.
pub fn work(config: &Config, tokens: usize, largest: usize, threads: usize, backward: bool) -> Work {
    let at_once = schedule::most_tokens(tokens, largest, saved_values(config));
    let counts = Counts { tokens: at_once, scored: at_once };
    let mut lengths = Workspace::lengths(config, None, counts, false, backward);
    let mut values: usize = lengths.activations().into_iter().flatten().map(|length| *length).sum();
    values += lengths.f32_buffers().into_iter().flatten().map(|length| *length).sum::<usize>();
    let bytes = |values: usize| (values * size_of::<f32>() * threads) as u64;
    Work {
        activations: bytes(values),
        logits: bytes(cpu_logits_values(at_once, config.vocab_size)),
        other: bytes(largest.next_power_of_two() * config.head_dim),
        tokens: at_once,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_partial_gradients_take_no_more_memory() {
        assert_eq!([1, 2, 16, 17, 192].map(workers), [1, 2, 16, 16, 16]);
    }
}
