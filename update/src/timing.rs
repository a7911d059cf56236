//! Where the time of one policy's update went, by phase, as `timing` reports it.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use crate::model::Spent;

/// Seconds by phase, named as `timing` has them.
pub type Times = BTreeMap<String, Value>;

/// Seconds by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Reading checkpoints, and uploading weights and moments.
    pub load: f64,
    /// Forward passes, including a reference's and `--check`'s.
    pub forward: f64,
    /// Backward passes, with the layers that they recompute.
    pub backward: f64,
    /// Gradient norm, clipping and optimizer steps.
    pub optimizer: f64,
    /// Downloading weights and moments, and writing them to disk.
    pub publish: f64,
    /// Peak device memory in use, bytes.
    pub device_bytes: Option<u64>,
    /// How gradients pass between the ranks' devices.
    pub transport: Option<&'static str>,
}

impl Timing {
    /// Splits the seconds since `started` between the passes in the proportion of the threads' time in each.
    pub fn add_passes(&mut self, started: Instant, spent: Spent) {
        let seconds = started.elapsed().as_secs_f64();
        let (forward, backward) = (spent.forward.as_secs_f64(), spent.backward.as_secs_f64());
        let share = if forward + backward > 0.0 { forward / (forward + backward) } else { 1.0 };
        self.forward += seconds * share;
        self.backward += seconds * (1.0 - share);
    }

    /// Adds the phases of a training.
    pub fn add(&mut self, other: Timing) {
        self.forward += other.forward;
        self.backward += other.backward;
        self.optimizer += other.optimizer;
    }

    /// The phases under their names.
    pub fn times(&self) -> Times {
        let phases = [
            ("load_seconds", self.load),
            ("forward_seconds", self.forward),
            ("backward_seconds", self.backward),
            ("optimizer_seconds", self.optimizer),
            ("publish_seconds", self.publish),
        ];
        // Nothing here is measured finer than microseconds.
        let rounded = |seconds: f64| json!((seconds * 1e6).round() / 1e6);
        let mut times: Times = phases.map(|(name, seconds)| (name.to_owned(), rounded(seconds))).into();
        times.extend(self.device_bytes.map(|bytes| ("device_memory_bytes".to_owned(), json!(bytes))));
        times.extend(self.transport.map(|name| ("transport".to_owned(), json!(name))));
        times
    }
}
