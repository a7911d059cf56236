//! What answers earn.
//!
//! Rewards follow the table of Stronger-MAS (arXiv 2510.11062, appendix A.1): a reasoner or judge earns
//! `.2 format + .8 correct`, a tool `.1 runs + .1 parsable + .8 correct`. A component without evidence counts 0.
//!
//! The team earns 1 when an action ends the episode with a correct answer, and 0 otherwise: in the team of a reasoner and
//! a tool when both agree on it, alone when it is given (or given twice, in several turns), in an ensemble when the judge
//! adopts it. Whoever proposes to a judge ends nothing: the team's reward for a proposal is what it would be if adopted.

use std::collections::BTreeMap;

use record::sample::Rewards;

/// What an answer is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Components {
    /// What a reasoner or judge said.
    Reasoned {
        /// An answer could be found in it.
        format: bool,
        /// It is correct.
        correct: bool,
    },
    /// What a tool's program did.
    Computed {
        /// It ran to its end.
        runs: bool,
        /// What it printed is an answer.
        parsable: bool,
        /// It is correct.
        correct: bool,
    },
}

fn one(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

impl Components {
    /// Whether the answer is correct.
    pub fn correct(&self) -> bool {
        match self {
            Components::Reasoned { correct, .. } | Components::Computed { correct, .. } => *correct,
        }
    }

    /// The weighted sum, in [0, 1]. Tenths are summed as whole numbers, because .1 + .1 + .8 exceeds 1 in binary.
    pub fn local(&self) -> f64 {
        let tenths = match self {
            Components::Reasoned { format, correct } => 2.0 * one(*format) + 8.0 * one(*correct),
            Components::Computed { runs, parsable, correct } => {
                one(*runs) + one(*parsable) + 8.0 * one(*correct)
            }
        };
        tenths / 10.0
    }

    /// The parts by name, each 0 or 1.
    pub fn components(&self) -> BTreeMap<String, f64> {
        let parts: &[(&str, bool)] = match self {
            Components::Reasoned { format, correct } => &[("format", *format), ("correct", *correct)],
            Components::Computed { runs, parsable, correct } => {
                &[("runs", *runs), ("parsable", *parsable), ("correct", *correct)]
            }
        };
        parts.iter().map(|(name, holds)| ((*name).to_owned(), one(*holds))).collect()
    }

    /// Team reward and own reward together.
    pub fn rewards(&self, team: bool) -> Rewards {
        Rewards { team: one(team), local: self.local() }
    }
}

#[cfg(test)]
mod tests {
    use super::Components;

    #[test]
    fn the_papers_table() {
        let reasoned = |format, correct| Components::Reasoned { format, correct }.local();
        assert_eq!([reasoned(false, false), reasoned(true, false), reasoned(true, true)], [0.0, 0.2, 1.0]);
        let computed = |runs, parsable, correct| Components::Computed { runs, parsable, correct }.local();
        assert_eq!(computed(false, false, false), 0.0);
        assert_eq!(computed(true, false, false), 0.1);
        assert_eq!(computed(true, true, false), 0.2);
        assert_eq!(computed(true, true, true), 1.0);
    }
}
