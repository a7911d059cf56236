//! A math episode: the last message of each agent, and the rewards of answers.
//!
//! Rewards follow the table of Stronger-MAS (arXiv 2510.11062, appendix A.1): a reasoner or judge (solver,
//! checker) earns `.2 format + .8 correct`, a tool `.1 runs + .1 parsable + .8 correct`. A component
//! without evidence is 0. Agents earn this each turn, so returns reward waiting; with `--set
//! reward=success` there are no local rewards.
//!
//! The team earns 1 when an action ends the episode with a correct answer, and 0 otherwise. A reasoner and a
//! tool end it when both agree, even in the first turn; a single agent when it answers (or gives the same
//! answer twice, in several turns); an ensemble when the judge adopts an answer; solver and checker when the
//! checker answers. A proposal to a judge or checker ends nothing. Its team reward is what it would be if
//! adopted, or nothing with `--set pay=final`.

use record::failure::{Failure, Result};
use record::philox::Draws;
use sandbox::{Entry, Limits, Program};
use serde::{Deserialize, Serialize};

use super::answer::Answer;
use super::message::{AgentMessage, Role};
use super::spec::{Encoding, MathProblem, Pay};
use super::story::Chain;
use super::{compact, demonstrate, full, test_actions};
use crate::workflow_file::Checker;
use crate::{Episode, Playable, fences, outcome, run, shorten, show, spell};
use environment::Outcome;
use environment::demonstration::Demonstration;
use environment::settings::RewardMode;
use environment::workflow::Workflow;

/// Characters of a program's output that are shown to others and searched for answers.
const LONGEST_OUTPUT: usize = 1000;

/// The last messages of all agents, in the order of the workflow.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answers {
    said: Vec<Option<AgentMessage>>,
}

/// Runs a tool's program. Returns true and the end of its output, or false and the last line of the error.
fn python(source: &str, wall: Option<f64>) -> Result<(bool, String)> {
    let mut limits = Limits::default();
    limits.wall_seconds = wall.unwrap_or(limits.wall_seconds);
    let execution = run::run(&Program { source, entry: Entry::Script, stdin: "", limits })?;
    let ran = execution.is_success();
    let said = match ran {
        true => execution.stdout.trim_end(),
        false => execution.stderr.trim_end().lines().last().unwrap_or("no output"),
    };
    let from = said.char_indices().rev().nth(LONGEST_OUTPUT - 1).map_or(0, |(at, _)| at);
    Ok((ran, said[from..].to_owned()))
}

/// The last non-empty line of the output, if it can be an answer to a problem with this reference.
fn printed(output: &str, reference: &Answer) -> Option<String> {
    let line = output.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let is_answer = match (Answer::read(line)?, reference) {
        // A single word can be an answer if the problem asks for one. Several words are a message; `None`
        // and `inf` are not numbers.
        (Answer::Word(_), Answer::Word(_)) => line.chars().all(char::is_alphabetic),
        (Answer::Word(_), _) => false,
        _ => true,
    };
    is_answer.then(|| line.to_owned())
}

/// Returns true if each agent acts once.
pub fn is_once(workflow: &Workflow) -> bool {
    matches!(workflow.name(), "single" | "tool" | "check")
}

/// Returns true if two answers mean the same.
pub fn same(left: &str, right: &str) -> bool {
    matches!((Answer::read(left), Answer::read(right)), (Some(left), Some(right)) if left.same(&right))
}

impl Episode<MathProblem> {
    /// The last message of `agent`.
    pub fn said(&self, agent: &str) -> Option<&AgentMessage> {
        self.situation.said[self.workflow.position(agent)?].as_ref()
    }

    /// All last messages, with their agents' names.
    fn all_said(&self) -> impl Iterator<Item = (&str, &AgentMessage)> {
        let said = self.workflow.agents().iter().zip(&self.situation.said);
        said.filter_map(|(agent, said)| Some((agent.as_str(), said.as_ref()?)))
    }

    fn answers(&self) -> impl Iterator<Item = Option<&str>> {
        self.situation.said.iter().map(|said| said.as_ref()?.answer.as_deref())
    }

    /// An answer of `agent` with this value.
    pub fn write(&self, agent: &str, value: &str) -> String {
        match (self.problem.spec.encoding, Role::of(agent)) {
            (Encoding::Full, Role::Tool) => full::write_program(value),
            (Encoding::Full, _) => full::write_solution(value),
            (Encoding::Compact, Role::Tool) => spell(value),
            (Encoding::Compact, _) => format!(" ={}", spell(value)),
        }
    }

    /// Parses `text` of `agent`; returns its message and reward.
    fn read(&self, agent: &str, text: &str) -> Result<(AgentMessage, Outcome)> {
        let is_tool = Role::of(agent) == Role::Tool;
        let (ran, shown, answer) = match (self.problem.spec.encoding, is_tool) {
            (Encoding::Compact, true) => {
                let (ran, value) = compact::compute(text);
                let shown = value.map_or_else(|| " none".to_owned(), |value| compact::write_totals(&[value]));
                (ran, shown, value.map(|value| value.to_string()))
            }
            (Encoding::Compact, false) => {
                let value = compact::read_totals(text);
                let words = text.split_ascii_whitespace().flat_map(|word| [" ", word]);
                let shown = if value.is_some() { words.collect() } else { " none".to_owned() };
                (true, shown, value.map(|value| value.to_string()))
            }
            (Encoding::Full, true) => match fences::program(text, fences::Wanted::Anything) {
                None => (false, "(no program)".to_owned(), None),
                Some(source) => {
                    let (ran, output) = python(&source, self.problem.spec.wall)?;
                    let what = if ran { "Output" } else { "Error" };
                    let source = shorten(source.trim());
                    let printed_text = show(&output, self.workflow.agents());
                    let shown = format!("```python\n{source}\n```\n{what}: {printed_text}");
                    (ran, shown, printed(&output, &self.problem.answer).filter(|_| ran))
                }
            },
            (Encoding::Full, false) => {
                let found = self.problem.answer(text);
                (true, show(text, self.workflow.agents()), found)
            }
        };
        let correct = answer.as_deref().is_some_and(|answer| self.problem.is_answered_by(answer));
        let correct = ("correct", 8.0, f64::from(correct));
        let found = f64::from(answer.is_some());
        let outcome = match is_tool {
            true => outcome(0.0, &[("runs", 1.0, f64::from(ran)), ("parsable", 1.0, found), correct]),
            false => outcome(0.0, &[("format", 2.0, found), correct]),
        };
        Ok((AgentMessage { shown, answer, stands: false }, outcome))
    }

    /// Returns true if this answer of `agent` ends the episode by itself.
    fn stands(&self, agent: &str, answer: &str) -> bool {
        match self.workflow.name() {
            "single" | "tool" => true,
            "check" => Role::of(agent) == Role::Checker,
            "turns" => self
                .said(agent)
                .and_then(|said| said.answer.as_deref())
                .is_some_and(|last| same(last, answer)),
            // The judge adopts an answer that someone proposed in this turn or before.
            "ensemble" if Role::of(agent) == Role::Judge => {
                let proposers = self.workflow.agents().len() - 1;
                self.answers().take(proposers).flatten().any(|proposed| same(proposed, answer))
            }
            _ => false,
        }
    }

    /// Returns true if another agent decides about this agent's answer.
    fn proposes(&self, agent: &str) -> bool {
        matches!(self.workflow.name(), "ensemble" | "check")
            && !matches!(Role::of(agent), Role::Judge | Role::Checker)
    }

    /// The team's answer, once there is one.
    fn agreed(&self) -> Option<&str> {
        if self.workflow.name() == "team" {
            return match self.answers().collect::<Vec<_>>()[..] {
                [Some(tool), Some(reasoner)] if same(tool, reasoner) => Some(reasoner),
                _ => None,
            };
        }
        self.situation.said.iter().flatten().find(|said| said.stands)?.answer.as_deref()
    }
}

impl Playable for MathProblem {
    const JOINT: bool = true;

    type Situation = Answers;

    fn start(&self, workflow: &Workflow) -> Answers {
        Answers { said: vec![None; workflow.agents().len()] }
    }

    fn check(episode: &Episode<Self>) -> Result<()> {
        let (said, agents) = (episode.situation.said.len(), episode.workflow.agents().len());
        match said == agents {
            true => Ok(()),
            false => Err(Failure::data(format!("state: said: {said} entries for {agents} agents"))),
        }
    }

    fn ending(episode: &Episode<Self>) -> Option<&'static str> {
        // The last possible answer ends an episode even if it is malformed.
        let last = is_once(&episode.workflow) && episode.situation.said.last().is_some_and(Option::is_some);
        (last || episode.agreed().is_some()).then_some("the team has its answer")
    }

    fn prompt(episode: &Episode<Self>, agent: &str) -> String {
        let spec = &episode.problem.spec;
        match spec.encoding {
            Encoding::Compact => compact::prompt(&spec.problem, episode.all_said(), agent),
            Encoding::Full => {
                full::prompt(&spec.problem, episode.all_said(), Role::of(agent), spec.reasoning)
            }
        }
    }

    fn play(
        episode: &mut Episode<Self>,
        actions: &[(&str, &str)],
        credited: Option<&str>,
    ) -> Result<Outcome> {
        // Read all messages before applying any, so that no agent sees a mixture of old and new ones.
        let (mut messages, mut parts) = (Vec::new(), Vec::new());
        for (agent, text) in actions {
            let (mut message, mut earned) = episode.read(agent, text)?;
            let unpaid = episode.problem.spec.pay == Pay::Final && episode.proposes(agent);
            if episode.problem.spec.reward == RewardMode::Success || unpaid {
                earned.rewards.local = 0.0;
            }
            message.stands = message.answer.as_deref().is_some_and(|answer| episode.stands(agent, answer));
            messages.push((episode.workflow.position(agent), message));
            parts.push((*agent, earned));
        }
        let mut outcome = match credited {
            None => Outcome::together(0.0, &parts),
            Some(credited) => parts
                .into_iter()
                .find_map(|(agent, earned)| (agent == credited).then_some(earned))
                .unwrap_or_else(|| Outcome::new(0.0, 0.0, &[])),
        };
        for (position, message) in messages {
            if let Some(position) = position {
                episode.situation.said[position] = Some(message);
            }
        }
        outcome.terminated = Self::ending(episode).is_some();
        outcome.success = Self::is_solved(episode);
        let proposes = credited.is_some_and(|agent| episode.proposes(agent));
        let pays = episode.problem.spec.pay == Pay::Proposals;
        let adopted = proposes && pays && outcome.components["correct"] == 1.0;
        outcome.rewards.team = f64::from(outcome.success || adopted);
        Ok(outcome)
    }

    fn oracle(episode: &Episode<Self>, agent: &str) -> Option<String> {
        Some(episode.write(agent, &episode.problem.spec.answer))
    }

    fn is_solved(episode: &Episode<Self>) -> bool {
        let Some(answer) = episode.agreed() else { return false };
        match episode.problem.chain.as_ref().and_then(Chain::value) {
            // Worked out from the story, whatever the task's answer is.
            Some(value) => same(answer, &value.to_string()) && episode.problem.is_answered_by(answer),
            None => episode.problem.is_answered_by(answer),
        }
    }

    fn test_actions(episode: &Episode<Self>, agent: &str) -> Vec<String> {
        test_actions::all(episode, agent)
    }

    fn picture(episode: &Episode<Self>) -> String {
        let mut text = format!("{}\n", episode.problem.spec.problem);
        for (agent, said) in episode.all_said() {
            text.push_str(&format!("{agent}: {}\n", said.answer.as_deref().unwrap_or("no answer")));
        }
        text
    }

    fn demonstrate(
        episode: &Episode<Self>,
        agent: &str,
        demonstration: &Demonstration,
        draws: &mut Draws,
    ) -> String {
        let role = Role::of(agent);
        let others: Vec<&str> = episode
            .workflow
            .agents()
            .iter()
            .filter(|other| *other != agent)
            .filter_map(|other| episode.said(other)?.answer.as_deref())
            .collect();
        let follows = role != Role::Tool && f64::from(draws.uniform()) < demonstration.follow;
        match (draws.choose(&others), &episode.problem.chain) {
            (Some(said), _) if follows => episode.write(agent, said),
            (_, Some(chain)) => {
                let kind = demonstration.kind(draws).to_owned();
                demonstrate::answer(&kind, role, episode.problem.spec.encoding, chain, draws)
            }
            // Only generated problems are demonstrated, and each has a chain.
            (_, None) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_table() {
        let local = |parts: &[(&str, f64, f64)]| outcome(0.0, parts).rewards.local;
        assert_eq!(local(&[("format", 2.0, 1.0), ("correct", 8.0, 0.0)]), 0.2);
        assert_eq!(local(&[("format", 2.0, 1.0), ("correct", 8.0, 1.0)]), 1.0);
        assert_eq!(local(&[("runs", 1.0, 1.0), ("parsable", 1.0, 0.0), ("correct", 8.0, 0.0)]), 0.1);
        assert_eq!(local(&[("runs", 1.0, 1.0), ("parsable", 1.0, 1.0), ("correct", 8.0, 0.0)]), 0.2);
        assert_eq!(local(&[("runs", 1.0, 1.0), ("parsable", 1.0, 1.0), ("correct", 8.0, 1.0)]), 1.0);
    }

    #[test]
    fn the_last_line_is_the_answer() {
        let printed = |output: &str, reference| printed(output, &Answer::read(reference).unwrap());
        assert_eq!(printed("working\n42\n\n", "42").as_deref(), Some("42"));
        assert_eq!(printed("[1, 2]", "42").as_deref(), Some("[1, 2]"));
        assert_eq!(printed("Tuesday", "Friday").as_deref(), Some("Tuesday"));
        for output in ["no solution found here", "", "nan", "inf", "None", "Tuesday", "8=9"] {
            assert_eq!(printed(output, "42"), None, "{output}");
        }
        assert_eq!(printed("nan", "Friday"), None);
    }
}
