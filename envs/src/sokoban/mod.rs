//! Sokoban: push boxes onto goals, a few moves a turn.
//!
//! From Stronger-MAS (arXiv 2510.11062); the workflows are those of [`crate::grid::world`]. With
//! `--set proposal=moves` the tool proposes in the planner's own action space.
//!
//! - [`level`]: the level, and every situation's distance to a solution; [`rules`]: what moves do and earn;
//! - [`spec`]: settings and the `spec` of a task; [`generate`]: which tasks there are, train and test;
//! - [`prompts`]: the two encodings; [`demonstrate`]: imperfect experts.

mod demonstrate;
pub mod generate;
pub mod level;
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
use level::{DEAD, Situation};
use rules::Progress;
use spec::{Instance, Rules};

/// The environment.
pub(crate) static SOKOBAN: Grid<Instance> = Grid::new();

/// A situation and the shares of the way already paid to the team.
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

impl Instance {
    fn player(&self, Paid { situation, .. }: &Paid) -> Position {
        self.level.position(situation.player)
    }
}

impl GridWorld for Instance {
    const NAME: &'static str = "sokoban";
    const SUMMARY: &'static str = "push boxes onto goals, a few moves a turn";
    const SETTINGS: &'static [Setting] = spec::SETTINGS;
    const DEMONSTRATORS: &'static [(&'static str, f64)] =
        &[("opt", 0.3), ("lazy", 0.5), ("straight", 0.1), ("random", 0.1)];
    const WALKS: bool = true;
    const ATTEMPTS: u32 = 5000;

    type Rules = Rules;
    type Situation = Paid;
    type RawSituation = RawSituation;
    type Step = Move;

    fn rules(settings: &Settings) -> Result<Rules> {
        Rules::from_settings(settings)
    }

    fn draw(rules: &Rules, split: Split, draws: &mut Draws) -> Option<(Value, u64)> {
        generate::draw(rules, split, draws)
    }

    fn describe(Rules { size, boxes, density, nearest, farthest, .. }: &Rules) -> (String, &'static str) {
        (
            format!("size={size} boxes={boxes} density={density} nearest={nearest} farthest={farthest}"),
            "a larger size, fewer walls or a smaller nearest leaves more room",
        )
    }

    fn parse(spec: &Value) -> Result<Instance> {
        Instance::parse(spec)
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
        let situation = spec::situation(&self.level, player, &boxes)?;
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
            legal: legal && action.connected,
            alive: end != DEAD,
            improvement: progress.improvement(end),
            on_goals: level.on_goals(&after) as f64 / boxes as f64,
        };
        let outcome = components.outcome(agent, progress.team(end));
        let paid = (*paid).max(progress.shares(end).min(progress.boxes - 1));
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
        let lists = test_actions::lists(&self.best(state), self.episode.steps);
        let mut actions: Vec<String> = lists.iter().map(|list| write(list)).collect();
        if self.episode.is_compact() {
            let mut targets = self.level.positions(state.situation.boxes());
            targets.extend(self.level.positions(self.level.goals()));
            targets.extend([self.player(state), Position { row: 25, column: 25 }]);
            actions.extend(targets.iter().map(|position| format!(" {position}")));
        }
        actions.extend(test_actions::malformed("box"));
        actions
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        test_actions::extraction_cases(|encoding| {
            json!({"size": 6, "encoding": encoding, "moves": 3, "turns": 4, "walls": ["b2"], "goals": ["d3"],
                "boxes": ["c3"], "player": "b4"})
        })
    }

    fn picture(&self, state: &Paid) -> String {
        prompts::picture(&self.level, &state.situation)
    }

    /// Every situation that can still be solved is as likely as any other.
    fn situations<'a>(&'a self, rules: &Rules) -> Box<Situations<'a, Instance>> {
        let near = 1..=rules.farthest;
        let solvable = self.level.solvable().filter(|(_, distance)| near.contains(&u32::from(*distance)));
        let situations: Vec<Situation> = solvable.map(|(situation, _)| situation).collect();
        Box::new(move |draws| Some(Paid { situation: *draws.choose(&situations)?, paid: 0 }))
    }

    fn demonstrate(&self, kind: &str, state: &Paid, draws: &mut Draws) -> Vec<Move> {
        demonstrate::moves(kind, &self.level, &state.situation, self.episode.steps, draws)
    }
}
