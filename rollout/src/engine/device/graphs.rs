//! CUDA graphs: runs of one batch shape, captured once and replayed with one call.
//!
//! A run takes some twenty launches per layer, and for small batches decoding is launch-bound. A graph holds all of a run
//! from the first layer to the sampled tokens.
//!
//! The first run of a shape is eager, which loads and allocates what it needs. The second is run, captured, and replayed
//! twice. Both replays must give the same bits, where the attention kernels do ([`super::attention_tier`]), and nearly the
//! tokens of the run, for which a library may have chosen other sums: that finds one that works outside of the capture, or
//! bakes in a value that should be read anew. From the third on the graph is replayed. Where the capture fails or its replay
//! differs, runs of that shape stay eager; the first is reported.

use super::shape::BatchShape;
use crate::engine::request::SampledToken;
use record::failure::{Failure, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The most graphs that are kept: each takes driver memory for its few hundred launches.
const MOST: usize = 64;
/// How far a log-probability of a replay may be from that of the run: what bf16 may round differently. Of the tokens one in
/// eight may be further off, or be another: a draw that falls on the border of two.
const TOLERANCE: f32 = 0.05;

/// The captured graphs of a runner; `G` is the device's handle of one.
pub struct CudaGraphs<G> {
    /// Shapes that were run.
    known: HashMap<BatchShape, Known<G>>,
    enabled: bool,
    /// Whether a shape was given up.
    refused: bool,
}

/// What is known of a shape.
enum Known<G> {
    /// It was run.
    Run,
    /// Its graph.
    Captured(G),
    /// It cannot be captured.
    Eager,
}

/// What to do with a run.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a, G> {
    /// Run it.
    Run,
    /// Run it, capture it, and compare.
    Capture,
    /// Replay this.
    Replay(&'a G),
}

impl<G> CudaGraphs<G> {
    /// No graphs yet; and none at all if `TROUPE_CUDA_GRAPHS` is `off`, to measure what they gain.
    pub fn asked() -> Self {
        let off = std::env::var_os("TROUPE_CUDA_GRAPHS").is_some_and(|value| value == "off");
        CudaGraphs { enabled: !off, ..CudaGraphs::new() }
    }

    /// No graphs yet.
    pub fn new() -> Self {
        CudaGraphs { known: HashMap::new(), enabled: true, refused: false }
    }

    /// What to do with a run of a shape.
    pub fn step(&mut self, shape: &BatchShape) -> Step<'_, G> {
        if !shape.bucket || !self.enabled {
            return Step::Run;
        }
        let captured = |known: &&Known<G>| matches!(known, Known::Captured(_));
        let full = self.known.values().filter(captured).count() >= MOST;
        match self.known.entry(*shape) {
            Entry::Vacant(entry) => {
                entry.insert(Known::Run);
                Step::Run
            }
            Entry::Occupied(entry) => match entry.into_mut() {
                Known::Captured(graph) => Step::Replay(graph),
                Known::Run if !full => Step::Capture,
                Known::Run | Known::Eager => Step::Run,
            },
        }
    }

    /// Keeps the graph of a shape.
    pub fn insert(&mut self, shape: BatchShape, graph: G) {
        self.known.insert(shape, Known::Captured(graph));
    }

    /// Captures a shape no more. True the first time that one is given up.
    pub fn give_up(&mut self, shape: &BatchShape) -> bool {
        self.known.insert(*shape, Known::Eager);
        !std::mem::replace(&mut self.refused, true)
    }

    /// Captures and replays no more.
    pub fn disable(&mut self) {
        *self = CudaGraphs { enabled: false, ..CudaGraphs::new() };
    }
}

/// Checks two replays of a captured run against each other and against the run. `exact`: one input always gives the same bits.
///
/// # Errors
/// The sentence that says what differs.
pub fn verify(run: &[SampledToken], [first, second]: &[Vec<SampledToken>; 2], exact: bool) -> Result<()> {
    let differing = |first: &[SampledToken], second: &[SampledToken], alike: fn(&Pair) -> bool| {
        first.iter().zip(second).filter(|pair| !alike(pair)).count()
    };
    let count = run.len();
    let (replays, most) = match exact {
        true => (differing(first, second, same), 0),
        false => (differing(first, second, near), count / 8),
    };
    if replays > most {
        return Err(Failure::work(format!(
            "two replays of a captured run differ in {replays} of {count} tokens"
        )));
    }
    let others = differing(run, first, near);
    if others > count / 8 {
        return Err(Failure::work(format!(
            "the replay of a captured run differs in {others} of {count} tokens"
        )));
    }
    Ok(())
}

/// A token in two runs.
type Pair<'a> = (&'a SampledToken, &'a SampledToken);

fn same((one, other): &Pair) -> bool {
    (one.id, one.logprob.to_bits()) == (other.id, other.logprob.to_bits())
}

fn near(pair: &Pair) -> bool {
    let (one, other) = pair;
    same(pair) || (one.id == other.id && (one.logprob - other.logprob).abs() <= TOLERANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(rows: usize, bucket: bool) -> BatchShape {
        BatchShape {
            rows,
            sequences: rows,
            logit_rows: rows,
            requests: rows,
            width: 1,
            bounds: [1, 512, 1],
            bucket,
        }
    }

    #[test]
    fn a_shape_is_captured_when_it_comes_again() {
        let mut graphs = CudaGraphs::new();
        let (one, two) = (shape(1, true), shape(2, true));
        assert_eq!(graphs.step(&one), Step::Run);
        assert_eq!(graphs.step(&two), Step::Run);
        assert_eq!(graphs.step(&one), Step::Capture);
        graphs.insert(one, "one");
        assert_eq!(graphs.step(&one), Step::Replay(&"one"));
        assert_eq!(graphs.step(&two), Step::Capture);
        for _ in 0..3 {
            assert_eq!(graphs.step(&shape(1, false)), Step::Run);
        }
        graphs.disable();
        for _ in 0..3 {
            assert_eq!(graphs.step(&one), Step::Run);
        }
    }

    #[test]
    fn a_shape_that_cannot_be_captured_is_not_tried_again_and_others_are() {
        let mut graphs = CudaGraphs::<&str>::new();
        let (one, two) = (shape(1, true), shape(2, true));
        for shape in [&one, &two] {
            assert_eq!(graphs.step(shape), Step::Run);
            assert_eq!(graphs.step(shape), Step::Capture);
            assert_eq!(graphs.give_up(shape), shape == &one, "only the first is reported");
            assert_eq!(graphs.step(shape), Step::Run);
        }
    }

    #[test]
    fn replays_agree_in_bits_and_nearly_with_the_run() {
        let tokens = |logprobs: &[f32]| -> Vec<SampledToken> {
            logprobs.iter().map(|&logprob| SampledToken { id: 7, logprob }).collect()
        };
        let run = tokens(&[-1.0; 16]);
        let replay = |change: &dyn Fn(&mut [SampledToken])| {
            let mut replay = run.clone();
            change(&mut replay);
            verify(&run, &[replay.clone(), replay], true)
        };
        assert!(replay(&|_| ()).is_ok());
        assert!(replay(&|tokens| tokens.iter_mut().for_each(|token| token.logprob += 0.04)).is_ok());
        assert!(replay(&|tokens| tokens[..2].iter_mut().for_each(|token| token.id = 8)).is_ok());
        assert!(replay(&|tokens| tokens[..3].iter_mut().for_each(|token| token.id = 8)).is_err());
        assert!(replay(&|tokens| tokens[..3].iter_mut().for_each(|token| token.logprob = 0.0)).is_err());
        assert!(replay(&|tokens| tokens.iter_mut().for_each(|token| token.logprob = f32::NAN)).is_err());
        let (one, other) = (tokens(&[-1.0]), tokens(&[-1.0000001]));
        let replays = [one.clone(), other.clone()];
        assert!(verify(&one, &replays, true).is_err(), "replays differ in a bit");
        assert!(verify(&one, &replays, false).is_ok(), "as near as those of a kernel that sums in any order");
        assert!(verify(&one, &[one.clone(), tokens(&[-1.1])], false).is_err());
        assert!(verify(&one, &[other.clone(), other], true).is_ok());
    }

    #[test]
    fn there_are_never_more_than_the_driver_has_memory_for() {
        let mut graphs = CudaGraphs::new();
        for rows in 0..MOST + 1 {
            graphs.step(&shape(rows, true));
            if graphs.step(&shape(rows, true)) == Step::Capture {
                graphs.insert(shape(rows, true), rows);
            }
        }
        assert_eq!(graphs.step(&shape(MOST - 1, true)), Step::Replay(&(MOST - 1)));
        assert_eq!(graphs.step(&shape(MOST, true)), Step::Run);
    }
}
