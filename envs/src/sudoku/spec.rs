//! Settings, and the `spec` of a Sudoku task.
//!
//! `spec` alone rebuilds the instance; its solution is found again by the solver, and a `spec` whose puzzle has
//! none or several is refused.

use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::board::{self, Board, SIZES, Shape};
use super::solve;
use crate::grid::world::Episode;
use crate::settings::{ENCODING, Encoding, Setting, Settings, TURNS};
use crate::spec::{fail, read, write};

/// What `--set` understands.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new("size", "4", "cells a side, 4 or 9"),
    ENCODING,
    Setting::new("fills", "2; all cells if size = 9 or full", "most digits placed in a turn"),
    TURNS,
    Setting::new("fewest", "3; 30 if size = 9", "least number of empty cells of a puzzle"),
    Setting::new("most", "7; 45 if size = 9", "greatest number of empty cells, at most fills x turns"),
];

/// The rules of an episode, and how its puzzle is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    pub(crate) shape: Shape,
    encoding: Encoding,
    fills: u32,
    turns: u32,
    /// Least number of empty cells.
    pub(crate) fewest: u32,
    /// Greatest number of empty cells.
    pub(crate) most: u32,
}

impl Rules {
    pub(crate) fn from_settings(settings: &Settings) -> Result<Rules> {
        let size: usize = settings.value("size", "a whole number")?.unwrap_or(4);
        let shape = Shape::new(size)
            .ok_or_else(|| Failure::usage(format!("--set size={size}: not one of {SIZES:?}")))?;
        let cells = shape.cells() as u32;
        let small = size == 4;
        let encoding = Encoding::from_settings(settings)?;
        let default = if small && encoding == Encoding::Compact { 2 } else { cells };
        let fills = settings.whole("fills", default, 1, cells)?;
        let turns = settings.whole("turns", 4, 1, 99)?;
        // No puzzle of 4x4 has fewer than 4 clues, and none of 9x9 fewer than 17.
        let (defaults, limit) = if small { ([3, 7], 12) } else { ([30, 45], 64) };
        let (fewest, most) = settings.bounds(["fewest", "most"], defaults, limit, (fills, "fills"), turns)?;
        Ok(Rules { shape, encoding, fills, turns, fewest, most })
    }

    /// The `spec` of a puzzle drawn by these rules.
    pub(crate) fn spec(&self, clues: &Board) -> Value {
        let Rules { shape, encoding, fills, turns, .. } = *self;
        write(&RawSpec { size: shape.size(), encoding, fills, turns, clues: board::write(clues) })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpec {
    size: usize,
    encoding: Encoding,
    fills: u32,
    turns: u32,
    clues: String,
}

/// A puzzle with everything that stays the same during its episodes.
#[derive(Debug)]
pub struct Instance {
    /// The geometry.
    pub shape: Shape,
    /// The clues; 0 where there is none.
    pub clues: Board,
    /// The only solution.
    pub solution: Board,
    pub(crate) episode: Episode,
}

impl Instance {
    /// The instance that `spec` describes.
    ///
    /// # Errors
    /// A `spec` that is no Sudoku instance, or whose puzzle has not exactly one solution: data.
    pub fn parse(spec: &Value) -> Result<Instance> {
        let RawSpec { size, encoding, fills, turns, clues } = read(spec)?;
        let shape = Shape::new(size).ok_or_else(|| fail(format!("size: {size} is not one of {SIZES:?}")))?;
        let episode = Episode::new(spec, encoding, None, ("fills", fills, shape.cells() as u32), turns)?;
        let clues = shape.parse(&clues).ok_or_else(|| {
            fail(format!("clues: '{clues}' is no board of {} cells", shape.cells()))
                .hint("digits in reading order, '.' for an empty cell")
        })?;
        let mut solutions = solve::solutions(shape, &clues, 2);
        let solution = match (solutions.pop(), solutions.pop()) {
            (Some(solution), None) if solution != clues => solution,
            (Some(_), None) => return Err(fail("clues: the board is already complete")),
            (None, _) => return Err(fail("clues: the puzzle has no solution")),
            (Some(_), Some(_)) => return Err(fail("clues: the puzzle has more than one solution")),
        };
        Ok(Instance { shape, clues, solution, episode })
    }
}
