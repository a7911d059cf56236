//! Where the time of one policy's update went, by kind of work, for `timing`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::learner::Seconds;

/// Seconds by kind, named as `timing` has them.
pub type Times = BTreeMap<String, Value>;

/// Seconds by kind of work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clock {
    /// Reading checkpoints, and bringing weights and moments to a device.
    pub load: f64,
    /// Forward passes, also those of a reference and of `--check`.
    pub forward: f64,
    /// Backward passes, with the layers that they compute again.
    pub backward: f64,
    /// Gradient norm, clipping and steps.
    pub optimizer: f64,
    /// Bringing weights and moments back from a device, and writing them to the disk.
    pub publish: f64,
    /// The most bytes that were taken of a device.
    pub device_bytes: Option<u64>,
}

impl Clock {
    /// Adds what a training spent.
    pub fn seconds(&mut self, seconds: Seconds) {
        self.forward += seconds.forward;
        self.backward += seconds.backward;
        self.optimizer += seconds.optimizer;
    }

    /// The kinds under their names.
    pub fn times(&self) -> Times {
        let kinds = [
            ("load_seconds", self.load),
            ("forward_seconds", self.forward),
            ("backward_seconds", self.backward),
            ("optimizer_seconds", self.optimizer),
            ("publish_seconds", self.publish),
        ];
        // Microseconds are finer than anything here is measured.
        let rounded = |seconds: f64| json!((seconds * 1e6).round() / 1e6);
        let mut times: Times = kinds.map(|(name, seconds)| (name.to_owned(), rounded(seconds))).into();
        times.extend(self.device_bytes.map(|bytes| ("device_memory_bytes".to_owned(), json!(bytes))));
        times
    }
}
