//! CUDA graphs: model runs of one batch shape, captured once and replayed with one call.
//!
//! A run has about ten launches per layer, so decoding of small batches is launch-bound. A graph holds the
//! whole run, from the first layer to the sampled tokens.
//!
//! The first run of a shape is eager, which loads code and allocates memory. The second is run, captured, and
//! replayed twice. The replays must give identical bits if the attention kernels are deterministic
//! ([`super::attention_tier`]), and almost the same tokens as the run, for which a library may have chosen
//! another order of summation. This check detects libraries that work outside the capture, or that bake in a
//! value that should be read anew. From the third run on the graph is replayed. If the capture fails or its
//! replay differs, the shape is tried again, because non-deterministic kernels may differ by chance. After
//! the last failure its runs stay eager, and the first such shape is reported.
//!
//! A capture costs four runs, and the number of sequences falls as episodes end. So a rare shape replays the
//! graph of a shape up to twice its size, if there is one.

use super::shape::BatchShape;
use crate::engine::request::SampledToken;
use crate::engine::timings::GraphCounts;
use record::failure::{Failure, Result};
use std::collections::HashMap;

/// Most graphs to keep: each takes driver memory for its few hundred launches.
const MOST: usize = 64;
/// How often to try the capture of a shape.
const TRIES: u32 = 3;
/// Runs of a shape after which it gets a graph, although a larger graph could be used.
const WORTH: u32 = 8;
/// Allowed difference of log-probabilities between replay and run, for bf16 rounding. One token in
/// eight (at least one) may differ more, or be another token, because a sample can fall on the
/// border between two tokens.
const TOLERANCE: f32 = 0.05;

/// The captured graphs of a runner; `G` is the device's graph handle.
pub struct CudaGraphs<G> {
    /// All shapes that were run.
    known: HashMap<BatchShape, Known<G>>,
    enabled: bool,
    /// Number of runs, as a clock.
    clock: u64,
    counts: GraphCounts,
    /// True if some shape was given up.
    refused: bool,
}

/// State of a shape.
struct Known<G> {
    graph: Option<G>,
    /// Number of runs.
    runs: u32,
    /// Failed captures.
    tries: u32,
    /// Time of its graph's last replay.
    used: u64,
}

impl<G> Default for Known<G> {
    fn default() -> Self {
        Known { graph: None, runs: 0, tries: 0, used: 0 }
    }
}

/// How to execute a run.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a, G> {
    Run,
    /// Run it, capture it, and compare.
    Capture,
    Replay(&'a G),
}

impl<G> CudaGraphs<G> {
    /// An empty cache. Disabled if `TROUPE_CUDA_GRAPHS` is `off`, to measure the gain from graphs.
    pub fn asked() -> Self {
        let off = std::env::var_os("TROUPE_CUDA_GRAPHS").is_some_and(|value| value == "off");
        CudaGraphs { enabled: !off, ..CudaGraphs::new() }
    }

    pub fn new() -> Self {
        let (known, counts) = (HashMap::new(), GraphCounts::default());
        CudaGraphs { known, enabled: true, clock: 0, counts, refused: false }
    }

    /// The shape to run for `shape`: a larger one that has a graph, while `shape` does not
    /// justify its own; else `shape`.
    pub fn padded(&mut self, shape: BatchShape) -> BatchShape {
        if !shape.bucket || !self.enabled {
            return shape;
        }
        let larger = |(other, known): &(&BatchShape, &Known<G>)| {
            let alike = (other.width, other.bounds) == (shape.width, shape.bounds);
            known.graph.is_some() && alike && (shape.rows..=2 * shape.rows).contains(&other.rows)
        };
        let larger = self.known.iter().filter(larger).map(|(other, _)| *other).min_by_key(|other| other.rows);
        let own = self.known.entry(shape).or_default();
        match larger {
            Some(larger) if own.runs < WORTH || own.tries == TRIES => {
                own.runs = own.runs.saturating_add(u32::from(larger != shape));
                larger
            }
            _ => shape,
        }
    }

    /// How to execute a run of this shape.
    pub fn step(&mut self, shape: &BatchShape) -> Step<'_, G> {
        if !shape.bucket || !self.enabled {
            return Step::Run;
        }
        self.clock += 1;
        let known = self.known.entry(*shape).or_default();
        known.runs = known.runs.saturating_add(1);
        match &known.graph {
            Some(graph) => {
                known.used = self.clock;
                self.counts.replays += 1;
                Step::Replay(graph)
            }
            None if known.runs > 1 && known.tries < TRIES => Step::Capture,
            None => Step::Run,
        }
    }

    /// Stores the graph of a shape. If there are too many, it replaces the least recently used one.
    pub fn insert(&mut self, shape: BatchShape, graph: G) {
        if self.known.values().filter(|known| known.graph.is_some()).count() >= MOST {
            let captured = self.known.values_mut().filter(|known| known.graph.is_some());
            if let Some(oldest) = captured.min_by_key(|known| known.used) {
                *oldest = Known::default();
            }
        }
        let known = self.known.entry(shape).or_default();
        (known.graph, known.used) = (Some(graph), self.clock);
    }

    /// Records a failed capture. Returns true when a shape is given up for the first time.
    pub fn fail(&mut self, shape: &BatchShape) -> bool {
        let known = self.known.entry(*shape).or_default();
        known.tries += 1;
        if known.tries < TRIES {
            return false;
        }
        self.counts.refused += 1;
        !std::mem::replace(&mut self.refused, true)
    }

    /// The counts since the last call.
    pub fn take_counts(&mut self) -> GraphCounts {
        std::mem::take(&mut self.counts)
    }

    /// Stops capturing and replaying.
    pub fn disable(&mut self) {
        *self = CudaGraphs { enabled: false, ..CudaGraphs::new() };
    }
}

/// Compares two replays of a captured run with each other and with the run. With `exact`, equal
/// inputs must give equal bits.
pub fn verify(run: &[SampledToken], [first, second]: &[Vec<SampledToken>; 2], exact: bool) -> Result<()> {
    let differing = |first: &[SampledToken], second: &[SampledToken], alike: fn(&Pair) -> bool| {
        first.iter().zip(second).filter(|pair| !alike(pair)).count()
    };
    let count = run.len();
    // With a single token, the check must still be able to fail.
    let few = (count / 8).max(usize::from(count > 1));
    let (replays, most) = match exact {
        true => (differing(first, second, same), 0),
        false => (differing(first, second, near), few),
    };
    if replays > most {
        return Err(Failure::work(format!(
            "two replays of a captured run differ in {replays} of {count} tokens"
        )));
    }
    let others = differing(run, first, near);
    if others > few {
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
    fn a_shape_is_tried_three_times_and_others_are_too() {
        let mut graphs = CudaGraphs::<&str>::new();
        let (one, two) = (shape(1, true), shape(2, true));
        for shape in [&one, &two] {
            assert_eq!(graphs.step(shape), Step::Run);
            for last in [false, false, true] {
                assert_eq!(graphs.step(shape), Step::Capture);
                assert_eq!(graphs.fail(shape), last && shape == &one, "only the first is reported");
            }
            for _ in 0..3 {
                assert_eq!(graphs.step(shape), Step::Run);
            }
        }
        assert_eq!(graphs.take_counts(), GraphCounts { replays: 0, refused: 2 });
        assert_eq!(graphs.take_counts(), GraphCounts::default());
    }

    #[test]
    fn until_a_shape_is_worth_a_graph_it_takes_one_of_up_to_twice_its_size() {
        let mut graphs = CudaGraphs::new();
        let [two, four, eight] = [2, 4, 8].map(|rows| shape(rows, true));
        let longer = BatchShape { bounds: [1, 1024, 512], ..shape(4, true) };
        for captured in [eight, longer] {
            assert_eq!(graphs.padded(captured), captured);
            graphs.step(&captured);
            graphs.insert(captured, captured.rows);
        }
        for _ in 0..WORTH {
            assert_eq!(graphs.padded(four), eight);
            assert_eq!(graphs.step(&eight), Step::Replay(&8));
            assert_eq!(graphs.padded(two), two, "eight is more than twice as large, four has other lengths");
        }
        assert_eq!(graphs.padded(four), four);
        assert_eq!(graphs.step(&four), Step::Capture, "it has come often");
        graphs.insert(four, 4);
        assert_eq!((graphs.padded(four), graphs.padded(two)), (four, four));
        for _ in 0..TRIES {
            graphs.fail(&two);
        }
        for _ in 0..2 * WORTH {
            assert_eq!(graphs.padded(two), four, "its own was refused");
        }
        assert_eq!(graphs.padded(shape(4, false)), shape(4, false), "a run of prompts");
        assert_eq!(graphs.take_counts().replays, u64::from(WORTH));
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
        let few = |changed: usize, of: usize| {
            let mut replay = run[..of].to_vec();
            replay[..changed].iter_mut().for_each(|token| token.id = 8);
            verify(&run[..of], &[run[..of].to_vec(), replay], false).is_ok()
        };
        assert_eq!(
            [few(1, 1), few(1, 2), few(2, 2), few(1, 4), few(2, 4)],
            [false, true, false, true, false]
        );
        let (one, other) = (tokens(&[-1.0]), tokens(&[-1.0000001]));
        let replays = [one.clone(), other.clone()];
        assert!(verify(&one, &replays, true).is_err(), "replays differ in a bit");
        assert!(verify(&one, &replays, false).is_ok(), "as near as those of a kernel that sums in any order");
        assert!(verify(&one, &[one.clone(), tokens(&[-1.1])], false).is_err());
        assert!(verify(&one, &[other.clone(), other], true).is_ok());
    }

    #[test]
    fn where_there_are_too_many_the_one_goes_that_was_not_used_for_longest() {
        let mut graphs = CudaGraphs::new();
        for rows in 0..=MOST {
            // The first stays in use.
            graphs.step(&shape(0, true));
            graphs.step(&shape(rows, true));
            graphs.insert(shape(rows, true), rows);
        }
        let kept = graphs.known.values().filter(|known| known.graph.is_some()).count();
        assert_eq!(kept, MOST);
        assert_eq!(graphs.step(&shape(0, true)), Step::Replay(&0));
        assert_eq!(graphs.step(&shape(MOST, true)), Step::Replay(&MOST));
        assert_eq!(graphs.step(&shape(1, true)), Step::Run, "as a shape that never came");
        assert_eq!(graphs.step(&shape(1, true)), Step::Capture);
    }
}
