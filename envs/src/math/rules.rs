//! What answers earn.
//!
//! Rewards follow the table of Stronger-MAS (arXiv 2510.11062, appendix A.1): a reasoner or judge earns
//! `.2 format + .8 correct`, a tool `.1 runs + .1 parsable + .8 correct`. A component without evidence counts 0.
//!
//! The team earns 1 when an action ends the episode with a correct answer, and 0 otherwise: in the team of a reasoner and
//! a tool when both agree on it, alone when it is given (or given twice, in several turns), in an ensemble when the judge
//! adopts it. Whoever proposes to a judge ends nothing: the team's reward for a proposal is what it would be if adopted.

use crate::environment::Outcome;

/// What an action is worth to its agent.
#[derive(Clone, Debug)]
pub struct Score {
    pub correct: bool,
    /// The weighted sum, in [0, 1].
    pub local: f64,
    components: Vec<(&'static str, f64)>,
}

impl Score {
    /// A reasoner's or judge's: `format`, an answer could be found in it.
    pub fn reasoned(format: bool, correct: bool) -> Score {
        Score::of(correct, &[("format", 2.0, format), ("correct", 8.0, correct)])
    }

    /// A tool's: its program ran to its end, and what it printed is an answer.
    pub fn computed(runs: bool, parsable: bool, correct: bool) -> Score {
        Score::of(correct, &[("runs", 1.0, runs), ("parsable", 1.0, parsable), ("correct", 8.0, correct)])
    }

    /// Components with their weights in tenths, which are summed as whole numbers: .1 + .1 + .8 exceeds 1 in binary.
    fn of(correct: bool, parts: &[(&'static str, f64, bool)]) -> Score {
        let local = parts.iter().map(|(_, tenths, holds)| tenths * f64::from(*holds)).sum::<f64>() / 10.0;
        let components = parts.iter().map(|(name, _, holds)| (*name, f64::from(*holds))).collect();
        Score { correct, local, components }
    }

    pub fn outcome(&self, team: bool) -> Outcome {
        Outcome::new(f64::from(team), self.local, &self.components)
    }
}

#[cfg(test)]
mod tests {
    use super::Score;

    #[test]
    fn the_papers_table() {
        let reasoned = |format, correct| Score::reasoned(format, correct).local;
        assert_eq!([reasoned(false, false), reasoned(true, false), reasoned(true, true)], [0.0, 0.2, 1.0]);
        let computed = |runs, parsable, correct| Score::computed(runs, parsable, correct).local;
        assert_eq!(computed(false, false, false), 0.0);
        assert_eq!(computed(true, false, false), 0.1);
        assert_eq!(computed(true, true, false), 0.2);
        assert_eq!(computed(true, true, true), 1.0);
    }
}
