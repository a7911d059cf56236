//! Demonstrations of Sokoban by imperfect experts, to warm a policy up on.
//!
//! Each answer is given by one demonstrator, drawn by the mix: `opt` follows a shortest solution chosen at random, as
//! many moves as a turn has; `lazy` makes the first move of one and stops; `straight` walks towards a box as the crow
//! flies and pushes on; `random` makes one to all moves in any direction. A planner carries out the proposal that it
//! sees, good or bad, with probability `follow`, and otherwise gives an answer of its own. A majority of lazy answers
//! is what makes the warmed-up policy weak in a way that reinforcement can mend: greedy decoding averages rare
//! mistakes out, but not a majority habit.
//!
//! Situations are those of the level that can still be solved, each as likely as any other. Neighbouring samples
//! share their level, and so the beginning of their prompts.

use std::sync::Arc;

use record::failure::Result;
use record::philox::{Draws, Part, Stream};
use record::sample::Sample;

use super::level::{Level, Situation};
use super::spec::{Instance, Rules};
use super::state::SokobanState;
use super::{NAME, generate};
use crate::demonstration;
use crate::environment::{Demonstration, Split, State};
use crate::grid::Move;
use crate::workflow::Workflow;

/// The kinds and their default shares.
pub const KINDS: &[(&str, f64)] = &[("opt", 0.3), ("lazy", 0.5), ("straight", 0.1), ("random", 0.1)];

/// The moves that one demonstrator makes in a turn, at least one; `start` is neither solved nor dead.
fn moves(kind: &str, level: &Level, start: &Situation, most: u32, draws: &mut Draws) -> Vec<Move> {
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
    let here = level.place(situation.player);
    let boxes = situation.boxes().iter().filter(|cell| !level.goals().contains(cell));
    let apart = |place: &crate::grid::Place| {
        (place.row.abs_diff(here.row) + place.column.abs_diff(here.column), *place)
    };
    let Some(nearest) = boxes.map(|cell| level.place(*cell)).min_by_key(apart) else { return Vec::new() };
    let mut steps = Vec::with_capacity(2);
    for (step, towards) in [
        (Move::Up, nearest.row < here.row),
        (Move::Down, nearest.row > here.row),
        (Move::Left, nearest.column < here.column),
        (Move::Right, nearest.column > here.column),
    ] {
        if towards {
            steps.push(step);
        }
    }
    steps
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
    let task = generate::task(rules, &drawn, Split::Train);
    let instance = Arc::new(Instance::parse(&task.spec)?);
    let farthest = rules.farthest;
    let situations: Vec<Situation> = instance
        .level
        .solvable()
        .filter(|(_, distance)| (1..=farthest).contains(&u32::from(*distance)))
        .map(|(situation, _)| situation)
        .collect();
    let mut draws =
        Draws::new(Stream::named(seed, &[Part::Text(NAME), Part::Text("demo"), Part::Number(index)]));
    let mut samples = Vec::with_capacity(demonstration.states as usize * workflow.agents().len());
    for number in 0..demonstration.states {
        let Some(situation) = draws.choose(&situations).copied() else { break };
        let mut state = SokobanState::starting_at(Arc::clone(&instance), Arc::clone(workflow), situation);
        let episode = format!("{index}.{number}");
        let mut proposed: Option<Vec<Move>> = None;
        for agent in workflow.agents() {
            let answer = match proposed.take() {
                Some(moves) if f64::from(draws.uniform()) < demonstration.follow => moves,
                _ => {
                    let kind = demonstration.kind(&mut draws);
                    moves(kind, &instance.level, &situation, instance.moves, &mut draws)
                }
            };
            let completion = state.write(agent, &answer);
            let prompt = state.observe(agent);
            samples.push(demonstration::sample(&task, &episode, agent, prompt, completion.clone()));
            state.apply(agent, &completion)?;
            proposed = Some(answer);
        }
    }
    Ok(samples)
}
