//! Draws Sudoku tasks, divides them into train and test, and names them.
//!
//! A puzzle is a random complete board with cells emptied in random order until the drawn number is empty; a
//! cell is emptied only if the solution stays unique. It belongs to `test` if a hash of its
//! [`canonical::form`] is divisible by 8, so no puzzle seen in training comes back in the test split, turned
//! over, rearranged or with other digits.
//!
//! There are few 4×4 puzzles up to symmetry (2,448 with 3 to 7 empty cells), and the test split holds
//! different arrangements of its share of them. The division is by puzzle: a board half filled in while
//! training may equal the start of a test puzzle.

use record::philox::Draws;
use serde_json::Value;

use super::board::{self, Board, Shape};
use super::{RawSpec, Rules, canonical, solve};
use environment::Split;
use environment::spec::write;
use environment::streams;

/// One in this many puzzles is for testing.
const TEST_SHARE: u64 = 8;

/// The split of a puzzle.
pub fn split_of(shape: Shape, clues: &[u8]) -> Split {
    streams::split_of(&canonical::form(shape, clues), TEST_SHARE)
}

/// One draw: the `spec` and the hash for its name; `None` in the other split, or if too few cells could be
/// emptied.
pub fn draw(rules: &Rules, split: Split, draws: &mut Draws) -> Option<(Value, u64)> {
    let empty = rules.fewest + draws.below(rules.most - rules.fewest + 1);
    let clues = puzzle(rules.shape, empty, draws)?;
    let spec = || write(&RawSpec { clues: board::write(&clues), ..rules.spec.clone() });
    (split_of(rules.shape, &clues) == split).then(|| (spec(), streams::first_word(&clues)))
}

/// A puzzle with `empty` empty cells; `None` if that many could not be emptied.
fn puzzle(shape: Shape, empty: u32, draws: &mut Draws) -> Option<Board> {
    let mut clues = solve::random(shape, draws);
    let mut order: Vec<usize> = (0..shape.cells()).collect();
    draws.shuffle(&mut order);
    let mut emptied = 0;
    for cell in order {
        if emptied == empty {
            break;
        }
        let digit = std::mem::take(&mut clues[cell]);
        match solve::unique(shape, &clues) {
            Some(_) => emptied += 1,
            None => clues[cell] = digit,
        }
    }
    if emptied == empty { Some(clues) } else { None }
}
