//! A situation in a Sokoban episode: player and boxes, what has been paid, and what the tool has proposed.

use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::Message;
use serde::Deserialize;
use serde_json::{Value, json};

use super::level::{DEAD, Situation};
use super::rules::{Parts, Standing, walk};
use super::spec::{self, Instance};
use super::{compact, full, test_actions};
use crate::environment::{Checks, Outcome, State};
use crate::grid::{Move, Place, Speech};
use crate::settings::Encoding;
use crate::workflow::Workflow;

/// A situation with everything that its future depends on.
#[derive(Clone, Debug)]
pub struct SokobanState {
    instance: Arc<Instance>,
    workflow: Arc<Workflow>,
    situation: Situation,
    paid: u32,
    proposal: Option<Arc<str>>,
}

/// [`SokobanState::to_json`], read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'a> {
    #[serde(rename = "env")]
    _env: Option<&'a str>,
    spec: Value,
    workflow: &'a str,
    player: &'a str,
    #[serde(borrow)]
    boxes: Vec<&'a str>,
    paid: u32,
    proposal: Option<&'a str>,
}

impl SokobanState {
    /// The beginning of an episode.
    pub fn new(instance: Arc<Instance>, workflow: Arc<Workflow>) -> Self {
        SokobanState { situation: instance.start, instance, workflow, paid: 0, proposal: None }
    }

    /// An episode that has come to `situation`, with nothing paid yet.
    pub fn starting_at(instance: Arc<Instance>, workflow: Arc<Workflow>, situation: Situation) -> Self {
        SokobanState { situation, ..Self::new(instance, workflow) }
    }

    /// The state that `to_json` wrote; `find` looks a workflow up.
    pub fn restore(value: &Value, find: impl Fn(&str) -> Result<Arc<Workflow>>) -> Result<Self> {
        let fail = |cause: String| Failure::data(format!("state: {cause}"));
        let written = Written::deserialize(value).map_err(|error| fail(error.to_string()))?;
        let instance = Arc::new(Instance::parse(&written.spec)?);
        let situation = spec::situation(&instance.level, written.player, &written.boxes)
            .map_err(|failure| Failure { message: format!("state: {}", failure.message), ..failure })?;
        if written.paid as usize >= instance.level.goals().len() {
            return Err(fail(format!("paid: {} shares, which only a solution pays", written.paid)));
        }
        Ok(SokobanState {
            workflow: find(written.workflow)?,
            situation,
            paid: written.paid,
            proposal: written.proposal.map(Arc::from),
            instance,
        })
    }

    /// The instance played.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Player and boxes.
    pub fn situation(&self) -> &Situation {
        &self.situation
    }

    /// The player's place.
    pub fn place(&self) -> Place {
        self.instance.level.place(self.situation.player)
    }

    /// The first turn of a shortest solution from here: at most `moves` of them.
    pub fn shortest(&self) -> Vec<Move> {
        let mut situation = self.situation;
        let mut moves = Vec::new();
        while moves.len() < self.instance.moves as usize {
            let Some((step, next)) = self.instance.level.nearer(&situation).next() else { break };
            moves.push(step);
            situation = next;
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
}

impl State for SokobanState {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        self.instance.turns
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let proposal = match self.workflow.name() {
            "team" if agent != "tool" => Some(self.proposal.as_deref().unwrap_or("")),
            _ => None,
        };
        let Instance { preamble, level, proposal: language, encoding, .. } = &*self.instance;
        let content = match encoding {
            Encoding::Compact => {
                compact::prompt(preamble, level, &self.situation, *language, proposal, agent)
            }
            Encoding::Full => full::prompt(preamble, level, &self.situation, proposal, agent),
        };
        vec![Message { role: "user".to_owned(), content }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.workflow.check(agent)?;
        let level = &self.instance.level;
        let now = level.distance(&self.situation);
        match now {
            0 => return Err(Failure::data("the episode is over: the level is solved")),
            DEAD => return Err(Failure::data("the episode is over: the level cannot be solved any more")),
            _ => {}
        }
        // A proposal stays on paper, unless there is nobody else to carry it out.
        let proposes = agent == "tool" && self.workflow.agents().len() > 1;
        let speech = self.speech(agent);
        let Some(reading) = speech.read(self.place(), text, self.instance.moves) else {
            self.proposal = None;
            let (rewards, components) = (Parts::NONE.rewards(agent, 0.0), Parts::NONE.components(agent));
            return Ok(Outcome { rewards, components, terminated: false, success: false });
        };
        let standing = Standing {
            first: self.instance.first,
            paid: self.paid,
            now,
            moves: self.instance.moves,
            boxes: level.goals().len() as u32,
        };
        let (after, legal) = walk(level, &self.situation, &reading.moves);
        let end = level.distance(&after);
        let parts = Parts {
            format: true,
            legal: legal && reading.connected,
            alive: end != DEAD,
            improvement: standing.improvement(end),
            on_goals: level.on_goals(&after) as f64 / level.goals().len() as f64,
        };
        let outcome = Outcome {
            rewards: parts.rewards(agent, standing.team(end)),
            components: parts.components(agent),
            terminated: !proposes && (end == 0 || end == DEAD),
            success: !proposes && end == 0,
        };
        if proposes {
            self.proposal = Some(speech.shown(text, &reading).into());
        } else {
            self.situation = after;
            self.paid = self.paid.max(standing.shares(end).min(standing.boxes - 1));
            self.proposal = None;
        }
        Ok(outcome)
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        let level = &self.instance.level;
        let boxes: Vec<String> =
            self.situation.boxes().iter().map(|cell| level.place(*cell).to_string()).collect();
        json!({
            "env": super::NAME,
            "spec": self.instance.spec,
            "workflow": self.workflow.name(),
            "player": self.place().to_string(),
            "boxes": boxes,
            "paid": self.paid,
            "proposal": self.proposal.as_deref(),
        })
    }

    fn checks(&self) -> Option<&dyn Checks> {
        Some(self)
    }
}

impl Checks for SokobanState {
    fn oracle(&self, agent: &str) -> Option<String> {
        Some(self.write(agent, &self.shortest()))
    }

    fn is_solved(&self) -> bool {
        self.situation.boxes() == self.instance.level.goals()
    }

    fn test_actions(&self, agent: &str) -> Vec<String> {
        test_actions::all(self, agent)
    }

    fn draw(&self) -> String {
        full::draw(&self.instance.level, &self.situation)
    }
}
