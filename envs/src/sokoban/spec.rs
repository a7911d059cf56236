//! Settings, and the `spec` of a Sokoban task.
//!
//! `spec` alone rebuilds the instance; a `spec` whose level cannot be solved is refused.

use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::level::{Cell, DEAD, LARGEST, LARGEST_TABLE, Level, MOST_BOXES, Situation, table_size};
use super::prompts;
use crate::grid::world::Episode;
use crate::grid::{ActionSpace, Position};
use crate::settings::{ENCODING, Encoding, PROPOSAL, Setting, Settings, TURNS};
use crate::spec::{checked, fail, read, write};

/// What `--set` understands.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new("size", "6", "cells a side with the outer wall, 5 to 17"),
    Setting::new("boxes", "1", "boxes and goals, 1 to 6"),
    ENCODING,
    PROPOSAL,
    Setting::new("moves", "3; 10 if full", "most moves in a turn, 1 to 99"),
    TURNS,
    Setting::new("density", "0.15", "share of cells inside the rim that are walls"),
    Setting::new("nearest", "4; farthest if that is less", "least number of moves of a shortest solution"),
    Setting::new(
        "farthest",
        "9; moves x turns if full",
        "greatest number of moves of a shortest solution, at most moves x turns",
    ),
];

/// The rules of an episode, and how its level is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Cells a side, the outer wall included.
    pub(crate) size: usize,
    pub(crate) boxes: usize,
    encoding: Encoding,
    proposal: ActionSpace,
    moves: u32,
    turns: u32,
    /// Share of cells inside the rim that are walls.
    pub(crate) density: f64,
    /// Least number of moves of a shortest solution.
    pub(crate) nearest: u32,
    /// Greatest number of moves of a shortest solution.
    pub(crate) farthest: u32,
}

impl Rules {
    pub(crate) fn from_settings(settings: &Settings) -> Result<Rules> {
        let size = settings.whole("size", 6, 5, LARGEST)?;
        let boxes = settings.whole("boxes", 1, 1, MOST_BOXES)?;
        let encoding = Encoding::from_settings(settings)?;
        let proposal = ActionSpace::from_settings(settings, encoding)?;
        let small = encoding == Encoding::Compact;
        let moves = settings.whole("moves", if small { 3 } else { 10 }, 1, 99)?;
        let turns = settings.whole("turns", 4, 1, 99)?;
        let density = settings.number("density", 0.15, 0.0, 0.6)?;
        let cells = (size - 2) * (size - 2);
        let free = cells - (density * cells as f64).round() as usize;
        if table_size(free, boxes) > LARGEST_TABLE {
            return Err(Failure::usage(format!(
                "--set size={size} boxes={boxes}: {} situations, and the solver takes up to {LARGEST_TABLE}",
                table_size(free, boxes)
            ))
            .hint("fewer boxes or a smaller size"));
        }
        let defaults = [4, if small { 9 } else { u32::MAX }];
        let (nearest, farthest) =
            settings.bounds(["nearest", "farthest"], defaults, u32::MAX, (moves, "moves"), turns)?;
        Ok(Rules { size, boxes, encoding, proposal, moves, turns, density, nearest, farthest })
    }

    /// The `spec` of a level drawn by these rules.
    pub(crate) fn spec(&self, level: &Level, start: &Situation) -> Value {
        let Rules { size, encoding, moves, turns, .. } = *self;
        write(&RawSpec {
            size,
            encoding,
            proposal: self.proposal.to_spec(encoding),
            moves,
            turns,
            walls: level.walls().to_vec(),
            goals: level.positions(level.goals()),
            boxes: level.positions(start.boxes()),
            player: level.position(start.player),
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpec {
    size: usize,
    encoding: Encoding,
    #[serde(skip_serializing_if = "Option::is_none")]
    proposal: Option<ActionSpace>,
    moves: u32,
    turns: u32,
    walls: Vec<Position>,
    goals: Vec<Position>,
    boxes: Vec<Position>,
    player: Position,
}

/// An instance with everything that stays the same during its episodes.
#[derive(Debug)]
pub struct Instance {
    /// The level.
    pub level: Level,
    /// The situation at the start.
    pub start: Situation,
    /// Moves of a shortest solution.
    pub first: u16,
    pub(crate) episode: Episode,
    /// What every prompt begins with.
    pub(crate) preamble: String,
}

/// The situation of a player and boxes.
///
/// # Errors
/// A position that is no free cell, two things in one cell, or a number of boxes that is not the level's: data.
pub(crate) fn situation(level: &Level, player: Position, boxes: &[Position]) -> Result<Situation> {
    let cell = |name: &str, position: Position| {
        level.cell(position).ok_or_else(|| {
            Failure::data(format!("{name}: '{position}' is no free cell of the level"))
                .hint("cells are a column letter and a row number, a0 at the top left of the outer wall")
        })
    };
    let cells = boxes.iter().map(|place| cell("boxes", *place)).collect::<Result<Vec<Cell>>>()?;
    let player = cell("player", player)?;
    if cells.len() != level.goals().len() {
        let goals = level.goals().len();
        return Err(Failure::data(format!("boxes: {} of them for {goals} goals", cells.len())));
    }
    Situation::new(player, &cells)
        .ok_or_else(|| Failure::data("boxes: two of them, or one and the player, share a cell"))
}

impl Instance {
    /// The instance that `spec` describes.
    ///
    /// # Errors
    /// A `spec` that is no Sokoban instance, or a level that cannot be solved: data.
    pub fn parse(spec: &Value) -> Result<Instance> {
        let RawSpec { size, encoding, proposal, moves, turns, mut walls, goals, boxes, player } = read(spec)?;
        checked("size", size, 3, LARGEST)?;
        checked("goals", goals.len(), 1, MOST_BOXES)?;
        let episode = Episode::new(spec, encoding, proposal, ("moves", moves, 99), turns)?;
        let inside = |index: u8| (1..size - 1).contains(&usize::from(index));
        let outside = |position: &&Position| !(inside(position.row) && inside(position.column));
        if let Some(position) = walls.iter().chain(&goals).find(outside) {
            return Err(fail(format!("'{position}' is no cell inside the rim")));
        }
        walls.sort_unstable();
        walls.dedup();
        let level = Level::new(size, &walls, &goals).ok_or_else(|| {
            fail(format!(
                "goals: one is a wall or named twice, or there are more than {LARGEST_TABLE} situations"
            ))
        })?;
        let start = situation(&level, player, &boxes)
            .map_err(|failure| Failure { message: format!("spec: {}", failure.message), ..failure })?;
        let first = level.distance(&start);
        match first {
            0 => return Err(fail("boxes: the level is already solved")),
            DEAD => return Err(fail("boxes: the level cannot be solved")),
            _ => {}
        }
        let preamble = prompts::preamble(&level, encoding, moves, turns);
        Ok(Instance { level, start, first, episode, preamble })
    }
}
