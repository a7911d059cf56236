//! Shared by environments that score the texts of all agents in a turn as one: there is one reward for the
//! team, as in MAGRPO (arXiv 2508.04652), and no local reward.
//!
//! A [`JointTask`] grades texts and writes prompts; turns, states and the end of an episode are handled here.
//! A turn ends and is rewarded when the last stage of the workflow has acted. An episode always lasts all its
//! turns, even after a perfect one: returns sum over turns, so an early end would reward slowness. The last
//! turn decides about success.
//!
//! Visibility: in `team` and `single` an agent sees its earlier texts; in `pipeline` also the earlier texts
//! of the same turn; in `discussion` everything, from the second turn on.

use std::fmt::Debug;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::philox::Draws;
use serde::{Deserialize, Serialize};

use crate::{Episode, Playable, Problem, fences};
use environment::Outcome;
use environment::demonstration::Demonstration;
use environment::settings::Setting;
use environment::workflow::Workflow;

/// A problem that is answered by the texts of all agents together.
pub trait JointTask: Problem {
    /// The prompt of `agent`, with the visible part of earlier turns.
    fn prompt(&self, workflow: &Workflow, agent: &str, shown: &Shown<'_>) -> String;
    /// Grades `texts`, one per agent of `workflow`; an empty text means that the agent wrote nothing.
    ///
    /// # Errors
    /// A program must run, but there is no sandbox: unavailable.
    fn grade(&self, workflow: &Workflow, texts: &[&str]) -> Result<Grade>;

    /// An optimal text of `agent`, given the best texts of the others, if one is known.
    fn best(&self, workflow: &Workflow, agent: &str) -> Option<String>;
    fn test_actions(&self, workflow: &Workflow, agent: &str) -> Vec<String>;
    fn picture(&self) -> String;
    fn demonstrate(&self, _workflow: &Workflow, _agent: &str, _kind: &str, _draws: &mut Draws) -> String {
        String::new()
    }
}

/// The `turns` setting of environments that show results to agents.
pub const TURNS: Setting =
    Setting::new("turns", "2", "turns in an episode, 1 to 99; discussion has at least 2");

/// The workflows of two agents, and of one who does the work of both.
pub fn workflows(agents: [&str; 2], alone: &str) -> Vec<Arc<Workflow>> {
    vec![
        Workflow::parallel("team", &agents),
        Workflow::sequential("pipeline", &agents),
        Workflow::parallel("discussion", &agents),
        Workflow::sequential("single", &[alone]),
    ]
}

/// Turns of an episode, of which a discussion has at least two.
pub fn turns(turns: u32, workflow: &Workflow) -> u32 {
    if workflow.name() == "discussion" { turns.max(2) } else { turns }
}

/// The grade of all texts together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grade {
    /// The team's reward.
    pub team: f64,
    /// Its components, each in [0, 1].
    pub components: Vec<(&'static str, f64)>,
    /// The task is solved.
    pub success: bool,
    /// Feedback for each agent in the next turn; empty without feedback.
    pub feedback: Vec<String>,
}

/// The part of earlier turns that an agent sees.
#[derive(Debug)]
pub struct Shown<'a> {
    /// Number of turns that have ended.
    pub turn: u32,
    /// Earlier texts, each with its agent's index.
    pub texts: Vec<(usize, &'a str)>,
    /// The agent's feedback on the last turn, if any.
    pub feedback: Option<&'a str>,
}

impl Shown<'_> {
    /// The earlier texts, as `agent` is told of them.
    pub fn told(&self, workflow: &Workflow, agent: &str) -> impl Iterator<Item = String> {
        self.texts.iter().map(move |(position, text)| {
            let who = if workflow.agents()[*position] == agent { "You" } else { "Your partner" };
            format!("{who} wrote:\n\n{}", text.trim())
        })
    }
}

/// The part of the state that turns change.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JointProgress {
    /// Turns that have ended.
    turn: u32,
    /// The last text of each agent.
    texts: Vec<Option<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    feedback: Vec<String>,
}

/// Grades the texts of a situation.
fn grade<J: JointTask>(episode: &Episode<J>) -> Result<Grade> {
    let said = episode.situation.texts.iter();
    let texts: Vec<&str> = said.map(|text| text.as_deref().unwrap_or_default()).collect();
    episode.problem.grade(&episode.workflow, &texts)
}

impl<J: JointTask> Playable for J {
    const JOINT: bool = true;

    type Situation = JointProgress;

    fn start(&self, workflow: &Workflow) -> JointProgress {
        JointProgress { turn: 0, texts: vec![None; workflow.agents().len()], feedback: Vec::new() }
    }

    fn check(episode: &Episode<Self>) -> Result<()> {
        let JointProgress { texts, feedback, .. } = &episode.situation;
        let agents = episode.workflow.agents().len();
        match texts.len() == agents && (feedback.is_empty() || feedback.len() == agents) {
            true => Ok(()),
            false => {
                Err(Failure::data(format!("state: texts, feedback: not one for each of {agents} agents")))
            }
        }
    }

    fn ending(episode: &Episode<Self>) -> Option<&'static str> {
        (episode.situation.turn >= episode.problem.turns(&episode.workflow)).then_some("it had all its turns")
    }

    fn prompt(episode: &Episode<Self>, agent: &str) -> String {
        let Episode { workflow, situation: JointProgress { turn, texts, feedback }, .. } = episode;
        let own = workflow.position(agent).unwrap_or_default();
        let sees = |position: usize| match workflow.name() {
            "pipeline" => position <= own,
            "discussion" => true,
            _ => position == own,
        };
        let texts = texts.iter().enumerate().filter(|(position, _)| sees(*position));
        let shown = Shown {
            turn: *turn,
            texts: texts.filter_map(|(position, text)| Some((position, text.as_deref()?))).collect(),
            feedback: feedback.get(own).map(String::as_str),
        };
        episode.problem.prompt(workflow, agent, &shown)
    }

    /// The text of one agent alone earns nothing and ends nothing, unless it is the only agent.
    fn play(
        episode: &mut Episode<Self>,
        actions: &[(&str, &str)],
        _credited: Option<&str>,
    ) -> Result<Outcome> {
        let workflow = Arc::clone(&episode.workflow);
        for (agent, text) in actions {
            if let Some(position) = workflow.position(agent) {
                // A text longer than any sensible answer counts as empty.
                let text = if text.len() > fences::LONGEST { "" } else { text };
                episode.situation.texts[position] = Some(text.to_owned());
            }
        }
        let mut last = workflow.agents()[workflow.stage(workflow.stages() - 1)].iter();
        if !last.all(|agent| actions.iter().any(|(actor, _)| actor == agent)) {
            return Ok(Outcome::new(0.0, 0.0, &[]));
        }
        let grade = grade(episode)?;
        episode.situation.turn += 1;
        episode.situation.feedback = grade.feedback;
        let mut outcome = Outcome::new(grade.team, 0.0, &grade.components);
        outcome.terminated = Self::ending(episode).is_some();
        outcome.success = outcome.terminated && grade.success;
        Ok(outcome)
    }

    fn oracle(episode: &Episode<Self>, agent: &str) -> Option<String> {
        episode.problem.best(&episode.workflow, agent)
    }

    /// Grades the texts in the state again.
    fn is_solved(episode: &Episode<Self>) -> bool {
        Self::ending(episode).is_some() && grade(episode).is_ok_and(|grade| grade.success)
    }

    fn test_actions(episode: &Episode<Self>, agent: &str) -> Vec<String> {
        let mut actions = episode.problem.test_actions(&episode.workflow, agent);
        let malformed = ["", " ", "\u{0}\u{1b}[2J", "é\u{202e}\u{1f600} ```", "so on "];
        actions.extend(malformed.map(str::to_owned));
        actions
    }

    fn picture(episode: &Episode<Self>) -> String {
        let mut text = format!("{}\n", episode.problem.picture());
        for (agent, said) in episode.workflow.agents().iter().zip(&episode.situation.texts) {
            text.push_str(&format!("{agent}: {}\n", said.as_deref().unwrap_or("nothing yet")));
        }
        text
    }

    fn demonstrate(
        episode: &Episode<Self>,
        agent: &str,
        demonstration: &Demonstration,
        draws: &mut Draws,
    ) -> String {
        let kind = demonstration.kind(draws).to_owned();
        episode.problem.demonstrate(&episode.workflow, agent, &kind, draws)
    }
}
