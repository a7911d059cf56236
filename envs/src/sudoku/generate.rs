//! Which Sudoku tasks there are: drawing puzzles, dividing them into train and test, and their names.
//!
//! A puzzle is a complete board by chance with cells emptied in an order by chance, each only if the solution
//! stays the only one, until as many are empty as were drawn. It belongs to `test` when a hash of its
//! [`canonical::form`] is divisible by 8, so no puzzle seen in training comes back in the test split, not
//! turned over, not rearranged and not with other digits.
//!
//! Of 4×4 there are few puzzles up to symmetry (2,448 with 3 to 7 empty cells), and the test split
//! holds different arrangements of its share of them. What is divided are puzzles: a board half filled in while
//! training may look like one that a test begins with.

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Stream};

use super::board::Shape;
use super::spec::Rules;
use super::{NAME, canonical, solve};
use crate::environment::{Selection, Split, Tasks};
use crate::streams;

/// One in this many puzzles is for testing.
const TEST_SHARE: u64 = 8;
/// Draws after which rules are found to allow no task.
const ATTEMPTS: u32 = 2000;

/// The clues of the train puzzle at `index` of the stream that `seed` names.
///
/// # Errors
/// The rules allow no puzzle: usage.
pub fn train(rules: &Rules, seed: u64, index: u64) -> Result<Vec<u8>> {
    draw_for(rules, Split::Train, streams::train_stream(NAME, seed, index))
}

/// The task line of a puzzle.
pub fn task(rules: &Rules, clues: &[u8], split: Split) -> Task {
    Task {
        env: NAME.to_owned(),
        task: format!("{NAME}/{}/{:016x}", split.name(), streams::first_word(clues)),
        split: Some(split.name().to_owned()),
        spec: rules.spec(clues),
        ..Task::default()
    }
}

/// Tasks without end.
pub fn tasks(rules: Rules, selection: &Selection) -> Tasks<'static> {
    streams::tasks(NAME, selection, move |split, stream| {
        Ok(task(&rules, &draw_for(&rules, split, stream)?, split))
    })
}

/// Which split a puzzle belongs to.
pub fn split_of(shape: Shape, clues: &[u8]) -> Split {
    streams::split_of(&canonical::form(shape, clues), TEST_SHARE)
}

/// The first puzzle of a stream that belongs to the split.
fn draw_for(rules: &Rules, split: Split, stream: Stream) -> Result<Vec<u8>> {
    let mut draws = Draws::new(stream);
    let span = rules.most - rules.fewest + 1;
    for _ in 0..ATTEMPTS {
        let empty = rules.fewest + draws.below(span);
        if let Some(clues) = draw(rules.shape, empty, &mut draws)
            && split_of(rules.shape, &clues) == split
        {
            return Ok(clues);
        }
    }
    Err(Failure::usage(format!(
        "no {} task in {ATTEMPTS} draws: size={} fewest={} most={}",
        split.name(),
        rules.shape.size(),
        rules.fewest,
        rules.most
    ))
    .hint("puzzles with fewer empty cells are easier to find"))
}

/// One draw with `empty` empty cells; none if so many could not be emptied.
fn draw(shape: Shape, empty: u32, draws: &mut Draws) -> Option<Vec<u8>> {
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
