//! Rewards of a turn of Sudoku.
//!
//! Rewards follow the table of Stronger-MAS (arXiv 2510.11062, appendix A.1): the team earns 1 if the puzzle
//! is solved and 0 otherwise; the planner `.1 format + .1 legal + .8 progress`, the tool `.1 format + .1
//! executes + .8 sanity`, scored as if its proposal were executed. In the printed rule, progress is the share
//! of filled cells and sanity whether a result is consistent, so any digit that clashes with nothing yet
//! pays, right or wrong, and a board that is full stays well paid turn after turn. Here:
//!
//! - Solved means: every clue as it was, and every row, column and box with every digit. A clue cannot be
//!   overwritten, so a board that breaks one never is.
//! - Progress and sanity count what the turn itself has changed: cells that came to hold the digit of the only
//!   solution, less cells that lost it, less cells that came to hold a wrong one, over the number of cells that a
//!   turn could set right. So a wrong digit, however legal it looks, earns less than none in its place, and no
//!   answer earns more than one of right digits only.
//! - Only a solved puzzle pays the team, once, so dawdling collects no more.
//!
//! A malformed action earns 0 in everything.

use super::Instance;
use crate::grid::local_reward;
use environment::Outcome;

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
    f64::from(balance.max(0)) / f64::from(instance.episode.steps.min(missing).max(1))
}

/// The outcome of an action, with the components by the names that the paper's table has for the agent.
pub fn outcome(agent: &str, format: bool, legal: bool, progress: f64, team: f64) -> Outcome {
    let names = if agent == "tool" { ("executes", "sanity") } else { ("legal", "progress") };
    let components = [("format", f64::from(format)), (names.0, f64::from(legal)), (names.1, progress)];
    Outcome::new(team, local_reward(format, legal, progress), &components)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::world::GridWorld;
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
        // A right digit is lost again.
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
        assert_eq!(outcome("tool", true, true, 1.0, 1.0).rewards.local, 1.0);
        assert_eq!(outcome("tool", false, false, 0.0, 0.0).rewards.local, 0.0);
    }
}
