//! Imperfect experts of Plan-Path, to warm up a policy.
//!
//! `opt` walks a shortest path chosen at random, as many moves as a turn has; `lazy` makes the first move of one and
//! stops; `manhattan` walks towards the goal as if there were no walls; `random` makes one to all moves anywhere on the
//! board. A majority of lazy actions makes the warmed-up policy weak in a way that reinforcement can fix: greedy decoding
//! averages rare mistakes out, but not a majority habit.

use record::philox::Draws;

use super::map::{Cell, Map, Move};

/// The moves of one demonstrator in a turn, at least one; `cell` is not the goal.
pub fn moves(kind: &str, map: &Map, cell: Cell, most: u32, draws: &mut Draws) -> Vec<Move> {
    let count = match kind {
        "lazy" => 1,
        "random" => 1 + draws.below(most),
        _ => most,
    };
    let goal = map.position(map.goal());
    let mut position = map.position(cell);
    let mut made = Vec::with_capacity(count as usize);
    while made.len() < count as usize && position != goal {
        let distance = map.distance(map.cell(position));
        let (mut choices, mut found) = ([Move::Up; 4], 0);
        for step in Move::ALL {
            let Some(next) = position.step(step).filter(|next| map.holds(*next)) else { continue };
            let takes = match kind {
                "random" => true,
                "manhattan" => next.apart(goal) < position.apart(goal),
                _ => map.distance(map.cell(next)) < distance,
            };
            if takes {
                choices[found] = step;
                found += 1;
            }
        }
        let Some(step) = draws.choose(&choices[..found]).copied() else { break };
        position = position.step(step).unwrap_or(position);
        made.push(step);
    }
    made
}
