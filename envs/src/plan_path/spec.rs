//! The `spec` of a Plan-Path task: an instance and its rules, as JSON and as values.
//!
//! `spec` alone rebuilds the instance. It also keeps the settings that the instance was drawn with (`density`,
//! `draw`, `nearest`, `farthest`), which have no influence any more and may be left out of a task written by hand.

use serde::{Deserialize, Serialize};
use serde_json::{Map as Object, Value};

use record::failure::{Failure, Result};

use super::map::{Cell, LARGEST, Map, Place, UNREACHABLE};
use super::{compact, full};
use crate::grid::Language;
use crate::settings::{Encoding, Setting, Settings, choice, ranged};

/// What `--set` understands.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "size", default: "5", meaning: "cells a side, 2 to 26" },
    Setting {
        name: "encoding",
        default: "compact",
        meaning: "compact (one word a cell) or full (prose and a grid)",
    },
    Setting {
        name: "proposal",
        default: "cells; moves if full",
        meaning: "what the tool says: the cells of a route, or moves, the planner's own language",
    },
    Setting { name: "moves", default: "3; size if size > 8", meaning: "most moves in a turn, 1 to 99" },
    Setting { name: "turns", default: "4", meaning: "turns in an episode, 1 to 99" },
    Setting { name: "density", default: "0.25; 0.22 if size > 8", meaning: "share of cells that are walls" },
    Setting {
        name: "draw",
        default: "balanced; uniform if size > 8",
        meaning: "balanced: density x U(0.8, 1.2) walls, every distance from nearest to farthest as likely; \
                  uniform: each cell a wall by chance, start and goal anywhere",
    },
    Setting { name: "nearest", default: "4; 1 if uniform", meaning: "least distance from start to goal" },
    Setting {
        name: "farthest",
        default: "9; moves x turns if uniform",
        meaning: "greatest distance from start to goal, at most moves x turns",
    },
];

/// How walls, goal and start are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Draw {
    /// A number of walls near `density`, and every distance between the bounds as likely as any other.
    Balanced,
    /// Each cell a wall with probability `density`, start and goal anywhere within the bounds.
    Uniform,
}

/// The rules of an episode, and how its instance is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Cells a side.
    pub size: usize,
    /// How situations are put into words.
    pub encoding: Encoding,
    /// What the tool proposes in.
    pub proposal: Language,
    /// Most moves in a turn.
    pub moves: u32,
    /// Turns in an episode.
    pub turns: u32,
    /// Share of cells that are walls.
    pub density: f64,
    /// How an instance is drawn.
    pub draw: Draw,
    /// Least distance from start to goal.
    pub nearest: u32,
    /// Greatest distance from start to goal.
    pub farthest: u32,
}

impl Rules {
    /// The rules that `--set` describes.
    ///
    /// # Errors
    /// Values that are out of range or contradict each other: usage.
    pub fn from_settings(settings: &Settings) -> Result<Rules> {
        let whole = "a whole number";
        let size = ranged("size", settings.value("size", whole)?.unwrap_or(5), 2, LARGEST)?;
        let small = size <= 8;
        let encoding = Encoding::from_settings(settings)?;
        let proposal = Language::from_settings(settings, encoding)?;
        let draw = match settings.text("draw") {
            None if small => Draw::Balanced,
            None | Some("uniform") => Draw::Uniform,
            Some("balanced") => Draw::Balanced,
            Some(other) => return Err(choice("draw", other, "balanced or uniform")),
        };
        let moves = settings.value("moves", whole)?.unwrap_or(if small { 3 } else { size as u32 });
        let moves = ranged("moves", moves, 1, 99)?;
        let turns = ranged("turns", settings.value("turns", whole)?.unwrap_or(4), 1, 99)?;
        let density = settings.value("density", "a number")?.unwrap_or(if small { 0.25 } else { 0.22 });
        if !(0.0..=0.8).contains(&density) {
            return Err(Failure::usage(format!("--set density={density}: not from 0 to 0.8")));
        }
        let balanced = draw == Draw::Balanced;
        let reach = moves * turns;
        let farthest = match settings.value("farthest", whole)? {
            Some(farthest) if farthest > reach => {
                return Err(Failure::usage(format!(
                    "--set farthest={farthest}: an episode has {moves} x {turns} = {reach} moves, so it could not be solved"
                ))
                .hint("give it more moves or turns"));
            }
            Some(farthest) => farthest,
            None => {
                if balanced {
                    reach.min(9)
                } else {
                    reach
                }
            }
        };
        let nearest = match settings.value("nearest", whole)? {
            Some(nearest) => ranged("nearest", nearest, 1, farthest.max(1))?,
            None => {
                if balanced {
                    farthest.min(4)
                } else {
                    1
                }
            }
        };
        if nearest > farthest {
            return Err(Failure::usage(format!("--set farthest={farthest}: less than nearest={nearest}")));
        }
        Ok(Rules { size, encoding, proposal, moves, turns, density, draw, nearest, farthest })
    }

    /// The `spec` of an instance drawn by these rules; the walls in the order of reading.
    pub fn spec(&self, walls: &[Place], goal: Place, start: Place) -> Value {
        let mut spec = Object::new();
        let mut put = |key: &str, value: Value| spec.insert(key.to_owned(), value);
        put("size", self.size.into());
        put("encoding", self.encoding.name().into());
        if self.proposal != Language::default_of(self.encoding) {
            put("proposal", self.proposal.name().into());
        }
        put("moves", self.moves.into());
        put("turns", self.turns.into());
        put("walls", walls.iter().map(Place::to_string).collect::<Vec<_>>().into());
        put("goal", goal.to_string().into());
        put("start", start.to_string().into());
        put("density", self.density.into());
        put("draw", if self.draw == Draw::Balanced { "balanced" } else { "uniform" }.into());
        put("nearest", self.nearest.into());
        put("farthest", self.farthest.into());
        Value::Object(spec)
    }
}

/// `spec` as it is read; what only tells how the instance was drawn is accepted and not looked at.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'a> {
    size: usize,
    encoding: Encoding,
    proposal: Option<Language>,
    moves: u32,
    turns: u32,
    #[serde(borrow)]
    walls: Vec<&'a str>,
    goal: &'a str,
    start: &'a str,
    #[serde(rename = "density")]
    _density: Option<f64>,
    #[serde(rename = "draw")]
    _draw: Option<Draw>,
    #[serde(rename = "nearest")]
    _nearest: Option<u32>,
    #[serde(rename = "farthest")]
    _farthest: Option<u32>,
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
    /// Most moves in a turn.
    pub moves: u32,
    /// Turns in an episode.
    pub turns: u32,
    /// How situations are put into words.
    pub encoding: Encoding,
    /// What the tool proposes in.
    pub proposal: Language,
    /// What every prompt begins with.
    pub preamble: String,
    /// The `spec` that this was read from.
    pub spec: Value,
}

impl Instance {
    /// The instance that `spec` describes.
    ///
    /// # Errors
    /// A `spec` that is no Plan-Path instance: data.
    pub fn parse(spec: &Value) -> Result<Instance> {
        let written = Written::deserialize(spec).map_err(|error| Failure::data(format!("spec: {error}")))?;
        let Written { size, encoding, moves, turns, .. } = written;
        let proposal = Language::of_spec(written.proposal, encoding)?;
        let within = |name: &str, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(Failure::data(format!("spec: {name}: {value} is not from {least} to {most}"))),
        };
        within("size", size as u64, 2, LARGEST as u64)?;
        within("moves", moves.into(), 1, 99)?;
        within("turns", turns.into(), 1, 99)?;
        let place = |name: &str, text: &str| match Place::parse(text) {
            Some(place) if usize::from(place.row) < size && usize::from(place.column) < size => Ok(place),
            _ => Err(Failure::data(format!("spec: {name}: '{text}' is no cell of a {size}x{size} board"))
                .hint("cells are a column letter and a row number, a0 at the top left")),
        };
        let mut walls = written.walls.iter().map(|wall| place("walls", wall)).collect::<Result<Vec<_>>>()?;
        walls.sort_unstable();
        walls.dedup();
        let goal = place("goal", written.goal)?;
        let start = place("start", written.start)?;
        for (name, place) in [("goal", goal), ("start", start)] {
            if walls.binary_search(&place).is_ok() {
                return Err(Failure::data(format!("spec: {name}: {place} is a wall")));
            }
        }
        let map = Map::new(size, &walls, goal);
        let start = map.cell(start);
        let first = map.distance(start);
        if first == 0 {
            return Err(Failure::data("spec: start and goal are the same cell"));
        }
        if first == UNREACHABLE {
            return Err(Failure::data(format!("spec: no way leads from {} to {goal}", map.place(start))));
        }
        let preamble = match encoding {
            Encoding::Compact => compact::preamble(&map),
            Encoding::Full => full::preamble(&map, moves, turns),
        };
        Ok(Instance { map, start, first, moves, turns, encoding, proposal, preamble, spec: spec.clone() })
    }
}
