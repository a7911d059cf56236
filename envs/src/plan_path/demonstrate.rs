//! Demonstrations of Plan-Path by imperfect experts, to warm a policy up on.
//!
//! Each answer is given by one demonstrator, drawn by the mix: `opt` walks a shortest path chosen at random, as
//! many moves as a turn has; `lazy` makes the first move of one and stops; `manhattan` walks towards the goal
//! as if there were no walls;
//! `random` makes one to all moves anywhere on the board. A planner carries out the proposal that it sees, good or bad, with
//! probability `follow`, and otherwise gives an answer of its own. A majority of lazy answers is what makes the
//! warmed-up policy weak in a way that reinforcement can mend: greedy decoding averages rare mistakes out, but
//! not a majority habit.
//!
//! Neighbouring samples share their board, and so the beginning of their prompts.

use std::sync::Arc;

use record::failure::Result;
use record::philox::{Draws, Part, Stream};
use record::sample::Sample;

use super::map::{Cell, Map, Move};
use super::spec::{self, Rules};
use super::state::PlanPathState;
use super::{NAME, generate};
use crate::demonstration;
use crate::environment::{Demonstration, Split, State};
use crate::workflow::Workflow;

/// The kinds and their default shares.
pub const KINDS: &[(&str, f64)] = &[("opt", 0.25), ("lazy", 0.55), ("manhattan", 0.1), ("random", 0.1)];

/// The moves that one demonstrator makes in a turn, at least one; `cell` is not the goal.
fn moves(kind: &str, map: &Map, cell: Cell, most: u32, draws: &mut Draws) -> Vec<Move> {
    let count = match kind {
        "lazy" => 1,
        "random" => 1 + draws.below(most),
        _ => most,
    };
    let goal = map.place(map.goal());
    let mut place = map.place(cell);
    let mut made = Vec::with_capacity(count as usize);
    while made.len() < count as usize && place != goal {
        let distance = map.distance(map.cell(place));
        let (mut choices, mut found) = ([Move::Up; 4], 0);
        for step in Move::ALL {
            let Some(next) = place.step(step).filter(|next| map.holds(*next)) else { continue };
            let apart =
                |place: super::map::Place| place.row.abs_diff(goal.row) + place.column.abs_diff(goal.column);
            let takes = match kind {
                "random" => true,
                "manhattan" => apart(next) < apart(place),
                _ => map.distance(map.cell(next)) < distance,
            };
            if takes {
                choices[found] = step;
                found += 1;
            }
        }
        let Some(step) = draws.choose(&choices[..found]).copied() else { break };
        place = place.step(step).unwrap_or(place);
        made.push(step);
    }
    made
}

/// The samples about the task at `index`.
pub fn samples(
    rules: &Rules,
    workflow: &Arc<Workflow>,
    demonstration: &Demonstration,
    index: u64,
) -> Result<Vec<Sample>> {
    let seed = demonstration.tasks.seed;
    let drawn = generate::train(rules, seed, index)?;
    let task = drawn.task(rules, Split::Train);
    let instance = Arc::new(spec::Instance::parse(&task.spec)?);
    let cells: Vec<Cell> = instance.map.reachable().filter(|cell| *cell != instance.map.goal()).collect();
    let mut draws =
        Draws::new(Stream::named(seed, &[Part::Text(NAME), Part::Text("demo"), Part::Number(index)]));
    let mut samples = Vec::with_capacity(demonstration.states as usize * workflow.agents().len());
    for number in 0..demonstration.states {
        let Some(cell) = draws.choose(&cells).copied() else { break };
        let mut state = PlanPathState::starting_at(Arc::clone(&instance), Arc::clone(workflow), cell);
        let episode = format!("{index}.{number}");
        let mut proposed: Option<Vec<Move>> = None;
        for agent in workflow.agents() {
            let own = |draws: &mut Draws| {
                moves(demonstration.kind(draws), &instance.map, cell, instance.moves, draws)
            };
            let moves = match proposed.take() {
                Some(moves) if f64::from(draws.uniform()) < demonstration.follow => moves,
                _ => own(&mut draws),
            };
            let completion = state.write(agent, &moves);
            let prompt = state.observe(agent);
            samples.push(demonstration::sample(&task, &episode, agent, prompt, completion.clone()));
            state.apply(agent, &completion)?;
            proposed = Some(moves);
        }
    }
    Ok(samples)
}
