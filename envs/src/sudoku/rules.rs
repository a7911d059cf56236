//! What a turn of Sudoku earns.
//!
//! Rewards follow the table of Stronger-MAS (arXiv 2510.11062, appendix A.1): the team earns 1 if the puzzle is
//! solved and 0 otherwise; the planner `.1 format + .1 legal + .8 progress`, the tool
//! `.1 format + .1 executes + .8 sanity`, scored as if its proposal were carried out. As printed, progress is the
//! share of filled cells and sanity whether a result is consistent, so any digit that clashes with nothing yet
//! pays, right or wrong, and a board that is full stays well paid turn after turn. Here:
//!
//! - Solved means: every clue as it was, and every row, column and box with every digit. A clue cannot be
//!   overwritten, so a board that breaks one never is.
//! - Progress and sanity count what the turn itself has changed: cells that came to hold the digit of the only
//!   solution, less cells that lost it, less cells that came to hold a wrong one, over the number of cells that a
//!   turn could set right. So a wrong digit, however legal it looks, earns less than none in its place, and no
//!   answer earns more than one of right digits only.
//! - Only a solved puzzle pays the team, once: whoever dawdles collects no more.
//!
//! A malformed answer earns 0 in everything.

use std::collections::BTreeMap;

use record::sample::Rewards;

use super::spec::Instance;

/// How boards before and after a turn compare, as a share of what a turn can do, in [0, 1].
pub fn progress(instance: &Instance, before: &[u8], after: &[u8]) -> f64 {
    let (mut balance, mut missing) = (0_i32, 0_u32);
    for ((before, after), right) in before.iter().zip(after).zip(&instance.solution) {
        missing += u32::from(before != right);
        if before != after {
            let wrong = *after != 0 && after != right;
            balance += i32::from(after == right) - i32::from(before == right) - i32::from(wrong);
        }
    }
    f64::from(balance.max(0)) / f64::from(instance.fills.min(missing).max(1))
}

/// The parts of an agent's own reward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// The answer could be understood.
    pub format: bool,
    /// Every placement could be carried out.
    pub legal: bool,
    /// What [`progress`] says.
    pub progress: f64,
}

impl Parts {
    /// A malformed answer.
    pub const NONE: Parts = Parts { format: false, legal: false, progress: 0.0 };

    /// The weighted sum, in [0, 1].
    pub fn local(&self) -> f64 {
        // Tenths are summed as whole numbers, because .1 + .1 + .8 exceeds 1 in binary.
        (f64::from(u8::from(self.format)) + f64::from(u8::from(self.legal)) + 8.0 * self.progress) / 10.0
    }

    /// The parts by the names that the table has for the agent, each in [0, 1].
    pub fn components(&self, agent: &str) -> BTreeMap<String, f64> {
        let (legal, progress) = if agent == "tool" { ("executes", "sanity") } else { ("legal", "progress") };
        BTreeMap::from([
            ("format".to_owned(), f64::from(u8::from(self.format))),
            (legal.to_owned(), f64::from(u8::from(self.legal))),
            (progress.to_owned(), self.progress),
        ])
    }

    /// Team reward and own reward together.
    pub fn rewards(&self, solved: bool) -> Rewards {
        Rewards { team: f64::from(u8::from(solved)), local: self.local() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sudoku::board;
    use serde_json::json;

    /// Empty: cells 0, 1, 2, 5 and 15.
    const CLUES: &str = "...43.122143432.";

    fn instance(fills: u32) -> Instance {
        Instance::parse(&json!({
            "size": 4, "encoding": "compact", "fills": fills, "turns": 4, "clues": CLUES,
        }))
        .unwrap()
    }

    #[test]
    fn right_digits_pay_and_wrong_ones_cost() {
        let instance = instance(2);
        let solution = board::write(&instance.solution);
        assert_eq!(solution, "1234341221434321");
        let after = |text: &str| {
            let before = instance.clues.clone();
            let board = instance.shape.parse(text).unwrap();
            progress(&instance, &before, &board)
        };
        assert_eq!(after("1..43.122143432."), 0.5);
        assert_eq!(after("12.43.122143432."), 1.0);
        assert_eq!(after("12.43.1221434321"), 1.5, "more than a turn allows is not asked for");
        // A wrong digit takes away what a right one earns.
        assert_eq!(after("13.43.122143432."), 0.0);
        assert_eq!(after("2..43.122143432."), 0.0);
        // What was right is lost again.
        let before = instance.shape.parse("12.43.122143432.").unwrap();
        let lost = instance.shape.parse("1.243.122143432.").unwrap();
        assert_eq!(progress(&instance, &before, &lost), 0.0);
        // Mending a wrong digit counts like any right one.
        let wrong = instance.shape.parse("2..43.122143432.").unwrap();
        let mended = instance.shape.parse("1..43.122143432.").unwrap();
        assert_eq!(progress(&instance, &wrong, &mended), 0.5);
    }

    #[test]
    fn nothing_earns_more_than_one() {
        let parts = Parts { format: true, legal: true, progress: 1.0 };
        assert_eq!(parts.local(), 1.0);
        assert_eq!(Parts::NONE.local(), 0.0);
    }
}
