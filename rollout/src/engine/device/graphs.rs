//! CUDA graphs: runs of one batch shape, captured once and replayed with one call.
//!
//! A run takes some sixteen launches per layer, and for small batches decoding is launch-bound. A graph holds all of a run
//! from the first layer to the sampled tokens.
//!
//! The first run of a shape is eager, which loads and allocates what it needs. The second is run, captured and replayed, and
//! both must give the same bits: that finds a library that works outside of the capture, or bakes in a value that should
//! be read anew. From the third on the graph is replayed. Where the capture fails or its replay differs, that is
//! reported once and every run is eager.

use super::shape::BatchShape;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The most graphs that are kept: each takes driver memory for its few hundred launches.
const MOST: usize = 64;

/// The captured graphs of a runner; `G` is the device's handle of one.
pub struct CudaGraphs<G> {
    /// Shapes that were run, and their graphs where captured.
    known: HashMap<BatchShape, Option<G>>,
    enabled: bool,
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
    /// No graphs yet.
    pub fn new() -> Self {
        CudaGraphs { known: HashMap::new(), enabled: true }
    }

    /// What to do with a run of a shape.
    pub fn step(&mut self, shape: &BatchShape) -> Step<'_, G> {
        if !shape.bucket || !self.enabled {
            return Step::Run;
        }
        let full = self.known.values().flatten().count() >= MOST;
        match self.known.entry(*shape) {
            Entry::Vacant(entry) => {
                entry.insert(None);
                Step::Run
            }
            Entry::Occupied(entry) => match entry.into_mut() {
                Some(graph) => Step::Replay(graph),
                None if full => Step::Run,
                None => Step::Capture,
            },
        }
    }

    /// Keeps the graph of a shape.
    pub fn insert(&mut self, shape: BatchShape, graph: G) {
        self.known.insert(shape, Some(graph));
    }

    /// Captures and replays no more.
    pub fn disable(&mut self) {
        *self = CudaGraphs { known: HashMap::new(), enabled: false };
    }
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
