//! Settings, and the `spec` of a Plan-Path task.
//!
//! `spec` alone rebuilds the instance. It also keeps the settings that the instance was drawn with (`density`,
//! `draw`, `nearest`, `farthest`), which no longer matter and may be left out of a task written by hand.

use record::failure::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::map::{Cell, LARGEST, Map, Position, UNREACHABLE};
use super::prompts;
use crate::grid::ActionSpace;
use crate::grid::world::Episode;
use crate::settings::{ENCODING, Encoding, PROPOSAL, Setting, Settings, TURNS, choice};
use crate::spec::{checked, fail, read, write};

/// What `--set` understands.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new("size", "5", "cells a side, 2 to 26"),
    ENCODING,
    PROPOSAL,
    Setting::new("moves", "3; size if size > 8", "most moves in a turn, 1 to 99"),
    TURNS,
    Setting::new("density", "0.25; 0.22 if size > 8", "share of cells that are walls"),
    Setting::new(
        "draw",
        "balanced; uniform if size > 8",
        "balanced: density x U(0.8, 1.2) walls, every distance from nearest to farthest as likely; \
         uniform: each cell a wall by chance, start and goal anywhere",
    ),
    Setting::new("nearest", "4; 1 if uniform", "least distance from start to goal"),
    Setting::new(
        "farthest",
        "9; moves x turns if uniform",
        "greatest distance from start to goal, at most moves x turns",
    ),
];

/// How walls, goal and start are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrawMode {
    /// A number of walls near `density`, and every distance between the bounds as likely as any other.
    Balanced,
    /// Each cell a wall with probability `density`, start and goal anywhere within the bounds.
    Uniform,
}

/// The rules of an episode, and how its instance is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Cells a side.
    pub(crate) size: usize,
    encoding: Encoding,
    proposal: ActionSpace,
    moves: u32,
    turns: u32,
    /// Share of cells that are walls.
    pub(crate) density: f64,
    pub(crate) draw: DrawMode,
    /// Least distance from start to goal.
    pub(crate) nearest: u32,
    /// Greatest distance from start to goal.
    pub(crate) farthest: u32,
}

impl Rules {
    pub(crate) fn from_settings(settings: &Settings) -> Result<Rules> {
        let size = settings.whole("size", 5, 2, LARGEST)?;
        let small = size <= 8;
        let encoding = Encoding::from_settings(settings)?;
        let proposal = ActionSpace::from_settings(settings, encoding)?;
        let draw = match settings.text("draw") {
            None if small => DrawMode::Balanced,
            None | Some("uniform") => DrawMode::Uniform,
            Some("balanced") => DrawMode::Balanced,
            Some(other) => return Err(choice("draw", other, "balanced or uniform")),
        };
        let moves = settings.whole("moves", if small { 3 } else { size as u32 }, 1, 99)?;
        let turns = settings.whole("turns", 4, 1, 99)?;
        let density = settings.number("density", if small { 0.25 } else { 0.22 }, 0.0, 0.8)?;
        let defaults = if draw == DrawMode::Balanced { [4, 9] } else { [1, u32::MAX] };
        let (nearest, farthest) =
            settings.bounds(["nearest", "farthest"], defaults, u32::MAX, (moves, "moves"), turns)?;
        Ok(Rules { size, encoding, proposal, moves, turns, density, draw, nearest, farthest })
    }

    /// The `spec` of an instance; the walls in reading order.
    pub(crate) fn spec(&self, walls: Vec<Position>, goal: Position, start: Position) -> Value {
        let Rules { size, encoding, moves, turns, density, draw, nearest, farthest, .. } = *self;
        write(&RawSpec {
            size,
            encoding,
            proposal: self.proposal.to_spec(encoding),
            moves,
            turns,
            walls,
            goal,
            start,
            density: Some(density),
            draw: Some(draw),
            nearest: Some(nearest),
            farthest: Some(farthest),
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
    goal: Position,
    start: Position,
    density: Option<f64>,
    draw: Option<DrawMode>,
    nearest: Option<u32>,
    farthest: Option<u32>,
}

/// An instance with everything that stays the same during its episodes.
#[derive(Debug)]
pub struct Instance {
    /// The board.
    pub map: Map,
    /// Where the walker starts.
    pub start: Cell,
    /// Distance from start to goal.
    pub first: u16,
    pub(crate) episode: Episode,
    /// What every prompt begins with.
    pub(crate) preamble: String,
}

impl Instance {
    /// The instance that `spec` describes.
    ///
    /// # Errors
    /// A `spec` that is no Plan-Path instance: data.
    pub fn parse(spec: &Value) -> Result<Instance> {
        let RawSpec { size, encoding, proposal, moves, turns, mut walls, goal, start, .. } = read(spec)?;
        checked("size", size, 2, LARGEST)?;
        let episode = Episode::new(spec, encoding, proposal, ("moves", moves, 99), turns)?;
        let outside = |position: &&Position| position.row.max(position.column) as usize >= size;
        if let Some(position) = walls.iter().chain([&goal, &start]).find(outside) {
            return Err(fail(format!("'{position}' is no cell of a {size}x{size} board"))
                .hint("cells are a column letter and a row number, a0 at the top left"));
        }
        walls.sort_unstable();
        walls.dedup();
        for (name, position) in [("goal", goal), ("start", start)] {
            if walls.binary_search(&position).is_ok() {
                return Err(fail(format!("{name}: {position} is a wall")));
            }
        }
        let map = Map::new(size, &walls, goal);
        let cell = map.cell(start);
        let first = map.distance(cell);
        if first == 0 {
            return Err(fail("start and goal are the same cell"));
        }
        if first == UNREACHABLE {
            return Err(fail(format!("no way leads from {start} to {goal}")));
        }
        let preamble = prompts::preamble(&map, encoding, moves, turns);
        Ok(Instance { map, start: cell, first, episode, preamble })
    }
}
