//! An episode of a workflow file.
//!
//! An agent that answers earns `.2 format + .8 correct`, one that gives a verdict `.2 format + .8 correct`, where correct says
//! whether the checker agrees; a note earns nothing by itself. The team earns 1 when the episode ends with a right answer of
//! the role that has the last word: after its last turn, or when the role of `stop` says `right`. Team rewards come at the
//! end alone, so that no path collects more by being slow.

use std::collections::BTreeSet;
use std::sync::Arc;

use environment::spec::{read_state, write};
use environment::{Outcome, State, Workflow};
use record::failure::{Failure, Result};
use record::sample::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::prompt::prompt;
use super::{Checker, Definition, Gives, Role, When};
use crate::{outcome, show};

/// What an agent said last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Text {
    pub shown: String,
    /// The answer as written, or the verdict, if there is one.
    pub found: Option<String>,
}

/// What an action changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    /// The turn of the last action.
    turn: u32,
    /// Stages of that turn whose agents have acted. A stage before it acts in the next turn.
    stage: usize,
    over: bool,
    /// What each agent said last, in the order of the workflow.
    texts: Vec<Option<Text>>,
}

/// A situation in an episode.
#[derive(Clone)]
pub struct FileState {
    environment: &'static str,
    checker: Arc<dyn Checker>,
    spec: Arc<Value>,
    definition: Arc<Definition>,
    workflow: Arc<Workflow>,
    progress: Progress,
}

impl FileState {
    /// The first state of a task of `environment`.
    pub fn begin(
        environment: &'static str,
        checker: Arc<dyn Checker>,
        spec: Arc<Value>,
        definition: Arc<Definition>,
        name: &str,
    ) -> Result<FileState> {
        let workflow = definition.workflow(name)?;
        let texts = vec![None; workflow.agents().len()];
        let progress = Progress { turn: 0, stage: 0, over: false, texts };
        Ok(FileState { environment, checker, spec, definition, workflow, progress })
    }

    /// The state that [`State::to_json`] wrote; `checker` is made from its `spec`.
    pub fn restore(environment: &'static str, checker: Arc<dyn Checker>, state: &Value) -> Result<FileState> {
        let definition: Definition = read_state(&state["workflow"])?;
        definition
            .check()
            .map_err(|failure| Failure::data(format!("state: workflow: {}", failure.message)))?;
        let spec = Arc::new(state["spec"].clone());
        let begun = FileState::begin(environment, checker, spec, Arc::new(definition), "file")?;
        let progress: Progress = read_state(&state["progress"])?;
        let (texts, agents) = (progress.texts.len(), begun.workflow.agents().len());
        if texts != agents {
            return Err(Failure::data(format!(
                "state: progress: texts: {texts} entries for {agents} agents"
            )));
        }
        Ok(FileState { progress, ..begun })
    }

    fn stage_of(&self, agent: &str) -> usize {
        let position = self.workflow.position(agent).unwrap_or_default();
        (0..self.workflow.stages())
            .find(|stage| self.workflow.stage(*stage).contains(&position))
            .unwrap_or_default()
    }

    fn role(&self, agent: &str) -> Result<&Role> {
        self.workflow.check(agent)?;
        let role = self.definition.role_of(agent).map(|(_, role)| role);
        role.ok_or_else(|| Failure::data(format!("no role has the agent '{agent}'")))
    }

    /// The agents of `roles` that have spoken, with their texts.
    fn said(&self, roles: &[String]) -> Vec<(&str, &Text)> {
        let said = self.workflow.agents().iter().zip(&self.progress.texts);
        said.filter_map(|(agent, text)| {
            let (role, _) = self.definition.role_of(agent)?;
            roles.contains(role).then_some((agent.as_str(), text.as_ref()?))
        })
        .collect()
    }

    /// The most frequent answer of `roles`, the first of several, in each of its forms: what means the same counts as one
    /// answer, whoever wrote it how.
    fn vote(&self, roles: &[String]) -> Vec<&str> {
        let of_answers = |role: &&String| self.definition.role[*role].gives == Gives::Answer;
        let roles: Vec<String> = roles.iter().filter(of_answers).cloned().collect();
        let answers: Vec<&str> =
            self.said(&roles).into_iter().filter_map(|(_, text)| text.found.as_deref()).collect();
        let votes = |answer: &str| {
            let same = answers.iter().filter(|other| self.checker.same(answer, other));
            same.copied().collect::<Vec<&str>>()
        };
        let votes = answers.iter().map(|answer| votes(answer));
        // Of equal numbers `max_by_key` takes the last.
        votes.rev().max_by_key(Vec::len).unwrap_or_default()
    }

    /// Returns true if one of the forms of an answer is right.
    fn is_right(&self, forms: Vec<&str>) -> Result<bool> {
        for form in forms.into_iter().collect::<BTreeSet<&str>>() {
            if self.checker.grade(form)? >= 1.0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads `text` of `agent`: what others see, and what it earns by itself.
    fn read(&self, agent: &str, text: &str) -> Result<(Text, Outcome)> {
        let role = self.role(agent)?;
        if !self.acts(agent) {
            return Err(Failure::data(format!("'{agent}' does not act in this turn")));
        }
        let (found, correct) = match role.gives {
            Gives::Answer => {
                let answer = self.checker.answer(text);
                let grade = answer.as_deref().map_or(Ok(0.0), |answer| self.checker.grade(answer))?;
                (answer, grade)
            }
            Gives::Verdict => {
                let verdict = verdict(text);
                let truth = self.is_right(self.vote(&role.sees))?;
                let correct = verdict.is_some_and(|says_right| says_right == truth);
                (verdict.map(|right| if right { "right" } else { "wrong" }.to_owned()), f64::from(correct))
            }
            Gives::Note => {
                return Ok((Text { shown: self.show(text), found: None }, Outcome::new(0.0, 0.0, &[])));
            }
        };
        let format = ("format", 2.0, f64::from(found.is_some()));
        Ok((Text { shown: self.show(text), found }, outcome(0.0, &[format, ("correct", 8.0, correct)])))
    }

    fn show(&self, text: &str) -> String {
        show(text, self.workflow.agents())
    }

    /// Executes `actions`; the outcome for `credited`, otherwise the joint one. A stage is over once all its agents have
    /// acted together; the action of one of several is scored, and ends nothing.
    fn play(&mut self, actions: &[(&str, &str)], credited: Option<&str>) -> Result<Outcome> {
        let Some((first, _)) = actions.first() else { return Err(Failure::data("no action was given")) };
        if self.progress.over {
            return Err(Failure::data("the episode is over: the last word was given"));
        }
        // Read all texts before any is seen.
        let mut parts = Vec::new();
        let mut texts = Vec::new();
        for (agent, text) in actions {
            let (text, earned) = self.read(agent, text)?;
            texts.push((self.workflow.position(agent), text));
            parts.push((*agent, earned));
        }
        let mut outcome = match credited {
            None if parts.len() > 1 => Outcome::together(0.0, &parts),
            _ => {
                let own =
                    parts.into_iter().find(|(agent, _)| credited.is_none_or(|credited| credited == *agent));
                own.map_or_else(|| Outcome::new(0.0, 0.0, &[]), |(_, own)| own)
            }
        };
        for (position, text) in texts {
            if let Some(position) = position {
                self.progress.texts[position] = Some(text);
            }
        }
        let stage = self.stage_of(first);
        let agents = Arc::clone(&self.workflow);
        let mut acting =
            self.workflow.stage(stage).map(|at| &agents.agents()[at]).filter(|agent| self.acts(agent));
        let complete = acting.all(|agent| actions.iter().any(|(actor, _)| actor == agent));
        if complete {
            let stopped = self.definition.stop.as_ref().is_some_and(|stop| {
                let agents = self.definition.agents_of(stop);
                let spoke = actions.iter().any(|(actor, _)| agents.iter().any(|agent| agent == actor));
                let said = self.said(std::slice::from_ref(stop));
                spoke && said.iter().all(|(_, text)| text.found.as_deref() == Some("right"))
            });
            self.progress.turn += u32::from(stage < self.progress.stage);
            self.progress.stage = stage + 1;
            self.progress.over = stopped || !agents.agents().iter().any(|agent| self.acts(agent));
        }
        outcome.terminated = self.progress.over;
        outcome.success = self.is_solved();
        outcome.rewards.team = f64::from(outcome.success);
        Ok(outcome)
    }
}

/// The verdict that a text ends with, or the only one in it: true for right. `not right` is wrong.
fn verdict(text: &str) -> Option<bool> {
    let lower = text.to_lowercase();
    let words: Vec<&str> =
        lower.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let is_denied = |at: usize| {
        let adds_nothing =
            |word: &&&str| ["quite", "at", "all", "be", "entirely", "really", "yet"].contains(*word);
        let before = words[..at].iter().rev().find(|word| !adds_nothing(word));
        // The `t` of `isn't`.
        before.is_some_and(|word| ["not", "t", "never", "cannot", "hardly", "neither", "nor"].contains(word))
    };
    let said = words.iter().enumerate().filter_map(|(at, word)| match *word {
        "right" => Some((at, !is_denied(at))),
        "wrong" => Some((at, is_denied(at))),
        _ => None,
    });
    let said: Vec<(usize, bool)> = said.collect();
    let &(at, last) = said.last()?;
    (at + 1 == words.len() || said.iter().all(|(_, verdict)| *verdict == last)).then_some(last)
}

impl State for FileState {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        self.definition.turns
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let Ok(role) = self.role(agent) else { return Vec::new() };
        let content = prompt(&*self.checker, role, &self.said(&role.sees));
        vec![Message { role: "user".to_owned(), content }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.play(&[(agent, text)], Some(agent))
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        json!({
            "env": self.environment,
            "spec": *self.spec,
            "workflow": write(&*self.definition),
            "progress": write(&self.progress),
        })
    }

    fn acts(&self, agent: &str) -> bool {
        let turn = self.progress.turn + u32::from(self.stage_of(agent) < self.progress.stage);
        self.definition.role_of(agent).is_some_and(|(_, role)| match role.when {
            When::Always => turn < self.definition.turns,
            When::First => turn == 0,
            When::Last => turn + 1 == self.definition.turns,
        })
    }

    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        self.play(actions, None)
    }

    fn apply_beside(&mut self, agent: &str, text: &str, others: &[(&str, &str)]) -> Result<Option<Outcome>> {
        let actions: Vec<(&str, &str)> = others.iter().copied().chain([(agent, text)]).collect();
        self.play(&actions, Some(agent)).map(Some)
    }

    fn oracle(&self, agent: &str) -> Option<String> {
        let role = self.role(agent).ok()?;
        match role.gives {
            Gives::Answer => self.checker.solution(),
            // Without a sandbox there is no oracle; whoever asks learns why from the first `apply`.
            Gives::Verdict => {
                let right = self.is_right(self.vote(&role.sees)).ok()?;
                Some(if right { "right" } else { "wrong" }.to_owned())
            }
            Gives::Note => Some("Step by step.".to_owned()),
        }
    }

    fn is_solved(&self) -> bool {
        let last = std::slice::from_ref(&self.definition.last);
        self.progress.over && self.is_right(self.vote(last)).unwrap_or(false)
    }

    fn test_actions(&self, agent: &str) -> Vec<String> {
        let texts = self.oracle(agent).into_iter().chain(self.checker.solution());
        let others = ["", "right", "It is wrong.", "1", "\u{0}", "🦀 日本"];
        texts.chain(others.map(str::to_owned)).collect()
    }

    fn draw(&self) -> String {
        let mut text = format!("{}\n", self.checker.problem().trim());
        for (agent, said) in self.workflow.agents().iter().zip(&self.progress.texts) {
            let said = said.as_ref().map_or("nothing yet", |text| text.shown.as_str());
            text.push_str(&format!("{agent}: {said}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn a_verdict_is_the_last_word_or_the_only_one() {
        for (text, expected) in [
            ("right", Some(true)),
            ("It is Wrong.", Some(false)),
            ("not right", Some(false)),
            ("That is not quite right.", Some(false)),
            ("This isn't right", Some(false)),
            ("It isn’t right.", Some(false)),
            ("It cannot be right", Some(false)),
            ("not wrong", Some(true)),
            ("It is not wrong, it is right", Some(true)),
            ("The answer 41 is not right: wrong", Some(false)),
            ("wrong, the right answer is 41", None),
            ("Is it right or wrong?", Some(false)),
            ("The answer is right because 2 + 2 = 4.", Some(true)),
            ("", None),
            ("rightly so", None),
        ] {
            assert_eq!(verdict(text), expected, "{text}");
        }
    }
}
