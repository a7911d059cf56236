//! Imperfect experts of Sudoku, to warm up a policy.
//!
//! `opt` places right digits, the surest first, up to the limit of a turn; `lazy` places one of them and
//! stops; `legal` places digits that clash with nothing on the board, right or wrong; `random` places any
//! digit in any cell. A majority of lazy actions makes the warmed-up policy weak in a way that reinforcement
//! can fix: greedy decoding averages rare mistakes out, but not a majority habit.

use record::philox::Draws;

use super::Instance;
use super::board::{self, Board, Placement};
use super::solve;

/// Share of boards with a wrong digit on them.
const WITH_MISTAKE: f64 = 0.15;

/// The digits that one demonstrator places in a turn, at least one.
pub fn placements(kind: &str, instance: &Instance, board: &Board, draws: &mut Draws) -> Vec<Placement> {
    let Instance { shape, solution, episode, .. } = instance;
    let count = if kind == "lazy" { 1 } else { episode.steps as usize };
    let size = shape.size() as u32;
    if matches!(kind, "opt" | "lazy") {
        let cells = instance.missing(board).into_iter().take(count);
        return cells.map(|cell| Placement { cell, digit: solution[cell] }).collect();
    }
    let count = 1 + draws.below(count as u32) as usize;
    let mut board = board.clone();
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

/// The puzzle with some right digits filled in, and sometimes a wrong one, so that corrections are demonstrated too; at
/// least one cell is not right yet.
pub fn board(instance: &Instance, draws: &mut Draws) -> Board {
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
