//! A situation in a Plan-Path episode: where the walker stands, and what the tool has proposed.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::{Message, Rewards};
use serde::Deserialize;
use serde_json::{Value, json};

use super::map::{Cell, Move, Place, UNREACHABLE};
use super::rules::{Parts, Standing, walk};
use super::spec::Instance;
use super::{compact, full, test_actions};
use crate::environment::{Checks, Outcome, State};
use crate::grid::Speech;
use crate::settings::Encoding;
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

    fn speech(&self, agent: &str) -> Speech {
        Speech::of(self.instance.encoding, self.instance.proposal, agent, self.workflow.name())
    }

    /// An agent's answer that stands for `moves`.
    pub fn write(&self, agent: &str, moves: &[Move]) -> String {
        self.speech(agent).write(self.place(), moves)
    }

    /// Whether what `agent` says is only a proposal: where nobody else is there to carry it out, it moves the walker.
    fn proposes(&self, agent: &str) -> bool {
        agent == "tool" && self.workflow.agents().len() > 1
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
        let (preamble, place) = (&self.instance.preamble, self.place());
        let content = match self.instance.encoding {
            Encoding::Compact => compact::prompt(preamble, place, self.instance.proposal, proposal, agent),
            Encoding::Full => full::prompt(preamble, place, proposal, agent),
        };
        vec![Message { role: "user".to_owned(), content }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.workflow.check(agent)?;
        let map = &self.instance.map;
        if self.position == map.goal() {
            return Err(Failure::data("the episode is over: the walker is at the goal"));
        }
        let speech = self.speech(agent);
        let Some(reading) = speech.read(self.place(), text, self.instance.moves) else {
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
        if self.proposes(agent) {
            self.proposal = Some(Proposal::new(&speech.shown(text, &reading)));
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

    fn checks(&self) -> Option<&dyn Checks> {
        Some(self)
    }
}

impl Checks for PlanPathState {
    fn oracle(&self, agent: &str) -> Option<String> {
        Some(self.write(agent, &self.shortest()))
    }

    fn is_solved(&self) -> bool {
        self.instance.map.distance(self.position) == 0
    }

    fn test_actions(&self, agent: &str) -> Vec<String> {
        test_actions::all(self, agent)
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
