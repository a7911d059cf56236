//! The `spec` of a Sokoban task: a level and its rules, as JSON and as values.
//!
//! `spec` alone rebuilds the instance; a `spec` whose level cannot be solved is refused.

use serde::Deserialize;
use serde_json::{Map as Object, Value};

use record::failure::{Failure, Result};

use super::level::{DEAD, LARGEST, LARGEST_TABLE, Level, MOST_BOXES, Situation, table_size};
use super::{compact, full};
use crate::grid::{Language, Place};
use crate::settings::{Encoding, Setting, Settings, ranged};

/// What `--set` understands.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "size", default: "6", meaning: "cells a side with the outer wall, 5 to 17" },
    Setting { name: "boxes", default: "1", meaning: "boxes and goals, 1 to 6" },
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
    Setting { name: "moves", default: "3; 10 if full", meaning: "most moves in a turn, 1 to 99" },
    Setting { name: "turns", default: "4", meaning: "turns in an episode, 1 to 99" },
    Setting { name: "density", default: "0.15", meaning: "share of cells inside the rim that are walls" },
    Setting {
        name: "nearest",
        default: "4; farthest if that is less",
        meaning: "least number of moves of a shortest solution",
    },
    Setting {
        name: "farthest",
        default: "9; moves x turns if full",
        meaning: "greatest number of moves of a shortest solution, at most moves x turns",
    },
];

/// The rules of an episode, and how its level is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Cells a side, the outer wall included.
    pub size: usize,
    /// Boxes and goals.
    pub boxes: usize,
    /// How situations are put into words.
    pub encoding: Encoding,
    /// What the tool proposes in.
    pub proposal: Language,
    /// Most moves in a turn.
    pub moves: u32,
    /// Turns in an episode.
    pub turns: u32,
    /// Share of cells inside the rim that are walls.
    pub density: f64,
    /// Least number of moves of a shortest solution.
    pub nearest: u32,
    /// Greatest number of moves of a shortest solution.
    pub farthest: u32,
}

impl Rules {
    /// The rules that `--set` describes.
    ///
    /// # Errors
    /// Values that are out of range or contradict each other: usage.
    pub fn from_settings(settings: &Settings) -> Result<Rules> {
        let whole = "a whole number";
        let size = ranged("size", settings.value("size", whole)?.unwrap_or(6), 5, LARGEST)?;
        let boxes = ranged("boxes", settings.value("boxes", whole)?.unwrap_or(1), 1, MOST_BOXES)?;
        let encoding = Encoding::from_settings(settings)?;
        let proposal = Language::from_settings(settings, encoding)?;
        let small = encoding == Encoding::Compact;
        let moves = settings.value("moves", whole)?.unwrap_or(if small { 3 } else { 10 });
        let moves = ranged("moves", moves, 1, 99)?;
        let turns = ranged("turns", settings.value("turns", whole)?.unwrap_or(4), 1, 99)?;
        let density = settings.value("density", "a number")?.unwrap_or(0.15);
        if !(0.0..=0.6).contains(&density) {
            return Err(Failure::usage(format!("--set density={density}: not from 0 to 0.6")));
        }
        let cells = (size - 2) * (size - 2);
        let free = cells - (density * cells as f64).round() as usize;
        if table_size(free, boxes) > LARGEST_TABLE {
            return Err(Failure::usage(format!(
                "--set size={size} boxes={boxes}: {} situations, and the solver takes up to {LARGEST_TABLE}",
                table_size(free, boxes)
            ))
            .hint("fewer boxes or a smaller size"));
        }
        let reach = moves * turns;
        let farthest = match settings.value("farthest", whole)? {
            Some(farthest) if farthest > reach => {
                return Err(Failure::usage(format!(
                    "--set farthest={farthest}: an episode has {moves} x {turns} = {reach} moves, so it could not be solved"
                ))
                .hint("give it more moves or turns"));
            }
            Some(farthest) => ranged("farthest", farthest, 1, reach)?,
            None if small => reach.min(9),
            None => reach,
        };
        let nearest = match settings.value("nearest", whole)? {
            Some(nearest) => ranged("nearest", nearest, 1, farthest)?,
            None => farthest.min(4),
        };
        Ok(Rules { size, boxes, encoding, proposal, moves, turns, density, nearest, farthest })
    }

    /// The `spec` of a level drawn by these rules.
    pub fn spec(&self, level: &Level, start: &Situation) -> Value {
        let names = |places: &[Place]| places.iter().map(Place::to_string).collect::<Vec<_>>();
        let of = |cells: &[u8]| names(&cells.iter().map(|cell| level.place(*cell)).collect::<Vec<_>>());
        let mut spec = Object::new();
        let mut put = |key: &str, value: Value| spec.insert(key.to_owned(), value);
        put("size", self.size.into());
        put("encoding", self.encoding.name().into());
        if self.proposal != Language::default_of(self.encoding) {
            put("proposal", self.proposal.name().into());
        }
        put("moves", self.moves.into());
        put("turns", self.turns.into());
        put("walls", names(level.walls()).into());
        put("goals", of(level.goals()).into());
        put("boxes", of(start.boxes()).into());
        put("player", level.place(start.player).to_string().into());
        Value::Object(spec)
    }
}

/// `spec` as it is read.
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
    goals: Vec<&'a str>,
    boxes: Vec<&'a str>,
    player: &'a str,
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

/// The situation that names of cells describe.
///
/// # Errors
/// A name that is no free cell, two things in one cell, or a number of boxes that is not the level's: data.
pub fn situation(level: &Level, player: &str, boxes: &[&str]) -> Result<Situation> {
    let cell = |name: &str, text: &str| {
        Place::parse(text).and_then(|place| level.cell(place)).ok_or_else(|| {
            Failure::data(format!("{name}: '{text}' is no free cell of the level"))
                .hint("cells are a column letter and a row number, a0 at the top left of the outer wall")
        })
    };
    let cells = boxes.iter().map(|text| cell("boxes", text)).collect::<Result<Vec<_>>>()?;
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
        let fail = |cause: String| Failure::data(format!("spec: {cause}"));
        let written = Written::deserialize(spec).map_err(|error| fail(error.to_string()))?;
        let Written { size, encoding, moves, turns, .. } = written;
        let within = |name: &str, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(fail(format!("{name}: {value} is not from {least} to {most}"))),
        };
        within("size", size as u64, 3, LARGEST as u64)?;
        within("moves", moves.into(), 1, 99)?;
        within("turns", turns.into(), 1, 99)?;
        within("goals", written.goals.len() as u64, 1, MOST_BOXES as u64)?;
        let proposal = Language::of_spec(written.proposal, encoding)?;
        let place = |name: &str, text: &str| {
            let inside = |index: u8| (1..size - 1).contains(&usize::from(index));
            Place::parse(text)
                .filter(|place| inside(place.row) && inside(place.column))
                .ok_or_else(|| fail(format!("{name}: '{text}' is no cell inside the rim")))
        };
        let places = |name: &str, texts: &[&str]| {
            texts.iter().map(|text| place(name, text)).collect::<Result<Vec<_>>>()
        };
        let mut walls = places("walls", &written.walls)?;
        walls.sort_unstable();
        walls.dedup();
        let goals = places("goals", &written.goals)?;
        let level = Level::new(size, &walls, &goals).ok_or_else(|| {
            fail(format!(
                "goals: one is a wall or named twice, or there are more than {LARGEST_TABLE} situations"
            ))
        })?;
        let start = situation(&level, written.player, &written.boxes)
            .map_err(|failure| Failure { message: format!("spec: {}", failure.message), ..failure })?;
        let first = level.distance(&start);
        match first {
            0 => return Err(fail("boxes: the level is already solved".to_owned())),
            DEAD => return Err(fail("boxes: the level cannot be solved".to_owned())),
            _ => {}
        }
        let preamble = match encoding {
            Encoding::Compact => compact::preamble(&level),
            Encoding::Full => full::preamble(moves, turns),
        };
        let spec = spec.clone();
        Ok(Instance { level, start, first, moves, turns, encoding, proposal, preamble, spec })
    }
}
