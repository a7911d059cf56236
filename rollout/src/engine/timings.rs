//! Where a model's time goes: prompts or new tokens.

use std::time::Duration;

/// Time of model runs, sampling included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseTimings {
    /// For tokens of prompts.
    pub prefill: Duration,
    /// For the newest tokens of branches.
    pub decode: Duration,
}

impl PhaseTimings {
    /// Counts a run of `rows` rows, `prompt` of which were tokens of prompts; a mixed run's time is divided by rows.
    pub fn add_run(&mut self, time: Duration, prompt: usize, rows: usize) {
        let prefill = time.mul_f64(prompt as f64 / rows.max(1) as f64);
        self.prefill += prefill;
        self.decode += time.saturating_sub(prefill);
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &PhaseTimings) {
        self.prefill += other.prefill;
        self.decode += other.decode;
    }
}
