//! Effects of moves in Sokoban, and the rewards of a turn.
//!
//! Rewards follow the table of Stronger-MAS (arXiv 2510.11062, appendix A.1): the team earns 1 if every box
//! is on a goal, and otherwise the share of boxes that are; the planner `.1 format + .1 legal + .8 no
//! deadlock`; the tool `.1 format + .1 executes + .8 improvement of the potential`, scored as if its proposal
//! were executed. The printed rule rewards dawdling: a box on its goal is paid every turn until the solution
//! ends that, and a player that walks back and forth is never in a deadlock. Here, with `d` the exact number
//! of moves from a situation to a solution:
//!
//! - The potential is `-d`. Improvement is `d` before minus `d` after, divided by the most that a turn can
//!   improve, at least 0, and 0 in a deadlock.
//! - Without a deadlock the planner earns half of the .8; the other half is multiplied by the improvement. A
//!   deadlock ends the episode.
//! - The team earns 1 if the level is solved. Before that, a share `1/B` for B boxes is paid once each
//!   time that `d` has fallen by a further `1/B` of its start value; the distance that a shortest
//!   solution leaves for its last turn is only paid on arrival. A box parked on a goal where it blocks
//!   others is no progress, and no path collects more than a shortest one. With one box this is the
//!   table's rule: 1 if solved, otherwise 0.
//!
//! The share of boxes on goals is still logged as a component. A malformed action earns 0 in everything.

use super::level::{DEAD, Level, Situation};
use crate::grid::{Move, local_reward};
use environment::Outcome;

/// Makes moves until the first illegal one, or until the level is solved; later moves are ignored. Returns
/// the situation reached, and true if no move was illegal.
pub fn walk(level: &Level, start: &Situation, moves: &[Move]) -> (Situation, bool) {
    let mut situation = *start;
    for step in moves {
        if level.distance(&situation) == 0 {
            break;
        }
        match level.step(&situation, *step) {
            Some(next) => situation = next,
            None => return (situation, false),
        }
    }
    (situation, true)
}

/// The inputs of a turn's rewards, apart from the situation after it.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Distance at the episode's start, at least 1.
    pub first: u16,
    /// Shares of the way that the team was already paid for.
    pub paid: u32,
    /// The current distance, which is not a deadlock.
    pub now: u16,
    /// Most moves in a turn, at least 1.
    pub moves: u32,
    /// Boxes of the level.
    pub boxes: u32,
}

impl Progress {
    /// Shares of the way completed at a distance: fewer than there are boxes, and 0 in a deadlock.
    pub fn shares(&self, distance: u16) -> u32 {
        let first = u32::from(self.first);
        if distance == DEAD {
            return 0;
        }
        let last_turn = first - self.moves * (first.div_ceil(self.moves) - 1);
        self.boxes * first.saturating_sub(u32::from(distance).max(last_turn)) / first
    }

    /// The team's reward for a turn that ends at a distance, in [0, 1].
    pub fn team(&self, end: u16) -> f64 {
        match end {
            0 => 1.0,
            _ => f64::from(self.shares(end).saturating_sub(self.paid)) / f64::from(self.boxes),
        }
    }

    /// The improvement of the potential, as a share of the most in a turn, in [0, 1].
    pub fn improvement(&self, end: u16) -> f64 {
        if end == DEAD {
            return 0.0;
        }
        f64::from(self.now.saturating_sub(end)) / f64::from(self.moves.min(u32::from(self.now)))
    }
}

/// The parts of an agent's local reward; the default is for a malformed action.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Components {
    /// The action could be parsed.
    pub format: bool,
    /// No move was illegal, and a route was connected.
    pub legal: bool,
    /// The level can still be solved.
    pub alive: bool,
    /// Improvement of the potential.
    pub improvement: f64,
    /// Share of the boxes that are on goals.
    pub on_goals: f64,
}

impl Components {
    /// The agent's local reward, in [0, 1].
    pub fn local(&self, agent: &str) -> f64 {
        let main = match agent {
            "tool" => self.improvement,
            _ => f64::from(self.alive) * (1.0 + self.improvement) / 2.0,
        };
        local_reward(self.format, self.legal, main)
    }

    /// The outcome, with components named as in the paper's table for the agent.
    pub fn outcome(&self, agent: &str, team: f64) -> Outcome {
        let legal = if agent == "tool" { "executes" } else { "legal" };
        let mut components = vec![
            ("format", f64::from(self.format)),
            (legal, f64::from(self.legal)),
            ("improvement", self.improvement),
            ("on_goals", self.on_goals),
        ];
        if agent != "tool" {
            components.push(("no_deadlock", f64::from(self.alive)));
        }
        Outcome::new(team, self.local(agent), &components)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_box_pays_the_team_when_it_is_home() {
        let progress = Progress { first: 7, paid: 0, now: 7, moves: 3, boxes: 1 };
        assert_eq!([7, 4, 1, 0, DEAD].map(|end| progress.team(end)), [0.0, 0.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn more_boxes_pay_by_the_way_that_is_done() {
        // Twelve moves are four turns of three; the last three are only paid on arrival.
        let progress = Progress { first: 12, paid: 0, now: 12, moves: 3, boxes: 3 };
        let third = 1.0 / 3.0;
        assert_eq!(
            [12, 9, 8, 5, 4, 3, 1, 0].map(|end| progress.team(end)),
            [0.0, 0.0, third, third, 2.0 * third, 2.0 * third, 2.0 * third, 1.0]
        );
        let later = Progress { paid: 2, now: 3, ..progress };
        assert_eq!([5, 1, 0, DEAD].map(|end| later.team(end)), [0.0, 0.0, 1.0, 0.0]);
    }

    /// Six moves are two turns of three; one move before the end, the last three are not paid.
    #[test]
    fn the_distance_of_the_last_turn_is_paid_on_arrival_only() {
        let progress = Progress { first: 6, paid: 0, now: 6, moves: 3, boxes: 3 };
        assert_eq!([3, 2, 1, 0].map(|end| progress.team(end)), [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 1.0]);
    }

    #[test]
    fn improvement_is_what_a_turn_could_do() {
        let progress = Progress { first: 7, paid: 0, now: 7, moves: 3, boxes: 1 };
        assert_eq!([4, 5, 7, 9, DEAD].map(|end| progress.improvement(end)), [1.0, 2.0 / 3.0, 0.0, 0.0, 0.0]);
        let last = Progress { now: 2, ..progress };
        assert_eq!([0, 1].map(|end| last.improvement(end)), [1.0, 0.5]);
    }

    #[test]
    fn dawdling_is_worth_less_than_coming_nearer_and_more_than_a_deadlock() {
        let parts = Components { format: true, legal: true, alive: true, improvement: 1.0, on_goals: 0.0 };
        assert_eq!((parts.local("planner"), parts.local("tool")), (1.0, 1.0));
        let idle = Components { improvement: 0.0, ..parts };
        assert_eq!((idle.local("planner"), idle.local("tool")), (0.6, 0.2));
        let dead = Components { alive: false, ..idle };
        assert_eq!((dead.local("planner"), dead.local("tool")), (0.2, 0.2));
        assert_eq!((Components::default().local("planner"), Components::default().local("tool")), (0.0, 0.0));
    }
}
