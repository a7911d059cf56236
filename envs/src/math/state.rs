//! A situation in a math episode: what everyone said last.

use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answer::{Answer, extract};
use super::rules::Score;
use super::spec::{Encoding, Problem};
use super::{compact, full, program, test_actions};
use crate::environment::{Checks, Outcome, State};
use crate::spec::read_state;
use crate::workflow::Workflow;

/// What an agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Thinks.
    Reasoner,
    /// Writes a program.
    Tool,
    /// Chooses among the answers of the others.
    Judge,
}

impl Role {
    /// The role of an agent: its name without a number.
    pub fn of(agent: &str) -> Role {
        match agent.split('-').next() {
            Some("tool") => Role::Tool,
            Some("judge") => Role::Judge,
            _ => Role::Reasoner,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Reasoner => "reasoner",
            Role::Tool => "tool",
            Role::Judge => "judge",
        }
    }
}

/// What an agent said last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentMessage {
    /// As others are shown it.
    pub shown: String,
    /// Its answer as it was written, if there is one.
    pub answer: Option<String>,
    /// The judge chose with it, or the agent has said it twice: it stands.
    #[serde(default)]
    pub stands: bool,
}

/// A situation.
#[derive(Clone, Debug)]
pub struct MathState {
    problem: Arc<Problem>,
    workflow: Arc<Workflow>,
    /// By agent, in the order of the workflow.
    said: Vec<Option<Arc<AgentMessage>>>,
}

/// [`MathState::to_json`], read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawState {
    #[serde(rename = "env")]
    _env: Option<String>,
    spec: Value,
    workflow: String,
    said: Vec<Option<AgentMessage>>,
}

impl MathState {
    /// The beginning of an episode.
    pub fn new(problem: Arc<Problem>, workflow: Arc<Workflow>) -> Self {
        let said = vec![None; workflow.agents().len()];
        MathState { problem, workflow, said }
    }

    /// The state that `to_json` wrote; `find` looks a workflow up.
    pub fn restore(value: &Value, find: impl Fn(&str, &Value) -> Result<Arc<Workflow>>) -> Result<Self> {
        let raw: RawState = read_state(value)?;
        let problem = Arc::new(Problem::parse(&raw.spec)?);
        let workflow = find(&raw.workflow, &raw.spec)?;
        let (said, agents) = (raw.said.len(), workflow.agents().len());
        if said != agents {
            return Err(Failure::data(format!("state: said: {said} entries for {agents} agents")));
        }
        let said = raw.said.into_iter().map(|said| said.map(Arc::new)).collect();
        Ok(MathState { problem, workflow, said })
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// What `agent` said last.
    pub fn said(&self, agent: &str) -> Option<&AgentMessage> {
        self.said.get(self.workflow.position(agent)?)?.as_deref()
    }

    /// An answer of `agent` that stands for `value` written as an answer.
    pub fn write(&self, agent: &str, value: &str) -> String {
        match (self.problem.encoding, Role::of(agent)) {
            (Encoding::Full, Role::Tool) => full::write_program(value),
            (Encoding::Full, _) => full::write_solution(value),
            (Encoding::Compact, role) => {
                let sign = if role == Role::Tool { "" } else { " =" };
                format!("{sign}{}", value.chars().flat_map(|digit| [' ', digit]).collect::<String>())
            }
        }
    }

    /// What `text` of `agent` says, and what it is good for.
    fn read(&self, agent: &str, text: &str) -> Result<(AgentMessage, Score)> {
        let role = Role::of(agent);
        let correct = |answer: &Option<String>| {
            answer.as_deref().and_then(Answer::read).is_some_and(|answer| answer.same(&self.problem.answer))
        };
        let said = |shown: String, answer: Option<String>| AgentMessage { shown, answer, stands: false };
        Ok(match (self.problem.encoding, role) {
            (Encoding::Compact, Role::Tool) => {
                let (runs, value) = compact::compute(text);
                let answer = value.map(|value| value.to_string());
                let score = Score::computed(runs, answer.is_some(), correct(&answer));
                let shown = value.map_or_else(|| " none".to_owned(), |value| compact::write_totals(&[value]));
                (said(shown, answer), score)
            }
            (Encoding::Compact, _) => {
                let value = compact::read_totals(text);
                let answer = value.map(|value| value.to_string());
                let score = Score::reasoned(answer.is_some(), correct(&answer));
                let words: String = text.split_ascii_whitespace().flat_map(|word| [" ", word]).collect();
                (said(if value.is_some() { words } else { " none".to_owned() }, answer), score)
            }
            (Encoding::Full, Role::Tool) => {
                let Some(source) = program::extract(text) else {
                    let score = Score::computed(false, false, false);
                    return Ok((said("(no program)".to_owned(), None), score));
                };
                let run = program::python(source)?;
                let answer = run.answer();
                let score = Score::computed(run.ran, answer.is_some(), correct(&answer));
                let what = if run.ran { "Output" } else { "Error" };
                let shown =
                    format!("```python\n{}\n```\n{what}: {}", full::shorten(source.trim()), run.output);
                (said(shown, answer), score)
            }
            (Encoding::Full, _) => {
                let answer = extract::answer(text);
                let score = Score::reasoned(answer.is_some(), correct(&answer));
                (said(full::shorten(text), answer), score)
            }
        })
    }

    /// Takes what `agent` says.
    fn put(&mut self, agent: &str, text: &str) -> Result<Score> {
        self.workflow.check(agent)?;
        if self.has_ended() {
            return Err(Failure::data("the episode is over: the team has its answer"));
        }
        let (mut said, score) = self.read(agent, text)?;
        said.stands = said.answer.as_deref().is_some_and(|answer| self.stands(agent, answer));
        if let Some(position) = self.workflow.position(agent) {
            self.said[position] = Some(Arc::new(said));
        }
        Ok(score)
    }

    /// Whether an answer of `agent` ends the episode by itself.
    fn stands(&self, agent: &str, answer: &str) -> bool {
        let given = |position: usize| self.said[position].as_ref().and_then(|said| said.answer.as_deref());
        match self.workflow.name() {
            "single" => true,
            "turns" => {
                self.workflow.position(agent).and_then(given).is_some_and(|before| same(before, answer))
            }
            // The judge adopts what someone proposed in this turn or before.
            "ensemble" if Role::of(agent) == Role::Judge => {
                let last = self.workflow.agents().len() - 1;
                (0..last).filter_map(given).any(|proposed| same(proposed, answer))
            }
            _ => false,
        }
    }

    /// The answer that the team has come to, once it has.
    fn over(&self) -> Option<&str> {
        let answers: Vec<Option<&str>> =
            self.said.iter().map(|said| said.as_ref().and_then(|said| said.answer.as_deref())).collect();
        if self.workflow.name() == "team" {
            return match answers.as_slice() {
                [Some(tool), Some(reasoner)] if same(tool, reasoner) => Some(reasoner),
                _ => None,
            };
        }
        self.said.iter().flatten().find(|said| said.stands).and_then(|said| said.answer.as_deref())
    }

    /// An answer stands, or the only one that there is to be was given, however malformed.
    fn has_ended(&self) -> bool {
        self.over().is_some() || self.workflow.name() == "single" && self.said.iter().any(Option::is_some)
    }

    fn outcome(&self, agent: Option<&str>, score: &Score) -> Outcome {
        let terminated = self.has_ended();
        let success = self.is_solved();
        let proposes =
            self.workflow.name() == "ensemble" && agent.is_some_and(|agent| Role::of(agent) != Role::Judge);
        let team = success || proposes && score.correct;
        Outcome { terminated, success, ..score.outcome(team) }
    }
}

/// Whether two answers mean the same.
fn same(left: &str, right: &str) -> bool {
    matches!((Answer::read(left), Answer::read(right)), (Some(left), Some(right)) if left.same(&right))
}

impl State for MathState {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        // One answer and no more.
        if self.workflow.name() == "single" { 1 } else { self.problem.turns }
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let said =
            self.workflow.agents().iter().map(String::as_str).zip(self.said.iter().map(Option::as_deref));
        let role = Role::of(agent);
        let content = match self.problem.encoding {
            Encoding::Compact => compact::prompt(&self.problem.text, said, role.name()),
            Encoding::Full => full::prompt(&self.problem.text, said, role),
        };
        vec![Message { role: "user".to_owned(), content }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        let score = self.put(agent, text)?;
        Ok(self.outcome(Some(agent), &score))
    }

    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        // All at once: what was said last must not meet half of what is said now.
        let before = self.clone();
        let mut last = None;
        for (agent, text) in actions {
            let mut alone = before.clone();
            let score = alone.put(agent, text)?;
            if let Some(position) = self.workflow.position(agent) {
                self.said[position] = alone.said[position].take();
            }
            last = Some(score);
        }
        let score = last.ok_or_else(|| Failure::data("no action was given"))?;
        Ok(self.outcome(None, &score))
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        json!({
            "env": super::NAME,
            "spec": self.problem.spec,
            "workflow": self.workflow.name(),
            "said": self.said.iter().map(Option::as_deref).collect::<Vec<_>>(),
        })
    }

    fn checks(&self) -> Option<&dyn Checks> {
        Some(self)
    }
}

impl Checks for MathState {
    fn oracle(&self, agent: &str) -> Option<String> {
        Some(self.write(agent, &self.problem.reference))
    }

    fn is_solved(&self) -> bool {
        let Some(answer) = self.over() else { return false };
        match self.problem.chain.as_ref().and_then(super::story::Chain::value) {
            // Worked out from the story, whatever the answer in the task says.
            Some(value) => answer.parse() == Ok(value),
            None => Answer::read(answer).is_some_and(|answer| answer.same(&self.problem.answer)),
        }
    }

    fn test_actions(&self, agent: &str) -> Vec<String> {
        test_actions::all(self, agent)
    }

    fn draw(&self) -> String {
        let mut text = format!("{}\n", self.problem.text);
        for (agent, said) in self.workflow.agents().iter().zip(&self.said) {
            if let Some(said) = said {
                text.push_str(&format!("{agent}: {}\n", said.answer.as_deref().unwrap_or("no answer")));
            }
        }
        text
    }
}
