//! Demonstrations of Sudoku by imperfect experts, to warm a policy up on.
//!
//! Each answer is given by one demonstrator, drawn by the mix: `opt` places right digits, the surest first, as many
//! as a turn has; `lazy` places one of them and stops; `legal` places digits that clash with nothing on the board,
//! right or wrong; `random` places any digit in any cell. A planner carries out the proposal that it sees, good or
//! bad, with probability `follow`, and otherwise gives an answer of its own. A majority of lazy answers is what
//! makes the warmed-up policy weak in a way that reinforcement can mend: greedy decoding averages rare mistakes out,
//! but not a majority habit.
//!
//! Boards are the puzzle with some right digits filled in, and now and then a wrong one, so that mending is shown
//! too.

use std::sync::Arc;

use record::failure::Result;
use record::philox::{Draws, Part, Stream};
use record::sample::Sample;

use super::board::{self, Placement};
use super::spec::{Instance, Rules};
use super::state::SudokuState;
use super::{NAME, generate, solve};
use crate::demonstration;
use crate::environment::{Demonstration, Split, State};
use crate::workflow::Workflow;

/// The kinds and their default shares.
pub const KINDS: &[(&str, f64)] = &[("opt", 0.3), ("lazy", 0.5), ("legal", 0.1), ("random", 0.1)];
/// Share of boards with a wrong digit on them.
const WITH_MISTAKE: f64 = 0.15;

/// The digits that one demonstrator places in a turn, at least one.
fn placements(kind: &str, state: &SudokuState, draws: &mut Draws) -> Vec<Placement> {
    let Instance { shape, solution, fills, .. } = state.instance();
    let count = if kind == "lazy" { 1 } else { *fills as usize };
    let size = shape.size() as u32;
    if matches!(kind, "opt" | "lazy") {
        let cells = state.missing().into_iter().take(count);
        return cells.map(|cell| Placement { cell, digit: solution[cell] }).collect();
    }
    let count = 1 + draws.below(count as u32) as usize;
    let mut board = state.board().to_vec();
    let mut placed = Vec::with_capacity(count);
    for _ in 0..count {
        let empty: Vec<usize> = (0..shape.cells()).filter(|cell| board[*cell] == 0).collect();
        let any = draws.below(shape.cells() as u32) as usize;
        let (cell, digits) = match draws.choose(&empty).copied() {
            Some(cell) if kind == "legal" => (cell, solve::candidates(*shape, &board, cell)),
            _ => (any, Vec::new()),
        };
        let digit = match draws.choose(&digits) {
            Some(digit) => *digit,
            None => 1 + draws.below(size) as u8,
        };
        placed.push(Placement { cell, digit });
        board[cell] = digit;
    }
    placed
}

/// A board on the way to the solution, with at least one cell that is not right yet.
fn board(instance: &Instance, draws: &mut Draws) -> Vec<u8> {
    let mut board = instance.clues.clone();
    let mut empty: Vec<usize> = (0..board.len()).filter(|cell| board[*cell] == 0).collect();
    draws.shuffle(&mut empty);
    for cell in &empty[..draws.below(empty.len() as u32) as usize] {
        board[*cell] = instance.solution[*cell];
    }
    if f64::from(draws.uniform()) < WITH_MISTAKE
        && let Some(cell) = empty.last().copied()
    {
        let digit = 1 + draws.below(instance.shape.size() as u32) as u8;
        board::place(instance.shape, &instance.clues, &mut board, &[Placement { cell, digit }]);
    }
    // The last of the emptied cells was not filled in, so a right digit there by chance may complete the board.
    if board == instance.solution { instance.clues.clone() } else { board }
}

/// The samples about the task at `index`.
pub fn samples(
    rules: &Rules,
    workflow: &Arc<Workflow>,
    demonstration: &Demonstration,
    index: u64,
) -> Result<Vec<Sample>> {
    let seed = demonstration.tasks.seed;
    let clues = generate::train(rules, seed, index)?;
    let task = generate::task(rules, &clues, Split::Train);
    let instance = Arc::new(Instance::parse(&task.spec)?);
    let mut draws =
        Draws::new(Stream::named(seed, &[Part::Text(NAME), Part::Text("demo"), Part::Number(index)]));
    let mut samples = Vec::with_capacity(demonstration.states as usize * workflow.agents().len());
    for number in 0..demonstration.states {
        let board = board(&instance, &mut draws);
        let mut state = SudokuState::with_board(Arc::clone(&instance), Arc::clone(workflow), board);
        let episode = format!("{index}.{number}");
        let mut proposed: Option<Vec<Placement>> = None;
        for agent in workflow.agents() {
            let answer = match proposed.take() {
                Some(placements) if f64::from(draws.uniform()) < demonstration.follow => placements,
                _ => placements(demonstration.kind(&mut draws), &state, &mut draws),
            };
            let completion = state.write(&answer);
            let prompt = state.observe(agent);
            samples.push(demonstration::sample(&task, &episode, agent, prompt, completion.clone()));
            state.apply(agent, &completion)?;
            proposed = Some(answer);
        }
    }
    Ok(samples)
}
