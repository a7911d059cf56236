//! The `spec` of a Sudoku task: a puzzle and its rules, as JSON and as values.
//!
//! `spec` alone rebuilds the instance; its solution is found again by the solver, and a `spec` whose puzzle has
//! none or several is refused.

use serde::Deserialize;
use serde_json::{Map as Object, Value};

use record::failure::{Failure, Result};

use super::board::{self, SIZES, Shape};
use super::solve;
use crate::settings::{Encoding, Setting, Settings, ranged};

/// What `--set` understands.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "size", default: "4", meaning: "cells a side, 4 or 9" },
    Setting {
        name: "encoding",
        default: "compact",
        meaning: "compact (one word a cell) or full (prose and a grid)",
    },
    Setting {
        name: "fills",
        default: "2; all cells if size = 9 or full",
        meaning: "most digits placed in a turn",
    },
    Setting { name: "turns", default: "4", meaning: "turns in an episode, 1 to 99" },
    Setting {
        name: "fewest",
        default: "3; 30 if size = 9",
        meaning: "least number of empty cells of a puzzle",
    },
    Setting {
        name: "most",
        default: "7; 45 if size = 9",
        meaning: "greatest number of empty cells, at most fills x turns",
    },
];

/// The rules of an episode, and how its puzzle is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// The geometry.
    pub shape: Shape,
    /// How situations are put into words.
    pub encoding: Encoding,
    /// Most digits placed in a turn.
    pub fills: u32,
    /// Turns in an episode.
    pub turns: u32,
    /// Least number of empty cells.
    pub fewest: u32,
    /// Greatest number of empty cells.
    pub most: u32,
}

impl Rules {
    /// The rules that `--set` describes.
    ///
    /// # Errors
    /// Values that are out of range or contradict each other: usage.
    pub fn from_settings(settings: &Settings) -> Result<Rules> {
        let whole = "a whole number";
        let size: usize = settings.value("size", whole)?.unwrap_or(4);
        let shape = Shape::new(size)
            .ok_or_else(|| Failure::usage(format!("--set size={size}: not one of {SIZES:?}")))?;
        let cells = shape.cells() as u32;
        let small = size == 4;
        let encoding = Encoding::from_settings(settings)?;
        let default = if small && encoding == Encoding::Compact { 2 } else { cells };
        let fills = ranged("fills", settings.value("fills", whole)?.unwrap_or(default), 1, cells)?;
        let turns = ranged("turns", settings.value("turns", whole)?.unwrap_or(4), 1, 99)?;
        let reach = fills * turns;
        // No puzzle of 4x4 has fewer than 4 clues, and none of 9x9 fewer than 17.
        let limit = if small { 12 } else { 64 };
        let most = match settings.value("most", whole)? {
            Some(most) if most > reach => {
                return Err(Failure::usage(format!(
                    "--set most={most}: an episode has {fills} x {turns} = {reach} fills, so it could not be solved"
                ))
                .hint("give it more fills or turns"));
            }
            Some(most) => ranged("most", most, 1, limit)?,
            None => reach.min(if small { 7 } else { 45 }),
        };
        let fewest = match settings.value("fewest", whole)? {
            Some(fewest) => ranged("fewest", fewest, 1, most)?,
            None => most.min(if small { 3 } else { 30 }),
        };
        Ok(Rules { shape, encoding, fills, turns, fewest, most })
    }

    /// The `spec` of a puzzle drawn by these rules.
    pub fn spec(&self, clues: &[u8]) -> Value {
        let mut spec = Object::new();
        let mut put = |key: &str, value: Value| spec.insert(key.to_owned(), value);
        put("size", self.shape.size().into());
        put("encoding", self.encoding.name().into());
        put("fills", self.fills.into());
        put("turns", self.turns.into());
        put("clues", board::write(clues).into());
        Value::Object(spec)
    }
}

/// `spec` as it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'a> {
    size: usize,
    encoding: Encoding,
    fills: u32,
    turns: u32,
    clues: &'a str,
}

/// A puzzle with everything that stays the same during its episodes.
#[derive(Debug)]
pub struct Instance {
    /// The geometry.
    pub shape: Shape,
    /// The clues; 0 where there is none.
    pub clues: Vec<u8>,
    /// The only solution.
    pub solution: Vec<u8>,
    /// Most digits placed in a turn.
    pub fills: u32,
    /// Turns in an episode.
    pub turns: u32,
    /// How situations are put into words.
    pub encoding: Encoding,
    /// The `spec` that this was read from.
    pub spec: Value,
}

impl Instance {
    /// The instance that `spec` describes.
    ///
    /// # Errors
    /// A `spec` that is no Sudoku instance, or whose puzzle has not exactly one solution: data.
    pub fn parse(spec: &Value) -> Result<Instance> {
        let Written { size, encoding, fills, turns, clues } =
            Written::deserialize(spec).map_err(|error| Failure::data(format!("spec: {error}")))?;
        let shape = Shape::new(size)
            .ok_or_else(|| Failure::data(format!("spec: size: {size} is not one of {SIZES:?}")))?;
        let within = |name: &str, value: u32, most: u32| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(Failure::data(format!("spec: {name}: {value} is not from 1 to {most}"))),
        };
        within("fills", fills, shape.cells() as u32)?;
        within("turns", turns, 99)?;
        let clues = shape.parse(clues).ok_or_else(|| {
            Failure::data(format!("spec: clues: '{clues}' is no board of {} cells", shape.cells()))
                .hint("digits in the order of reading, '.' for an empty cell")
        })?;
        let mut solutions = solve::solutions(shape, &clues, 2);
        let solution = match (solutions.pop(), solutions.pop()) {
            (Some(solution), None) if solution != clues => solution,
            (Some(_), None) => return Err(Failure::data("spec: clues: the board is already complete")),
            (None, _) => return Err(Failure::data("spec: clues: the puzzle has no solution")),
            (Some(_), Some(_)) => {
                return Err(Failure::data("spec: clues: the puzzle has more than one solution"));
            }
        };
        Ok(Instance { shape, clues, solution, fills, turns, encoding, spec: spec.clone() })
    }
}
