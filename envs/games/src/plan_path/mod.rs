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
mod words;

use record::failure::{Failure, Result};
use record::philox::Draws;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::grid::bounds::bounds;
use crate::grid::format::PROPOSAL;
use crate::grid::world::{Episode, GridWorld, Situations, WALKING, functions};
use crate::grid::{ActionFormat, ActionSpace, Move, Parsed, Position, walker};
use environment::settings::{ENCODING, Encoding, REWARD, RewardMode, Setting, Settings, TURNS, choice};
use environment::spec::{checked, fail, read};
use environment::{BuiltIn, ExtractionCase, Outcome, Split};
use map::{Cell, LARGEST, Map, UNREACHABLE};
use rules::Progress;

/// The environment.
pub static PLAN_PATH: BuiltIn = BuiltIn {
    name: "plan-path",
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
    functions: functions::<Instance>(),
};

/// How walls, goal and start are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrawMode {
    /// About `density` × cells walls; every distance within the bounds is equally likely.
    Balanced,
    /// Each cell is a wall with probability `density`; start and goal are anywhere within the bounds.
    Uniform,
}

/// How tasks are drawn.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Everything in a `spec` except the board.
    spec: RawSpec,
    /// Share of cells that are walls.
    density: f64,
    draw: DrawMode,
    /// Least distance from start to goal.
    nearest: u32,
    /// Greatest distance from start to goal.
    farthest: u32,
}

/// A complete task. The settings with which it was drawn (`density` and below) no longer matter, and may be
/// missing in a task written by hand.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpec {
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
    density: Option<f64>,
    draw: Option<DrawMode>,
    nearest: Option<u32>,
    farthest: Option<u32>,
}

/// A task, constant during its episodes.
#[derive(Debug)]
pub struct Instance {
    /// The board.
    pub map: Map,
    /// Where the walker starts.
    pub start: Cell,
    /// Distance from start to goal.
    pub first: u16,
    episode: Episode,
    /// Prompts are short, and moves are words.
    brief: bool,
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

/// The walker's position.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    cell: Cell,
    /// Smallest distance to the goal of all visited cells.
    best: u16,
}

/// [`Situation`] in state JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSituation {
    position: Position,
    best: u16,
}

impl Instance {
    /// Parses `spec`.
    ///
    /// # Errors
    /// It is not a Plan-Path task: data.
    pub fn parse(spec: &Value) -> Result<Instance> {
        let RawSpec { size, encoding, proposal, moves, turns, reward, brief, mut walls, goal, start, .. } =
            read(spec)?;
        checked("size", size, 2, LARGEST)?;
        let episode = Episode::new(spec, encoding, proposal, ("moves", moves, 99), turns, reward)?;
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
        let brief = brief && encoding == Encoding::Full;
        let preamble = match brief {
            true => prompts::brief_preamble(moves),
            false => prompts::preamble(&map, encoding, moves, turns),
        };
        Ok(Instance { map, start: cell, first, episode, brief, preamble })
    }

    fn position(&self, situation: &Situation) -> Position {
        self.map.position(situation.cell)
    }
}

impl GridWorld for Instance {
    const ATTEMPTS: u32 = 20_000;

    type Rules = Rules;
    type Situation = Situation;
    type RawSituation = RawSituation;
    type Step = Move;

    fn rules(settings: &Settings) -> Result<Rules> {
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
        let spec = RawSpec {
            size,
            encoding,
            proposal: proposal.to_spec(encoding),
            moves,
            turns,
            reward: RewardMode::from_settings(settings)?,
            brief: level.is_some(),
            density: Some(density),
            draw: Some(draw),
            nearest: Some(nearest),
            farthest: Some(farthest),
            ..RawSpec::default()
        };
        Ok(Rules { spec, density, draw, nearest, farthest })
    }

    fn draw(rules: &Rules, split: Split, draws: &mut Draws) -> Option<(Value, u64)> {
        generate::draw(rules, split, draws)
    }

    fn describe(Rules { spec, density, nearest, farthest, .. }: &Rules) -> (String, &'static str) {
        (
            format!("size={} density={density} nearest={nearest} farthest={farthest}", spec.size),
            "a larger size, a lower density or a smaller nearest leaves more room",
        )
    }

    fn parse(spec: &Value) -> Result<Instance> {
        Instance::parse(spec)
    }

    fn episode(&self) -> &Episode {
        &self.episode
    }

    fn start(&self) -> Situation {
        Situation { cell: self.start, best: self.first }
    }

    fn save(&self, situation: &Situation) -> RawSituation {
        RawSituation { position: self.position(situation), best: situation.best }
    }

    fn load(&self, RawSituation { position, best }: RawSituation) -> Result<Situation> {
        let cell = Some(position).filter(|position| self.map.holds(*position));
        let cell = cell
            .map(|position| self.map.cell(position))
            .filter(|cell| self.map.distance(*cell) != UNREACHABLE)
            .ok_or_else(|| Failure::data(format!("position: the walker cannot be at '{position}'")))?;
        let most = self.map.distance(cell).min(self.first);
        if best > most {
            return Err(Failure::data(format!("best: {best} is more than {most}, which was reached")));
        }
        Ok(Situation { cell, best })
    }

    fn ending(&self, situation: &Situation) -> Option<&'static str> {
        (situation.cell == self.map.goal()).then_some("the walker is at the goal")
    }

    fn prompt(&self, situation: &Situation, proposal: Option<&str>, agent: &str) -> String {
        prompts::prompt(self, self.position(situation), proposal, agent)
    }

    fn write(&self, situation: &Situation, format: ActionFormat, moves: &[Move]) -> String {
        match self.brief {
            true => words::write(moves),
            false => format.write(self.position(situation), moves),
        }
    }

    fn read(&self, situation: &Situation, format: ActionFormat, text: &str) -> Option<Parsed> {
        match self.brief {
            true => words::read(text, self.episode.steps),
            false => format.read(self.position(situation), text, self.episode.steps),
        }
    }

    fn shown(&self, format: ActionFormat, text: &str, action: &Parsed) -> String {
        match self.brief {
            true => words::write(&action.steps),
            false => format.shown(text, action),
        }
    }

    fn play(&self, situation: &Situation, _agent: &str, action: &Parsed) -> (Situation, Outcome) {
        let map = &self.map;
        let progress = Progress {
            first: self.first,
            best: situation.best,
            now: map.distance(situation.cell),
            moves: self.episode.steps,
        };
        let walk = rules::walk(map, situation.cell, &action.steps);
        let end = map.distance(walk.end);
        // Everything after the goal is ignored, including unreachable cells.
        let legal = (action.connected || end == 0) && !walk.blocked;
        let outcome = rules::outcome(true, legal, progress.agreement(walk.agreeing), progress.team(end));
        let after = Situation { cell: walk.end, best: situation.best.min(walk.least) };
        (after, Outcome { terminated: end == 0, success: end == 0, ..outcome })
    }

    fn malformed(_agent: &str) -> Outcome {
        rules::outcome(false, false, 0.0, 0.0)
    }

    fn best(&self, situation: &Situation) -> Vec<Move> {
        let mut cell = situation.cell;
        let mut moves = Vec::new();
        while let Some(step) = self.map.nearer(cell).filter(|_| moves.len() < self.episode.steps as usize) {
            moves.push(step);
            cell = self.map.neighbor(cell, step);
        }
        moves
    }

    fn is_solved(&self, situation: &Situation) -> bool {
        self.map.distance(situation.cell) == 0
    }

    fn test_actions(&self, situation: &Situation, write: &dyn Fn(&[Move]) -> String) -> Vec<String> {
        let (goal, here) = (self.map.position(self.map.goal()), self.position(situation));
        let routes = [vec![goal], vec![here], vec![walker::OUTSIDE], vec![here, goal]];
        walker::test_actions(&self.episode, &self.best(situation), &routes, "goal", write)
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        walker::extraction_cases(
            |encoding| json!({"size": 3, "encoding": encoding, "moves": 3, "turns": 4, "walls": ["b1"], "goal": "c0", "start": "a2"}),
        )
    }

    fn picture(&self, situation: &Situation) -> String {
        prompts::picture(&self.map, self.position(situation))
    }

    /// All cells that can reach the goal are equally likely.
    fn situations<'a>(&'a self, _rules: &Rules) -> Box<Situations<'a, Instance>> {
        let cells: Vec<Cell> = self.map.reachable().filter(|cell| *cell != self.map.goal()).collect();
        Box::new(move |draws| {
            let cell = draws.choose(&cells).copied()?;
            Some(Situation { cell, best: self.map.distance(cell).min(self.first) })
        })
    }

    /// `manhattan` walks towards the goal as if there were no walls.
    fn demonstrate(&self, kind: &str, situation: &Situation, draws: &mut Draws) -> Vec<Move> {
        let map = &self.map;
        let goal = map.position(map.goal());
        walker::demonstrate(kind, self.episode.steps, self.position(situation), draws, |position| {
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
