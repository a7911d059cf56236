//! A situation in a Plan-Path episode: where the walker stands, and what the tool has proposed.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::{Message, Rewards};
use serde::Deserialize;
use serde_json::{Value, json};

use super::map::{Cell, Move, Place, UNREACHABLE};
use super::rules::{Parts, Standing, walk};
use super::spec::{Encoding, Instance};
use super::{compact, full, probes};
use crate::environment::{Outcome, State};
use crate::workflow::Workflow;

/// What the tool has proposed, in the words that the planner is shown; empty if it could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal(Arc<str>);

impl Proposal {
    /// A proposal from its words.
    pub fn new(text: &str) -> Self {
        Proposal(text.into())
    }

    /// Its words.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// An answer that could be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The moves, as far as a route connects.
    pub moves: Vec<Move>,
    /// Every cell of a route is a neighbour of the one before; true for moves.
    pub connected: bool,
}

/// A situation.
#[derive(Clone, Debug)]
pub struct PlanPathState {
    instance: Arc<Instance>,
    workflow: Arc<Workflow>,
    position: Cell,
    best: u16,
    proposal: Option<Proposal>,
}

/// [`PlanPathState::to_json`], read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'a> {
    #[serde(rename = "env")]
    _env: Option<&'a str>,
    spec: Value,
    workflow: &'a str,
    position: &'a str,
    best: u16,
    proposal: Option<&'a str>,
}

impl PlanPathState {
    /// The beginning of an episode.
    pub fn new(instance: Arc<Instance>, workflow: Arc<Workflow>) -> Self {
        let (position, best) = (instance.start, instance.first);
        PlanPathState { instance, workflow, position, best, proposal: None }
    }

    /// The beginning of an episode whose walker starts at `cell`, from which the goal can be reached.
    pub fn starting_at(instance: Arc<Instance>, workflow: Arc<Workflow>, cell: Cell) -> Self {
        let best = instance.map.distance(cell).min(instance.first);
        PlanPathState { position: cell, best, ..Self::new(instance, workflow) }
    }

    /// The state that `to_json` wrote; `find` looks a workflow up.
    pub fn restore(value: &Value, find: impl Fn(&str) -> Result<Arc<Workflow>>) -> Result<Self> {
        let fail = |cause: String| Failure::data(format!("state: {cause}"));
        let written = Written::deserialize(value).map_err(|error| fail(error.to_string()))?;
        let instance = Arc::new(Instance::parse(&written.spec)?);
        let place = Place::parse(written.position).filter(|place| instance.map.holds(*place));
        let position = place
            .map(|place| instance.map.cell(place))
            .filter(|cell| instance.map.distance(*cell) != UNREACHABLE)
            .ok_or_else(|| fail(format!("position: the walker cannot be at '{}'", written.position)))?;
        let most = instance.map.distance(position).min(instance.first);
        if written.best > most {
            return Err(fail(format!("best: {} is more than {most}, which was reached", written.best)));
        }
        let proposal = written.proposal.map(Proposal::new);
        Ok(PlanPathState {
            workflow: find(written.workflow)?,
            position,
            best: written.best,
            proposal,
            instance,
        })
    }

    /// The walker's place.
    pub fn place(&self) -> Place {
        self.instance.map.place(self.position)
    }

    /// The instance played.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The first turn of a shortest path from here: at most `moves` of them.
    pub fn shortest(&self) -> Vec<Move> {
        let map = &self.instance.map;
        let mut cell = self.position;
        let mut moves = Vec::new();
        while let Some(step) = map.nearer(cell).filter(|_| moves.len() < self.instance.moves as usize) {
            moves.push(step);
            cell = map.neighbour(cell, step);
        }
        moves
    }

    /// An agent's answer that stands for `moves`.
    pub fn write(&self, agent: &str, moves: &[Move]) -> String {
        match (self.instance.encoding, agent) {
            (Encoding::Full, _) => full::write_answer(moves),
            (Encoding::Compact, "tool") => compact::write_route(self.place(), moves),
            (Encoding::Compact, _) => compact::write_moves(moves),
        }
    }

    fn read(&self, agent: &str, text: &str) -> Option<Reading> {
        let most = self.instance.moves;
        match (self.instance.encoding, agent) {
            (Encoding::Full, _) => full::read_moves(text, most),
            (Encoding::Compact, "tool") => compact::read_route(text, self.place(), most),
            (Encoding::Compact, _) => compact::read_moves(text, most),
        }
    }

    /// What the planner is shown of a tool's answer that could be read.
    fn shown(&self, text: &str, reading: &Reading) -> Proposal {
        match self.instance.encoding {
            Encoding::Full => Proposal::new(&full::write_moves(&reading.moves)),
            Encoding::Compact => {
                let mut words = String::with_capacity(text.len() + 1);
                for word in text.split_ascii_whitespace() {
                    words.push(' ');
                    words.push_str(word);
                }
                Proposal::new(&words)
            }
        }
    }
}

impl State for PlanPathState {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        self.instance.turns
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let nothing = Proposal::new("");
        let proposal = match self.workflow.name() {
            "team" if agent != "tool" => Some(self.proposal.as_ref().unwrap_or(&nothing)),
            _ => None,
        };
        let prompt = match self.instance.encoding {
            Encoding::Compact => compact::prompt,
            Encoding::Full => full::prompt,
        };
        let content = prompt(&self.instance.preamble, self.place(), proposal, agent);
        vec![Message { role: "user".to_owned(), content }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.workflow.check(agent)?;
        let map = &self.instance.map;
        if self.position == map.goal() {
            return Err(Failure::data("the episode is over: the walker is at the goal"));
        }
        let is_tool = agent == "tool";
        let Some(reading) = self.read(agent, text) else {
            self.proposal = None;
            return Ok(outcome(Parts::NONE, 0.0, false));
        };
        let standing = Standing {
            first: self.instance.first,
            best: self.best,
            now: map.distance(self.position),
            moves: self.instance.moves,
        };
        let walk = walk(map, self.position, &reading.moves);
        let parts = Parts {
            format: true,
            legal: reading.connected && !walk.blocked,
            oracle: standing.agreement(walk.agreeing),
        };
        let team = standing.team(map.distance(walk.end));
        let arrived = walk.end == map.goal();
        if is_tool {
            self.proposal = Some(self.shown(text, &reading));
            return Ok(outcome(parts, team, false));
        }
        self.position = walk.end;
        self.best = self.best.min(walk.least);
        self.proposal = None;
        Ok(outcome(parts, team, arrived))
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        json!({
            "env": super::NAME,
            "spec": self.instance.spec,
            "workflow": self.workflow.name(),
            "position": self.place().to_string(),
            "best": self.best,
            "proposal": self.proposal.as_ref().map(Proposal::text),
        })
    }

    fn oracle(&self, agent: &str) -> Option<String> {
        Some(self.write(agent, &self.shortest()))
    }

    fn is_solved(&self) -> bool {
        self.instance.map.distance(self.position) == 0
    }

    fn probes(&self, agent: &str) -> Vec<String> {
        probes::answers(self, agent)
    }

    fn draw(&self) -> String {
        full::draw(&self.instance.map, self.place())
    }
}

fn outcome(parts: Parts, team: f64, arrived: bool) -> Outcome {
    let components: BTreeMap<String, f64> = parts.components();
    let rewards: Rewards = parts.rewards(team);
    Outcome { rewards, components, terminated: arrived, success: arrived }
}
