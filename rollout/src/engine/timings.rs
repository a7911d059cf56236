//! Counts and times of a model's runs.

use std::time::Duration;

/// Time of model runs, sampling included, and how many there were of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseTimings {
    /// For tokens of prompts.
    pub prefill: Duration,
    /// For the newest tokens of branches.
    pub decode: Duration,
    /// Runs with tokens of prompts alone.
    pub prefill_runs: u64,
    /// Runs with newest tokens alone.
    pub decode_runs: u64,
    /// Runs with both.
    pub mixed_runs: u64,
    /// Their graphs on a device.
    pub graphs: GraphCounts,
}

/// Runs of CUDA graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GraphCounts {
    /// Runs that replayed a graph.
    pub replays: u64,
    /// Batch shapes whose graph failed its check each time that it was captured.
    pub refused: u64,
}

impl PhaseTimings {
    /// Adds a run of `rows` rows, `prompt` of which were tokens of prompts; a mixed run's time is divided by rows.
    pub fn add_run(&mut self, time: Duration, prompt: usize, rows: usize) {
        let prefill = time.mul_f64(prompt as f64 / rows.max(1) as f64);
        self.prefill += prefill;
        self.decode += time.saturating_sub(prefill);
        *match (prompt, rows - prompt) {
            (_, 0) => &mut self.prefill_runs,
            (0, _) => &mut self.decode_runs,
            _ => &mut self.mixed_runs,
        } += 1;
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &PhaseTimings) {
        self.prefill += other.prefill;
        self.decode += other.decode;
        self.prefill_runs += other.prefill_runs;
        self.decode_runs += other.decode_runs;
        self.mixed_runs += other.mixed_runs;
        self.graphs.replays += other.graphs.replays;
        self.graphs.refused += other.graphs.refused;
    }
}
