//! Plan-Path: lead a walker over a board with walls to its goal, a few moves a turn.
//!
//! From Stronger-MAS (arXiv 2510.11062); the workflows are those of [`crate::grid::world`]. With
//! `--set proposal=moves` the tool proposes in the planner's own action space.
//!
//! - [`map`]: the board and its distances; [`rules`]: what moves do and earn;
//! - [`spec`]: settings and the `spec` of a task; [`generate`]: which tasks there are, train and test;
//! - [`prompts`]: the two encodings; [`demonstrate`]: imperfect experts.

mod demonstrate;
pub mod generate;
pub mod map;
mod prompts;
mod rules;
pub mod spec;

use record::failure::{Failure, Result};
use record::philox::Draws;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::environment::{ExtractionCase, Outcome, Split};
use crate::grid::world::{Episode, Grid, GridWorld, Situations};
use crate::grid::{ActionFormat, Move, Parsed, Position, test_actions};
use crate::settings::{Setting, Settings};
use map::{Cell, UNREACHABLE};
use rules::Progress;
use spec::{Instance, Rules};

/// The environment.
pub(crate) static PLAN_PATH: Grid<Instance> = Grid::new();

/// Where the walker is.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    cell: Cell,
    /// Least distance to the goal of all cells visited.
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
    fn position(&self, situation: &Situation) -> Position {
        self.map.position(situation.cell)
    }
}

impl GridWorld for Instance {
    const NAME: &'static str = "plan-path";
    const SUMMARY: &'static str = "walk round walls to a goal, a few moves a turn";
    const SETTINGS: &'static [Setting] = spec::SETTINGS;
    const DEMONSTRATORS: &'static [(&'static str, f64)] =
        &[("opt", 0.25), ("lazy", 0.55), ("manhattan", 0.1), ("random", 0.1)];
    const WALKS: bool = true;
    const ATTEMPTS: u32 = 20_000;

    type Rules = Rules;
    type Situation = Situation;
    type RawSituation = RawSituation;
    type Step = Move;

    fn rules(settings: &Settings) -> Result<Rules> {
        Rules::from_settings(settings)
    }

    fn draw(rules: &Rules, split: Split, draws: &mut Draws) -> Option<(Value, u64)> {
        generate::draw(rules, split, draws)
    }

    fn describe(Rules { size, density, nearest, farthest, .. }: &Rules) -> (String, &'static str) {
        (
            format!("size={size} density={density} nearest={nearest} farthest={farthest}"),
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
        format.write(self.position(situation), moves)
    }

    fn read(&self, situation: &Situation, format: ActionFormat, text: &str) -> Option<Parsed> {
        format.read(self.position(situation), text, self.episode.steps)
    }

    fn shown(&self, format: ActionFormat, text: &str, action: &Parsed) -> String {
        format.shown(text, action)
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
        let legal = action.connected && !walk.blocked;
        let end = map.distance(walk.end);
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
        let lists = test_actions::lists(&self.best(situation), self.episode.steps);
        let mut actions: Vec<String> = lists.iter().map(|list| write(list)).collect();
        if self.episode.is_compact() {
            let (goal, here) = (self.map.position(self.map.goal()), self.position(situation));
            let outside = Position { row: 25, column: 25 };
            actions.extend([goal, here, outside].map(|position| format!(" {position}")));
            actions.push(format!(" {here} {goal}"));
        }
        actions.extend(test_actions::malformed("goal"));
        actions
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        test_actions::extraction_cases(
            |encoding| json!({"size": 3, "encoding": encoding, "moves": 3, "turns": 4, "walls": ["b1"], "goal": "c0", "start": "a2"}),
        )
    }

    fn picture(&self, situation: &Situation) -> String {
        prompts::picture(&self.map, self.position(situation))
    }

    /// Each cell from which the goal can be reached is as likely as any other.
    fn situations<'a>(&'a self, _rules: &Rules) -> Box<Situations<'a, Instance>> {
        let cells: Vec<Cell> = self.map.reachable().filter(|cell| *cell != self.map.goal()).collect();
        Box::new(move |draws| {
            let cell = draws.choose(&cells).copied()?;
            Some(Situation { cell, best: self.map.distance(cell).min(self.first) })
        })
    }

    fn demonstrate(&self, kind: &str, situation: &Situation, draws: &mut Draws) -> Vec<Move> {
        demonstrate::moves(kind, &self.map, situation.cell, self.episode.steps, draws)
    }
}
