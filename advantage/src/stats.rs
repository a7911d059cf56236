//! Counts: every group is written, or dropped and counted.

use record::decorate;
use record::stage::counted;
use serde_json::{Value, json};

use crate::arguments::Arguments;

/// What is counted beyond the samples and groups that every stage counts.
#[derive(Debug, Default)]
pub struct Stats {
    /// Groups whose members are all credited with the same.
    pub flat: u64,
    /// Flat groups left out.
    pub dropped: u64,
}

impl Stats {
    /// The `counts` of the `end` line.
    pub fn counts(&self, stats: &decorate::Stats, arguments: &Arguments) -> Value {
        json!({
            "estimator": arguments.estimator.name(),
            "credit": arguments.credit.name(),
            "samples": stats.samples,
            "samples_written": stats.written,
            "groups": stats.groups,
            "groups_flat": self.flat,
            "dropped_groups": {"flat": self.dropped},
        })
    }

    /// The summary on stderr.
    pub fn summary(&self, stats: &decorate::Stats, arguments: &Arguments) -> String {
        let (samples, groups) = (counted(stats.samples, "sample"), counted(stats.groups, "group"));
        let mut text = format!("{samples}, {groups} by {}, {} flat", arguments.estimator.name(), self.flat);
        if self.dropped > 0 {
            text += &format!(" and left out ({})", counted(stats.samples - stats.written, "sample"));
        }
        text
    }
}
