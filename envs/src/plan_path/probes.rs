//! Answers that `envs check` tries in every situation: every list of up to three moves, longer ones that wander,
//! and answers that are wrong in every way that matters.

use super::map::{Move, Place};
use super::spec::Encoding;
use super::state::PlanPathState;

/// Every answer of up to three moves, and then some; malformed ones are at the end.
pub fn answers(state: &PlanPathState, agent: &str) -> Vec<String> {
    let most = state.instance().moves as usize;
    let mut lists: Vec<Vec<Move>> = vec![Vec::new()];
    let mut answers = Vec::new();
    for _ in 0..most.min(3) {
        lists = lists
            .iter()
            .flat_map(|list| Move::ALL.map(|step| list.iter().copied().chain([step]).collect()))
            .collect();
        answers.extend(lists.iter().map(|list| state.write(agent, list)));
    }
    // With more than three moves a turn: walk on, turn round, overshoot.
    let shortest = state.shortest();
    for step in Move::ALL {
        let mut longer = shortest.clone();
        longer.resize(most, step);
        answers.push(state.write(agent, &longer));
        answers.push(state.write(agent, &vec![step; most]));
        longer.resize(most + 1, step);
        answers.push(state.write(agent, &longer));
    }
    if state.instance().encoding == Encoding::Compact {
        let goal = state.instance().map.place(state.instance().map.goal());
        let outside = Place { row: 25, column: 25 };
        let here = state.place();
        answers.push(format!(" {goal}"));
        answers.push(format!(" {here}"));
        answers.push(format!(" {outside}"));
        answers.push(format!(" {here} {goal}"));
    }
    answers.extend(["", " ", "L7", "####", "#### []", "goal", "walls at", "\u{0}", "[[["].map(str::to_owned));
    answers
}
