//! Plan-Path: lead a walker over a board with walls to its goal, a few moves per turn.
//!
//! From Stronger-MAS (arXiv 2510.11062), with the workflows of [`crate::grid::world`].
//!
//! - here: settings, the `spec` of a task, and the world;
//! - [`map`]: the board and its distances; [`rules`]: effects and rewards of moves;
//! - [`generate`]: draws tasks, train and test; [`prompts`]: the two encodings.

pub mod generate;
pub mod map;
mod prompts;
mod rules;
#[cfg(test)]
mod tests;

use record::failure::{Failure, Result};
use record::philox::Draws;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::grid::bounds::bounds;
use crate::grid::format::PROPOSAL;
use crate::grid::world::{Episode, GridEnvironment, GridWorld, Situations, WALKING};
use crate::grid::{ActionFormat, ActionSpace, Move, Parsed, Position, walker};
use environment::settings::{ENCODING, Encoding, REWARD, RewardMode, Setting, Settings, TURNS, choice};
use environment::spec::{checked, fail, read};
use environment::{ExtractionCase, Metadata, Outcome, Split};
use map::{Cell, LARGEST, Map, UNREACHABLE};
use rules::Progress;

/// The environment.
pub static PLAN_PATH: GridEnvironment<Instance> = GridEnvironment::new(
    "plan-path",
    Metadata {
        summary: "walk round walls to a goal, a few moves a turn",
        workflows: &WALKING,
        settings: &[
            Setting::new("size", "5; by level if full", "cells a side, 2 to 26"),
            Setting::new(
                "level",
                "1 if full and without size",
                "sets size, density, nearest, farthest, turns, and short prompts in prose: 1 and 2 are boards of 4x4, 3 of 5x5",
            ),
            ENCODING,
            PROPOSAL,
            Setting::new("moves", "3; size if size > 8", "most moves in a turn, 1 to 99"),
            TURNS,
            REWARD,
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
        ],
        demonstrators: &[("opt", 0.25), ("lazy", 0.55), ("manhattan", 0.1), ("random", 0.1)],
        max_tokens: |settings| if settings.is_prose() { 128 } else { 8 },
    },
);

/// How walls, goal and start are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrawMode {
    #[default]
    /// Metadata `density` × cells walls; every distance within the bounds is equally likely.
    Balanced,
    /// Each cell is a wall with probability `density`; start and goal are anywhere within the bounds.
    Uniform,
}

/// A complete task. The settings with which it was drawn (`density` and below) no longer matter, and may be
/// missing in a task written by hand.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSpec {
    size: usize,
    encoding: Encoding,
    #[serde(skip_serializing_if = "Option::is_none")]
    proposal: Option<ActionSpace>,
    moves: u32,
    turns: u32,
    #[serde(default, skip_serializing_if = "RewardMode::is_default")]
    reward: RewardMode,
    /// Prompts in prose are short.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    brief: bool,
    walls: Vec<Position>,
    goal: Position,
    start: Position,
    /// Share of cells that are walls.
    #[serde(default)]
    density: f64,
    #[serde(default)]
    draw: DrawMode,
    /// Least distance from start to goal.
    #[serde(default)]
    nearest: u32,
    /// Greatest distance from start to goal.
    #[serde(default)]
    farthest: u32,
}

/// A task, constant during its episodes.
#[derive(Debug)]
pub struct Instance {
    /// The board.
    pub map: Map,
    /// Where the walker starts.
    pub start: Position,
    /// Distance from start to goal.
    pub first: u16,
    episode: Episode,
    /// The beginning of every prompt.
    preamble: String,
}

/// Defaults of a level.
struct Level {
    size: usize,
    density: f64,
    /// Least and greatest distance from start to goal.
    distances: [u32; 2],
    turns: u32,
}

impl Level {
    /// The defaults of a level in prose, or without levels.
    fn of(level: Option<u32>) -> Level {
        match level {
            Some(1) => Level { size: 4, density: 0.12, distances: [1, 3], turns: 2 },
            Some(2) => Level { size: 4, density: 0.2, distances: [2, 5], turns: 3 },
            _ => Level { size: 5, density: 0.25, distances: [4, 9], turns: 4 },
        }
    }
}

/// The walker's situation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Situation {
    position: Position,
    /// Smallest distance to the goal of all visited cells.
    best: u16,
}

impl Instance {
    fn distance(&self, position: Position) -> u16 {
        self.map.distance(self.map.cell(position))
    }
}

impl GridWorld for Instance {
    const ATTEMPTS: u32 = 20_000;

    type Rules = RawSpec;
    type Situation = Situation;
    type RawSituation = Situation;
    type Step = Move;

    fn rules(settings: &Settings) -> Result<RawSpec> {
        let encoding = Encoding::from_settings(settings)?;
        let level = match (settings.text("level"), settings.text("size"), encoding) {
            (Some(level), ..) if encoding == Encoding::Compact => {
                return Err(Failure::usage(format!("--set level={level}: levels are of prompts in prose"))
                    .hint("add --set encoding=full"));
            }
            (Some(_), Some(size), _) => {
                return Err(Failure::usage(format!("--set size={size}: a level has its own size"))
                    .hint("leave out level or size"));
            }
            (_, None, Encoding::Full) => Some(settings.whole("level", 1, 1, 3)?),
            _ => None,
        };
        let Level { size, density, distances, turns } = Level::of(level);
        let size = settings.whole("size", size, 2, LARGEST)?;
        let small = size <= 8;
        let proposal = ActionSpace::from_settings(settings, encoding)?;
        let draw = match settings.text("draw") {
            None if small => DrawMode::Balanced,
            None | Some("uniform") => DrawMode::Uniform,
            Some("balanced") => DrawMode::Balanced,
            Some(other) => return Err(choice("draw", other, "balanced or uniform")),
        };
        let moves = settings.whole("moves", if small { 3 } else { size as u32 }, 1, 99)?;
        let turns = settings.whole("turns", turns, 1, 99)?;
        let density = settings.number("density", if small { density } else { 0.22 }, 0.0, 0.8)?;
        let defaults = if draw == DrawMode::Balanced { distances } else { [1, u32::MAX] };
        let (nearest, farthest) =
            bounds(settings, ["nearest", "farthest"], defaults, u32::MAX, (moves, "moves"), turns)?;
        Ok(RawSpec {
            size,
            encoding,
            proposal: proposal.to_spec(encoding),
            moves,
            turns,
            reward: RewardMode::from_settings(settings)?,
            brief: level.is_some(),
            density,
            draw,
            nearest,
            farthest,
            ..RawSpec::default()
        })
    }

    fn draw(rules: &RawSpec, split: Split, draws: &mut Draws) -> Option<(Value, u64)> {
        generate::draw(rules, split, draws)
    }

    fn describe(RawSpec { size, density, nearest, farthest, .. }: &RawSpec) -> (String, &'static str) {
        (
            format!("size={size} density={density} nearest={nearest} farthest={farthest}"),
            "a larger size, a lower density or a smaller nearest leaves more room",
        )
    }

    fn parse(spec: &Value) -> Result<Instance> {
        let RawSpec { size, encoding, proposal, moves, turns, reward, brief, mut walls, goal, start, .. } =
            read(spec)?;
        checked("size", size, 2, LARGEST)?;
        let mut episode = Episode::new(spec, encoding, proposal, ("moves", moves, 99), turns, reward)?;
        episode.brief = brief && encoding == Encoding::Full;
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
        let first = map.distance(map.cell(start));
        if first == 0 {
            return Err(fail("start and goal are the same cell"));
        }
        if first == UNREACHABLE {
            return Err(fail(format!("no way leads from {start} to {goal}")));
        }
        let preamble = match episode.brief {
            true => prompts::brief_preamble(moves),
            false => prompts::preamble(&map, encoding, moves, turns),
        };
        Ok(Instance { map, start, first, episode, preamble })
    }

    fn episode(&self) -> &Episode {
        &self.episode
    }

    fn start(&self) -> Situation {
        Situation { position: self.start, best: self.first }
    }

    fn save(&self, situation: &Situation) -> Situation {
        *situation
    }

    fn load(&self, situation: Situation) -> Result<Situation> {
        let Situation { position, best } = situation;
        let distance = if self.map.holds(position) { self.distance(position) } else { UNREACHABLE };
        let most = distance.min(self.first);
        match distance {
            UNREACHABLE => Err(Failure::data(format!("position: the walker cannot be at '{position}'"))),
            _ if best > most => {
                Err(Failure::data(format!("best: {best} is more than {most}, which was reached")))
            }
            _ => Ok(situation),
        }
    }

    fn ending(&self, situation: &Situation) -> Option<&'static str> {
        (self.distance(situation.position) == 0).then_some("the walker is at the goal")
    }

    fn prompt(&self, situation: &Situation, proposal: Option<&str>, agent: &str) -> String {
        prompts::prompt(self, situation.position, proposal, agent)
    }

    fn write(&self, situation: &Situation, format: ActionFormat, moves: &[Move]) -> String {
        format.write(situation.position, moves)
    }

    fn read(&self, situation: &Situation, format: ActionFormat, text: &str) -> Option<Parsed> {
        format.read(situation.position, text, self.episode.steps)
    }

    fn shown(&self, format: ActionFormat, text: &str, action: &Parsed) -> String {
        format.shown(text, action)
    }

    fn play(&self, situation: &Situation, _agent: &str, action: &Parsed) -> (Situation, Outcome) {
        let (map, cell) = (&self.map, self.map.cell(situation.position));
        let (now, moves) = (map.distance(cell), self.episode.steps);
        let progress = Progress { first: self.first, best: situation.best, now, moves };
        let walk = rules::walk(map, cell, &action.steps);
        let end = map.distance(walk.end);
        // Everything after the goal is ignored, including unreachable cells.
        let legal = (action.connected || end == 0) && !walk.blocked;
        let outcome = rules::outcome(true, legal, progress.agreement(walk.agreeing), progress.team(end));
        let after = Situation { position: map.position(walk.end), best: situation.best.min(walk.least) };
        (after, Outcome { terminated: end == 0, success: end == 0, ..outcome })
    }

    fn malformed(_agent: &str) -> Outcome {
        rules::outcome(false, false, 0.0, 0.0)
    }

    fn best(&self, situation: &Situation) -> Vec<Move> {
        let mut cell = self.map.cell(situation.position);
        let mut moves = Vec::new();
        while let Some(step) = self.map.nearer(cell).filter(|_| moves.len() < self.episode.steps as usize) {
            moves.push(step);
            cell = self.map.neighbor(cell, step);
        }
        moves
    }

    fn is_solved(&self, situation: &Situation) -> bool {
        self.distance(situation.position) == 0
    }

    fn test_actions(&self, situation: &Situation, write: &dyn Fn(&[Move]) -> String) -> Vec<String> {
        let (goal, here) = (self.map.position(self.map.goal()), situation.position);
        let routes = [vec![goal], vec![here], vec![walker::OUTSIDE], vec![here, goal]];
        walker::test_actions(&self.episode, &self.best(situation), &routes, "goal", write)
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        walker::extraction_cases(
            |encoding| json!({"size": 3, "encoding": encoding, "moves": 3, "turns": 4, "walls": ["b1"], "goal": "c0", "start": "a2"}),
        )
    }

    fn picture(&self, situation: &Situation) -> String {
        prompts::picture(&self.map, situation.position)
    }

    /// All cells that can reach the goal are equally likely.
    fn situations<'a>(&'a self, _rules: &RawSpec) -> Box<Situations<'a, Instance>> {
        let cells: Vec<Cell> = self.map.reachable().filter(|cell| *cell != self.map.goal()).collect();
        Box::new(move |draws| {
            let cell = draws.choose(&cells).copied()?;
            Some(Situation {
                position: self.map.position(cell),
                best: self.map.distance(cell).min(self.first),
            })
        })
    }

    /// `manhattan` walks towards the goal as if there were no walls.
    fn demonstrate(&self, kind: &str, situation: &Situation, draws: &mut Draws) -> Vec<Move> {
        let map = &self.map;
        let goal = map.position(map.goal());
        walker::demonstrate(kind, self.episode.steps, situation.position, draws, |position| {
            let far = |place: Position| match kind {
                "random" => 0,
                "manhattan" => u16::from(place.apart(goal)),
                _ => map.distance(map.cell(place)),
            };
            // A step always changes both distances, so not farther means nearer.
            let takes = |next: Position| far(next) <= far(*position);
            let on_board = |step| Some((step, position.step(step).filter(|next| map.holds(*next))?));
            let steps = Move::ALL.into_iter().filter_map(on_board).filter(|(_, next)| takes(*next));
            (*position != goal).then(|| steps.map(|(step, next)| (step, Some(next))).collect())
        })
    }
}
