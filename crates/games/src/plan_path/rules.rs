//! Effects of moves on a board, and their rewards.
//!
//! Rewards follow the table of Stronger-MAS (arXiv 2510.11062, appendix A.1), except where that rewards
//! dawdling. There the team earns 1 at the goal and otherwise `max(0, (d[t-1] - d[t]) / d[0])`, so that going
//! back and forth collects forever. Here:
//!
//! - Only distance below the smallest distance of all visited cells counts, so no ground is paid twice.
//! - The distance that a shortest path leaves for its last turn is only paid on arrival. Otherwise stopping
//!   one step short of the goal, then reaching it, would collect more than walking straight in. With `d0`
//!   steps from the start and `m` moves a turn this is `d0 - m * (ceil(d0 / m) - 1)` steps. No path collects
//!   more than a shortest one.
//! - Agreement with the oracle is the number of moves, from the first on, that each come nearer. A move that
//!   only repairs the one before does not count.
//!
//! An agent's local reward is `.1 format + .1 legal + .8 agreement`. A malformed
//! action earns 0 in everything.

use super::map::{Cell, Map, Move, UNREACHABLE};
use crate::grid::local_reward;
use environment::Outcome;

/// The effect of moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Where they ended.
    pub end: Cell,
    /// The smallest distance to the goal on the way, including the first cell.
    pub least: u16,
    /// True if a wall or the edge was hit; the remaining moves were dropped.
    pub blocked: bool,
    /// Number of moves, from the first on, that each came nearer to the goal.
    pub agreeing: u32,
}

/// Makes moves until the first illegal one, or until the goal; later moves are ignored.
pub fn walk(map: &Map, start: Cell, moves: &[Move]) -> Walk {
    let distance = map.distance(start);
    let mut walk = Walk { end: start, least: distance, blocked: false, agreeing: 0 };
    let mut agrees = true;
    for step in moves {
        if walk.end == map.goal() {
            break;
        }
        let next = map.neighbor(walk.end, *step);
        let distance = map.distance(next);
        if distance == UNREACHABLE {
            walk.blocked = true;
            break;
        }
        agrees &= distance + 1 == map.distance(walk.end);
        walk.agreeing += u32::from(agrees);
        walk.least = walk.least.min(distance);
        walk.end = next;
    }
    walk
}

/// The inputs of a turn's rewards, apart from its walk.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Distance from the episode's start to the goal, at least 1.
    pub first: u16,
    /// Smallest distance of all cells visited before this action.
    pub best: u16,
    /// Distance now.
    pub now: u16,
    /// Most moves in a turn, at least 1.
    pub moves: u32,
}

impl Progress {
    /// The team's reward for a turn that ends at distance `end`, in [0, 1].
    pub fn team(&self, end: u16) -> f64 {
        if end == 0 {
            return 1.0;
        }
        let first = u32::from(self.first);
        let last_turn = first - self.moves * (first.div_ceil(self.moves) - 1);
        let counted = |distance: u16| u32::from(distance).max(last_turn);
        f64::from(counted(self.best).saturating_sub(counted(end))) / f64::from(first)
    }

    /// The walk's share of the moves of a shortest path this turn, in [0, 1].
    pub fn agreement(&self, agreeing: u32) -> f64 {
        f64::from(agreeing) / f64::from(self.moves.min(u32::from(self.now)))
    }
}

/// The outcome of an action; `oracle` is the agreement with a shortest path.
pub fn outcome(format: bool, legal: bool, oracle: f64, team: f64) -> Outcome {
    let components = [("format", f64::from(format)), ("legal", f64::from(legal)), ("oracle", oracle)];
    Outcome::new(team, local_reward(format, legal, oracle), &components)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_path::map::Position;

    /// Goal c1, four steps from e3; all shortest paths lead over d3, c3 and c2.
    /// ```text
    /// #....
    /// ..G..
    /// .#..#
    /// .#..@
    /// #.##.
    /// ```
    fn map() -> Map {
        let walls = ["a0", "b2", "e2", "b3", "a4", "c4", "d4"].map(place);
        Map::new(5, &walls, place("c1"))
    }

    fn place(text: &str) -> Position {
        Position::parse(text).unwrap()
    }

    fn moves(text: &str) -> Vec<Move> {
        text.chars().map(|letter| Move::from_letter(letter).unwrap()).collect()
    }

    /// End of the moves, and their rewards: team, legal, agreement and local.
    fn earned(start: &str, first: u16, best: u16, text: &str) -> (String, f64, bool, f64, f64) {
        let map = map();
        let start = map.cell(place(start));
        let progress = Progress { first, best, now: map.distance(start), moves: 3 };
        let walk = walk(&map, start, &moves(text));
        let (legal, agreement) = (!walk.blocked, progress.agreement(walk.agreeing));
        let outcome = outcome(true, legal, agreement, progress.team(map.distance(walk.end)));
        let position = map.position(walk.end).to_string();
        (position, outcome.rewards.team, legal, agreement, outcome.rewards.local)
    }

    #[track_caller]
    fn assert_earned(seen: (String, f64, bool, f64, f64), expected: (&str, f64, bool, f64, f64)) {
        let near = |left: f64, right: f64| (left - right).abs() < 1e-12;
        let same = near(seen.1, expected.1) && near(seen.3, expected.3) && near(seen.4, expected.4);
        assert!(seen.0 == expected.0 && seen.2 == expected.2 && same, "{seen:?} is not {expected:?}");
    }

    #[test]
    fn vectors_by_hand() {
        let third = 1.0 / 3.0;
        assert_earned(earned("e3", 4, 4, "LLU"), ("c2", 0.75, true, 1.0, 1.0));
        assert_earned(earned("e3", 4, 4, "LUU"), ("d1", 0.75, true, 1.0, 1.0));
        assert_earned(earned("e3", 4, 4, "L"), ("d3", 0.25, true, third, 0.2 + 0.8 * third));
        // Into the edge: the walker stays, and the rest is dropped.
        assert_earned(earned("e3", 4, 4, "RLL"), ("e3", 0.0, false, 0.0, 0.1));
        assert_earned(earned("e3", 4, 4, "LRL"), ("d3", 0.25, true, third, 0.2 + 0.8 * third));
        assert_earned(earned("e3", 4, 4, "DU"), ("e3", 0.0, true, 0.0, 0.2));
        // The first move goes the wrong way, so the repair does not count as agreement.
        assert_earned(earned("e3", 4, 4, "DUL"), ("d3", 0.25, true, 0.0, 0.2));
        // The goal, and moves after it.
        assert_earned(earned("c2", 4, 1, "U"), ("c1", 1.0, true, 1.0, 1.0));
        assert_earned(earned("c2", 4, 1, "ULL"), ("c1", 1.0, true, 1.0, 1.0));
        // Ground covered before earns the team nothing.
        assert_earned(earned("e3", 4, 2, "L"), ("d3", 0.0, true, third, 0.2 + 0.8 * third));
        assert_earned(earned("e3", 4, 2, "LLU"), ("c2", 0.25, true, 1.0, 1.0));
    }

    #[test]
    fn the_last_turns_distance_pays_on_arrival_only() {
        let team = |first: u16, best: u16, end: u16| Progress { first, best, now: best, moves: 3 }.team(end);
        // Six steps are two turns of three: three steps are left for the last turn.
        assert_eq!(
            [6, 5, 4, 3, 2, 1, 0].map(|end| team(6, 6, end)),
            [0.0, 1.0 / 6.0, 2.0 / 6.0, 0.5, 0.5, 0.5, 1.0]
        );
        assert_eq!([3, 2, 1, 0].map(|end| team(6, 3, end)), [0.0, 0.0, 0.0, 1.0]);
        // Seven steps are three turns, with one step left for the last.
        assert_eq!([4, 1, 0].map(|end| team(7, 7, end)), [3.0 / 7.0, 6.0 / 7.0, 1.0]);
        // The distance of a single turn is only paid on arrival.
        assert_eq!([2, 1, 0].map(|end| team(2, 2, end)), [0.0, 0.0, 1.0]);
    }

    #[test]
    fn going_back_and_forth_earns_nothing_twice() {
        let map = map();
        let (mut cell, mut best, mut total) = (map.cell(place("e3")), 4, 0.0);
        for turn in 0..100 {
            let walk = walk(&map, cell, &moves(if turn % 2 == 0 { "L" } else { "R" }));
            total +=
                Progress { first: 4, best, now: map.distance(cell), moves: 3 }.team(map.distance(walk.end));
            (cell, best) = (walk.end, best.min(walk.least));
        }
        assert!((total - 0.25_f64).abs() < 1e-12, "collected {total}");
    }

    #[test]
    fn nothing_earns_more_than_one() {
        assert_eq!(outcome(true, true, 1.0, 1.0).rewards.local, 1.0);
        assert_eq!(outcome(false, false, 0.0, 0.0).rewards.local, 0.0);
    }
}
