//! The accounts of a stream: every group is written, or dropped for a reason that is counted.

use record::line::End;
use record::stage::counted;
use serde_json::{Map, Value, json};

use crate::key::By;

/// What was counted.
#[derive(Debug, Default)]
pub struct Count {
    /// Samples read.
    pub samples: u64,
    /// Samples written.
    pub written: u64,
    /// Samples whose reward was null.
    pub unscored: u64,
    /// Groups seen.
    pub groups: u64,
    /// Groups all of whose members earned the same.
    pub flat: u64,
    /// Groups of parallel sampling, whose members have prompts of their own.
    pub parallel: u64,
    /// Groups of parallel sampling with fewer members than episodes, because some had ended before.
    pub short: u64,
    /// Groups dropped because branches were missing.
    pub dropped_incomplete: u64,
    /// Groups dropped because members were not scored.
    pub dropped_unscored: u64,
}

impl Count {
    /// The `counts` of the `end` line.
    pub fn fields(&self, by: By, ends: &[End]) -> Map<String, Value> {
        let fields = json!({
            "by": by.name(),
            "equal_prompts": by.siblings() && self.parallel == 0,
            "samples": self.samples,
            "samples_written": self.written,
            "samples_unscored": self.unscored,
            "groups_expected": self.expected(by, ends),
            "groups": self.groups,
            "groups_flat": self.flat,
            "groups_short": self.short,
            "dropped_groups": {"incomplete": self.dropped_incomplete, "unscored": self.dropped_unscored},
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }

    /// The groups that the stages before say they should have made, dropped ones included; null where they do not say,
    /// or count in other units than this grouping.
    fn expected(&self, by: By, ends: &[End]) -> Option<u64> {
        if !by.siblings() || self.parallel > 0 || ends.is_empty() {
            return None;
        }
        let of = |end: &End, key: &str| end.counts.get(key).and_then(Value::as_u64);
        let told = |end: &End| Some(of(end, "groups")? + of(end, "dropped_groups")?);
        ends.iter().map(|end| of(end, "groups_expected").or_else(|| told(end))).sum()
    }

    /// One line for people.
    pub fn sentence(&self, by: By) -> String {
        let (samples, groups) = (counted(self.samples, "sample"), counted(self.groups, "group"));
        let mut text = format!("{samples}, {groups} by {}, {} flat", by.name(), self.flat);
        if self.parallel > 0 {
            text += &format!(", {} of parallel episodes ({} short)", self.parallel, self.short);
        }
        if self.unscored > 0 {
            text += &format!(", {} unscored", counted(self.unscored, "sample"));
        }
        let dropped = self.dropped_incomplete + self.dropped_unscored;
        if dropped > 0 {
            text += &format!(
                ", {dropped} dropped ({} incomplete, {} unscored)",
                self.dropped_incomplete, self.dropped_unscored
            );
        }
        text
    }
}
