//! Sokoban: push boxes onto goals, a few moves per turn.
//!
//! From Stronger-MAS (arXiv 2510.11062), with the workflows of [`crate::grid::world`].
//!
//! - here: settings, the `spec` of a task, and the world;
//! - [`level`]: the level, and every situation's distance to a solution; [`rules`]:
//!   effects and rewards of moves;
//! - [`generate`]: draws tasks, train and test; [`prompts`]: the two encodings.

pub mod generate;
pub mod level;
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
use environment::settings::{ENCODING, Encoding, REWARD, RewardMode, Setting, Settings, TURNS};
use environment::spec::{checked, fail, read};
use environment::{ExtractionCase, Metadata, Outcome, Split};
use level::{Cell, DEAD, LARGEST, LARGEST_TABLE, Level, MOST_BOXES, Situation, fits, table_size};
use rules::Progress;

/// The environment.
pub static SOKOBAN: GridEnvironment<Instance> = GridEnvironment::new(
    "sokoban",
    Metadata {
        summary: "push boxes onto goals, a few moves a turn",
        workflows: &WALKING,
        settings: &[
            Setting::new("size", "6", "cells a side with the outer wall, 5 to 17"),
            Setting::new("boxes", "1", "boxes and goals, 1 to 6"),
            ENCODING,
            PROPOSAL,
            Setting::new("moves", "3; 10 if full", "most moves in a turn, 1 to 99"),
            TURNS,
            REWARD,
            Setting::new("density", "0.15", "share of cells inside the rim that are walls"),
            Setting::new(
                "nearest",
                "4; farthest if that is less",
                "least number of moves of a shortest solution",
            ),
            Setting::new(
                "farthest",
                "9; moves x turns if full",
                "greatest number of moves of a shortest solution, at most moves x turns",
            ),
        ],
        demonstrators: &[("opt", 0.3), ("lazy", 0.5), ("straight", 0.1), ("random", 0.1)],
        max_tokens: |settings| if settings.is_prose() { 128 } else { 8 },
    },
);

/// How tasks are drawn.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Everything in a `spec` except the level.
    spec: RawSpec,
    boxes: usize,
    /// Share of cells inside the rim that are walls.
    density: f64,
    /// Least number of moves of a shortest solution.
    nearest: u32,
    /// Greatest number of moves of a shortest solution.
    farthest: u32,
}

/// A task, complete in itself. Unsolvable levels are refused.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpec {
    /// Cells a side, the outer wall included.
    size: usize,
    encoding: Encoding,
    #[serde(skip_serializing_if = "Option::is_none")]
    proposal: Option<ActionSpace>,
    moves: u32,
    turns: u32,
    #[serde(default, skip_serializing_if = "RewardMode::is_default")]
    reward: RewardMode,
    walls: Vec<Position>,
    goals: Vec<Position>,
    boxes: Vec<Position>,
    player: Position,
}

/// A task, constant during its episodes.
#[derive(Debug)]
pub struct Instance {
    pub level: Level,
    pub start: Situation,
    /// Moves of a shortest solution.
    pub first: u16,
    episode: Episode,
    /// The beginning of every prompt.
    preamble: String,
}

/// A situation, and the shares of the way that the team was already paid for.
#[derive(Clone, Copy, Debug)]
pub struct Paid {
    situation: Situation,
    paid: u32,
}

/// [`Paid`] in state JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSituation {
    player: Position,
    boxes: Vec<Position>,
    paid: u32,
}

/// The situation of a player and boxes.
///
/// # Errors
/// A position is not a free cell, two things share a cell, or the number of boxes is not the level's: data.
fn situation(level: &Level, player: Position, boxes: &[Position]) -> Result<Situation> {
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
    fn player(&self, Paid { situation, .. }: &Paid) -> Position {
        self.level.position(situation.player)
    }
}

impl GridWorld for Instance {
    const ATTEMPTS: u32 = 5000;

    type Rules = Rules;
    type Situation = Paid;
    type RawSituation = RawSituation;
    type Step = Move;

    fn rules(settings: &Settings) -> Result<Rules> {
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
        if !fits(free, boxes) {
            return Err(Failure::usage(format!(
                "--set size={size} boxes={boxes}: {} situations, and the solver takes up to {LARGEST_TABLE}",
                table_size(free, boxes)
            ))
            .hint("fewer boxes or a smaller size"));
        }
        let defaults = [4, if small { 9 } else { u32::MAX }];
        let (nearest, farthest) =
            bounds(settings, ["nearest", "farthest"], defaults, u32::MAX, (moves, "moves"), turns)?;
        let proposal = proposal.to_spec(encoding);
        let reward = RewardMode::from_settings(settings)?;
        let spec = RawSpec { size, encoding, proposal, moves, turns, reward, ..RawSpec::default() };
        Ok(Rules { spec, boxes, density, nearest, farthest })
    }

    fn draw(rules: &Rules, split: Split, draws: &mut Draws) -> Option<(Value, u64)> {
        generate::draw(rules, split, draws)
    }

    fn describe(Rules { spec, boxes, density, nearest, farthest }: &Rules) -> (String, &'static str) {
        let size = spec.size;
        (
            format!("size={size} boxes={boxes} density={density} nearest={nearest} farthest={farthest}"),
            "a larger size, fewer walls or a smaller nearest leaves more room",
        )
    }

    fn parse(spec: &Value) -> Result<Instance> {
        let RawSpec { size, encoding, proposal, moves, turns, reward, mut walls, goals, boxes, player } =
            read(spec)?;
        checked("size", size, 3, LARGEST)?;
        checked("goals", goals.len(), 1, MOST_BOXES)?;
        let episode = Episode::new(spec, encoding, proposal, ("moves", moves, 99), turns, reward)?;
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
        let start = situation(&level, player, &boxes).map_err(|failure| failure.at("spec"))?;
        let first = level.distance(&start);
        match first {
            0 => return Err(fail("boxes: the level is already solved")),
            DEAD => return Err(fail("boxes: the level cannot be solved")),
            _ => {}
        }
        let preamble = prompts::preamble(&level, encoding, moves, turns);
        Ok(Instance { level, start, first, episode, preamble })
    }

    fn episode(&self) -> &Episode {
        &self.episode
    }

    fn start(&self) -> Paid {
        Paid { situation: self.start, paid: 0 }
    }

    fn save(&self, state: &Paid) -> RawSituation {
        let boxes = self.level.positions(state.situation.boxes());
        RawSituation { player: self.player(state), boxes, paid: state.paid }
    }

    fn load(&self, RawSituation { player, boxes, paid }: RawSituation) -> Result<Paid> {
        let situation = situation(&self.level, player, &boxes)?;
        if paid as usize >= self.level.goals().len() {
            return Err(Failure::data(format!("paid: {paid} shares, which only a solution pays")));
        }
        Ok(Paid { situation, paid })
    }

    fn ending(&self, Paid { situation, .. }: &Paid) -> Option<&'static str> {
        match self.level.distance(situation) {
            0 => Some("the level is solved"),
            DEAD => Some("the level cannot be solved any more"),
            _ => None,
        }
    }

    fn prompt(&self, state: &Paid, proposal: Option<&str>, agent: &str) -> String {
        prompts::prompt(self, &state.situation, proposal, agent)
    }

    fn write(&self, state: &Paid, format: ActionFormat, moves: &[Move]) -> String {
        format.write(self.player(state), moves)
    }

    fn read(&self, state: &Paid, format: ActionFormat, text: &str) -> Option<Parsed> {
        format.read(self.player(state), text, self.episode.steps)
    }

    fn shown(&self, format: ActionFormat, text: &str, action: &Parsed) -> String {
        format.shown(text, action)
    }

    fn play(&self, Paid { situation, paid }: &Paid, agent: &str, action: &Parsed) -> (Paid, Outcome) {
        let level = &self.level;
        let boxes = level.goals().len();
        let progress = Progress {
            first: self.first,
            paid: *paid,
            now: level.distance(situation),
            moves: self.episode.steps,
            boxes: boxes as u32,
        };
        let (after, legal) = rules::walk(level, situation, &action.steps);
        let end = level.distance(&after);
        let components = rules::Components {
            format: true,
            legal: legal && (action.connected || end == 0),
            alive: end != DEAD,
            improvement: progress.improvement(end),
            on_goals: level.on_goals(&after) as f64 / boxes as f64,
        };
        let outcome = components.outcome(agent, progress.team(end));
        let paid = (*paid).max(progress.shares(end));
        let after = Paid { situation: after, paid };
        (after, Outcome { terminated: end == 0 || end == DEAD, success: end == 0, ..outcome })
    }

    fn malformed(agent: &str) -> Outcome {
        rules::Components::default().outcome(agent, 0.0)
    }

    fn best(&self, state: &Paid) -> Vec<Move> {
        let mut situation = state.situation;
        let mut moves = Vec::new();
        while moves.len() < self.episode.steps as usize {
            let Some((step, next)) = self.level.nearer(&situation).next() else { break };
            moves.push(step);
            situation = next;
        }
        moves
    }

    fn is_solved(&self, state: &Paid) -> bool {
        state.situation.boxes() == self.level.goals()
    }

    fn test_actions(&self, state: &Paid, write: &dyn Fn(&[Move]) -> String) -> Vec<String> {
        let mut cells = self.level.positions(state.situation.boxes());
        cells.extend(self.level.positions(self.level.goals()));
        cells.extend([self.player(state), walker::OUTSIDE]);
        let routes: Vec<Vec<Position>> = cells.into_iter().map(|cell| vec![cell]).collect();
        walker::test_actions(&self.episode, &self.best(state), &routes, "box", write)
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        walker::extraction_cases(|encoding| {
            json!({"size": 6, "encoding": encoding, "moves": 3, "turns": 4, "walls": ["b2"], "goals": ["d3"],
                "boxes": ["c3"], "player": "b4"})
        })
    }

    fn picture(&self, state: &Paid) -> String {
        prompts::picture(&self.level, &state.situation)
    }

    /// All solvable situations are equally likely.
    fn situations<'a>(&'a self, rules: &Rules) -> Box<Situations<'a, Instance>> {
        let near = 1..=rules.farthest;
        let solvable = self.level.solvable().filter(|(_, distance)| near.contains(&u32::from(*distance)));
        let situations: Vec<Situation> = solvable.map(|(situation, _)| situation).collect();
        Box::new(move |draws| Some(Paid { situation: *draws.choose(&situations)?, paid: 0 }))
    }

    /// `straight` walks towards a box ignoring walls, and keeps pushing.
    fn demonstrate(&self, kind: &str, state: &Paid, draws: &mut Draws) -> Vec<Move> {
        let level = &self.level;
        walker::demonstrate(kind, self.episode.steps, state.situation, draws, |situation| {
            let steps = match kind {
                "random" => Move::ALL.to_vec(),
                "straight" => straight(level, situation),
                _ => level.nearer(situation).map(|(step, _)| step).collect(),
            };
            let after = |step| (step, level.step(situation, step));
            (level.distance(situation) != 0).then(|| steps.into_iter().map(after).collect())
        })
    }
}

/// The directions towards the nearest box that is not on a goal, ignoring walls.
fn straight(level: &Level, situation: &Situation) -> Vec<Move> {
    let here = level.position(situation.player);
    let boxes = situation.boxes().iter().filter(|cell| !level.goals().contains(cell));
    let apart = |position: &Position| (position.apart(here), *position);
    let Some(nearest) = boxes.map(|cell| level.position(*cell)).min_by_key(apart) else { return Vec::new() };
    let towards = [
        (Move::Up, nearest.row < here.row),
        (Move::Down, nearest.row > here.row),
        (Move::Left, nearest.column < here.column),
        (Move::Right, nearest.column > here.column),
    ];
    towards.into_iter().filter_map(|(step, towards)| towards.then_some(step)).collect()
}
