//! The accounts of a stream.

use record::stage::counted;
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;

/// What was counted.
#[derive(Debug, Default)]
pub struct Count {
    /// Samples read.
    pub samples: u64,
    /// Samples written.
    pub written: u64,
    /// Groups seen.
    pub groups: u64,
    /// Groups all of whose members earned the same.
    pub flat: u64,
    /// Flat groups left out.
    pub dropped: u64,
}

impl Count {
    /// The `counts` of the `end` line.
    pub fn fields(&self, arguments: &Arguments) -> Map<String, Value> {
        let fields = json!({
            "estimator": arguments.estimator.name(),
            "credit": arguments.credit.name(),
            "samples": self.samples,
            "samples_written": self.written,
            "groups": self.groups,
            "groups_flat": self.flat,
            "dropped_groups": {"flat": self.dropped},
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }

    /// One line for people.
    pub fn sentence(&self, arguments: &Arguments) -> String {
        let (samples, groups) = (counted(self.samples, "sample"), counted(self.groups, "group"));
        let mut text = format!("{samples}, {groups} by {}, {} flat", arguments.estimator.name(), self.flat);
        if self.dropped > 0 {
            text += &format!(" and left out ({})", counted(self.samples - self.written, "sample"));
        }
        text
    }
}
