//! Sudoku: fill a board of 4×4 or 9×9 cells, some digits per turn.
//!
//! From Stronger-MAS (arXiv 2510.11062), with the workflows of [`crate::grid::world`]. Puzzles are proper: they have
//! exactly one solution, and their clues never change.
//!
//! - here: settings, the `spec` of a task, and the world;
//! - [`board`]: cells, units and placing digits; [`solve`]: the solver; [`rules`]: rewards of turns;
//! - [`generate`]: draws tasks, train and test; [`canonical`]: the canonical form of equivalent puzzles;
//! - [`compact`], [`full`]: the two encodings; [`demonstrate`]: imperfect experts;
//!   [`test_actions`]: for `envs check`.

pub mod board;
pub mod canonical;
mod compact;
mod demonstrate;
mod full;
pub mod generate;
mod rules;
pub mod solve;
mod test_actions;

use record::failure::{Failure, Result};
use record::philox::Draws;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::grid::bounds::bounds;
use crate::grid::world::{Episode, GridEnvironment, GridWorld, PLACING, Situations};
use crate::grid::{ActionFormat, Parsed};
use board::{Board, Placement, SIZES, Shape};
use environment::settings::{ENCODING, Encoding, REWARD, RewardMode, Setting, Settings, TURNS};
use environment::spec::{fail, read};
use environment::{ExtractionCase, Metadata, Outcome, Split};

/// The environment.
pub static SUDOKU: GridEnvironment<Instance> = GridEnvironment::new(
    "sudoku",
    Metadata {
        summary: "fill a board with digits, some a turn",
        workflows: &PLACING,
        settings: &[
            Setting::new("size", "4", "cells a side, 4 or 9"),
            ENCODING,
            Setting::new("fills", "2; all cells if size = 9 or full", "most digits placed in a turn"),
            TURNS,
            REWARD,
            Setting::new("fewest", "3; 30 if size = 9", "least number of empty cells of a puzzle"),
            Setting::new(
                "most",
                "7; 45 if size = 9",
                "greatest number of empty cells, at most fills x turns",
            ),
        ],
        demonstrators: &[("opt", 0.3), ("lazy", 0.5), ("legal", 0.1), ("random", 0.1)],
        max_tokens: |settings| match (settings.text("size") == Some("9"), settings.is_prose()) {
            (true, true) => 512, // a grid of 81 digits
            (true, false) => 96,
            (false, true) => 128,
            (false, false) => 8,
        },
    },
);

/// How tasks are drawn.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Everything in a `spec` except the clues.
    spec: RawSpec,
    shape: Shape,
    /// Least number of empty cells.
    fewest: u32,
    /// Greatest number of empty cells.
    most: u32,
}

/// A task, complete in itself: the solver finds the solution again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpec {
    size: usize,
    encoding: Encoding,
    fills: u32,
    turns: u32,
    #[serde(default, skip_serializing_if = "RewardMode::is_default")]
    reward: RewardMode,
    clues: String,
}

/// A puzzle, constant during its episodes.
#[derive(Debug)]
pub struct Instance {
    /// The geometry.
    pub shape: Shape,
    /// The clues; 0 for an empty cell.
    pub clues: Board,
    /// The only solution.
    pub solution: Board,
    episode: Episode,
}

/// A board in state JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawBoard {
    board: String,
}

impl Instance {
    /// The cells whose digit differs from the solution's, most constrained first, ignoring
    /// constraints by wrong digits.
    fn missing(&self, board: &Board) -> Vec<usize> {
        let digits = board.iter().zip(&self.solution);
        let right: Board = digits.map(|(digit, right)| if digit == right { *digit } else { 0 }).collect();
        let mut missing: Vec<usize> = (0..right.len()).filter(|cell| right[*cell] == 0).collect();
        missing.sort_by_cached_key(|cell| solve::candidates(self.shape, &right, *cell).len());
        missing
    }
}

impl GridWorld for Instance {
    const ATTEMPTS: u32 = 2000;

    type Rules = Rules;
    type Situation = Board;
    type RawSituation = RawBoard;
    type Step = Placement;

    fn rules(settings: &Settings) -> Result<Rules> {
        let size: usize = settings.value("size", "a whole number")?.unwrap_or(4);
        let shape = Shape::new(size)
            .ok_or_else(|| Failure::usage(format!("--set size={size}: not one of {SIZES:?}")))?;
        let cells = shape.cells() as u32;
        let small = size == 4;
        let encoding = Encoding::from_settings(settings)?;
        let default = if small && encoding == Encoding::Compact { 2 } else { cells };
        let fills = settings.whole("fills", default, 1, cells)?;
        let turns = settings.whole("turns", 4, 1, 99)?;
        // A 4x4 puzzle has at least 4 clues, a 9x9 puzzle at least 17.
        let (defaults, limit) = if small { ([3, 7], 12) } else { ([30, 45], 64) };
        let (fewest, most) = bounds(settings, ["fewest", "most"], defaults, limit, (fills, "fills"), turns)?;
        let reward = RewardMode::from_settings(settings)?;
        let spec = RawSpec { size, encoding, fills, turns, reward, clues: String::new() };
        Ok(Rules { spec, shape, fewest, most })
    }

    fn draw(rules: &Rules, split: Split, draws: &mut Draws) -> Option<(Value, u64)> {
        generate::draw(rules, split, draws)
    }

    fn describe(Rules { spec, fewest, most, .. }: &Rules) -> (String, &'static str) {
        (
            format!("size={} fewest={fewest} most={most}", spec.size),
            "puzzles with fewer empty cells are easier to find",
        )
    }

    /// # Errors
    /// It is not a Sudoku task, or its puzzle does not have exactly one solution: data.
    fn parse(spec: &Value) -> Result<Instance> {
        let RawSpec { size, encoding, fills, turns, reward, clues } = read(spec)?;
        let shape = Shape::new(size).ok_or_else(|| fail(format!("size: {size} is not one of {SIZES:?}")))?;
        let episode =
            Episode::new(spec, encoding, None, ("fills", fills, shape.cells() as u32), turns, reward)?;
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

    fn episode(&self) -> &Episode {
        &self.episode
    }

    fn start(&self) -> Board {
        self.clues.clone()
    }

    fn save(&self, board: &Board) -> RawBoard {
        RawBoard { board: board::write(board) }
    }

    fn load(&self, RawBoard { board: text }: RawBoard) -> Result<Board> {
        let shape = self.shape;
        let board = shape.parse(&text).ok_or_else(|| {
            Failure::data(format!("board: '{text}' is no board of {} cells", shape.cells()))
        })?;
        for (cell, digit) in board.iter().copied().enumerate() {
            if self.clues[cell] != 0 && self.clues[cell] != digit {
                return Err(Failure::data(format!("board: cell {cell} is {digit}, and its clue is not")));
            }
            if digit != 0 && shape.clashes(&board, cell, digit).next().is_some() {
                return Err(Failure::data(format!(
                    "board: the {digit} in cell {cell} clashes with another one"
                )));
            }
        }
        Ok(board)
    }

    fn ending(&self, board: &Board) -> Option<&'static str> {
        (*board == self.solution).then_some("the puzzle is solved")
    }

    fn prompt(&self, board: &Board, proposal: Option<&str>, agent: &str) -> String {
        match self.episode.is_compact() {
            true => compact::prompt(&self.clues, board, proposal, agent),
            false => full::prompt(self, board, proposal, agent),
        }
    }

    fn write(&self, _board: &Board, format: ActionFormat, placements: &[Placement]) -> String {
        match format {
            ActionFormat::Prose => full::write_answer(self.shape, placements),
            _ => compact::write(self.shape, placements),
        }
    }

    fn read(&self, board: &Board, format: ActionFormat, text: &str) -> Option<Parsed<Placement>> {
        let placements = match format {
            ActionFormat::Prose => full::read(self.shape, board, text, self.episode.steps),
            _ => compact::read(self.shape, text, self.episode.steps),
        };
        Parsed::steps(placements?)
    }

    fn shown(&self, format: ActionFormat, _text: &str, action: &Parsed<Placement>) -> String {
        match format {
            ActionFormat::Prose => full::write_list(self.shape, &action.steps),
            _ => compact::write(self.shape, &action.steps),
        }
    }

    fn play(&self, board: &Board, agent: &str, action: &Parsed<Placement>) -> (Board, Outcome) {
        let mut after = board.clone();
        let legal = board::place(self.shape, &self.clues, &mut after, &action.steps);
        let solved = after == self.solution;
        let progress = rules::progress(self, board, &after);
        let outcome = rules::outcome(agent, true, legal, progress, f64::from(solved));
        (after, Outcome { terminated: solved, success: solved, ..outcome })
    }

    fn malformed(agent: &str) -> Outcome {
        rules::outcome(agent, false, false, 0.0, 0.0)
    }

    /// The right digits that a turn can place, up to its limit, the most certain first.
    fn best(&self, board: &Board) -> Vec<Placement> {
        let cells = self.missing(board).into_iter().take(self.episode.steps as usize);
        cells.map(|cell| Placement { cell, digit: self.solution[cell] }).collect()
    }

    fn is_solved(&self, board: &Board) -> bool {
        let mut clues = self.clues.iter().zip(board).filter(|(clue, _)| **clue != 0);
        self.shape.complete(board) && clues.all(|(clue, digit)| clue == digit)
    }

    fn test_actions(&self, board: &Board, write: &dyn Fn(&[Placement]) -> String) -> Vec<String> {
        test_actions::all(self, &self.best(board), &self.missing(board), write)
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        test_actions::extraction_cases()
    }

    fn picture(&self, board: &Board) -> String {
        full::picture(self.shape, board)
    }

    fn situations<'a>(&'a self, _rules: &Rules) -> Box<Situations<'a, Instance>> {
        Box::new(|draws| Some(demonstrate::board(self, draws)))
    }

    fn demonstrate(&self, kind: &str, board: &Board, draws: &mut Draws) -> Vec<Placement> {
        demonstrate::placements(kind, self, board, draws)
    }
}
