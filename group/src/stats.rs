//! Counts: every group is written, or dropped for a reason that is counted.

use record::decorate;
use record::line::End;
use record::stage::counted;
use serde_json::{Value, json};

use crate::key::By;

/// What is counted beyond the samples and groups that every stage counts.
#[derive(Debug, Default)]
pub struct Stats {
    /// Samples whose reward was null.
    pub unscored: u64,
    /// Groups whose members all have the same reward.
    pub flat: u64,
    /// Groups of parallel sampling, whose members have different prompts.
    pub parallel: u64,
    /// Groups of parallel sampling with fewer members than episodes, because some episodes ended earlier.
    pub short: u64,
    /// Groups dropped because branches were missing.
    pub dropped_incomplete: u64,
    /// Groups dropped because members were not scored.
    pub dropped_unscored: u64,
}

impl Stats {
    /// The `counts` of the `end` line.
    pub fn counts(&self, stats: &decorate::Stats, by: By, ends: &[End]) -> Value {
        json!({
            "by": by.name(),
            "equal_prompts": by.siblings() && self.parallel == 0,
            "samples": stats.samples,
            "samples_written": stats.written,
            "samples_unscored": self.unscored,
            "groups_expected": self.expected(by, ends),
            "groups": stats.groups,
            "groups_flat": self.flat,
            "groups_short": self.short,
            "dropped_groups": {"incomplete": self.dropped_incomplete, "unscored": self.dropped_unscored},
        })
    }

    /// The groups that earlier stages should have made, dropped ones included; null where they do not say, or count in
    /// other units than this grouping.
    fn expected(&self, by: By, ends: &[End]) -> Option<u64> {
        if !by.siblings() || self.parallel > 0 || ends.is_empty() {
            return None;
        }
        let of = |end: &End, key: &str| end.counts.get(key).and_then(Value::as_u64);
        let told = |end: &End| Some(of(end, "groups")? + of(end, "dropped_groups")?);
        ends.iter().map(|end| of(end, "groups_expected").or_else(|| told(end))).sum()
    }

    /// The summary on stderr.
    pub fn summary(&self, stats: &decorate::Stats, by: By) -> String {
        let (samples, groups) = (counted(stats.samples, "sample"), counted(stats.groups, "group"));
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
