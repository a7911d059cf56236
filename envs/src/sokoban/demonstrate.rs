//! Imperfect experts of Sokoban, to warm up a policy.
//!
//! `opt` follows a shortest solution chosen at random, as many moves as a turn has; `lazy` makes the first move of one and
//! stops; `straight` walks towards a box ignoring walls and pushes on; `random` makes one to all moves in any direction. A
//! majority of lazy actions makes the warmed-up policy weak in a way that reinforcement can fix: greedy decoding averages
//! rare mistakes out, but not a majority habit.

use record::philox::Draws;

use super::level::{Level, Situation};
use crate::grid::{Move, Position};

/// The moves of one demonstrator in a turn, at least one; `start` is neither solved nor dead.
pub fn moves(kind: &str, level: &Level, start: &Situation, most: u32, draws: &mut Draws) -> Vec<Move> {
    let count = match kind {
        "lazy" => 1,
        "random" => 1 + draws.below(most),
        _ => most,
    };
    let mut situation = *start;
    let mut made = Vec::with_capacity(count as usize);
    while made.len() < count as usize && level.distance(&situation) != 0 {
        let choices: Vec<Move> = match kind {
            "random" => Move::ALL.to_vec(),
            "straight" => straight(level, &situation),
            _ => level.nearer(&situation).map(|(step, _)| step).collect(),
        };
        let Some(step) = draws.choose(&choices).copied() else { break };
        made.push(step);
        // An illegal move drops what follows it.
        let Some(next) = level.step(&situation, step) else { break };
        situation = next;
    }
    made
}

/// The directions in which the nearest box lies that is not on a goal, walls or not.
fn straight(level: &Level, situation: &Situation) -> Vec<Move> {
    let here = level.position(situation.player);
    let boxes = situation.boxes().iter().filter(|cell| !level.goals().contains(cell));
    let apart = |position: &Position| (position.apart(here), *position);
    let Some(nearest) = boxes.map(|cell| level.position(*cell)).min_by_key(apart) else { return Vec::new() };
    let towards = [
        (Move::Up, nearest.row < here.row),
        (Move::Down, nearest.row > here.row),
        (Move::Left, nearest.column < here.column),
        (Move::Right, nearest.column > here.column),
    ];
    towards.into_iter().filter_map(|(step, towards)| towards.then_some(step)).collect()
}
