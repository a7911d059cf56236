//! One episode: whom to ask, how to score the answers, which of them to go on from, when to stop.
//!
//! With a width of K branches this is the tree of AT-GRPO (arXiv 2510.11062, algorithm 1): at every turn each
//! agent is asked for K candidates from one prompt, each candidate is scored by its own consequence on a copy
//! of the state, r = α·team + local, and the episode goes on from one of them. With a width of one it is an
//! ordinary trajectory; K of those side by side are parallel sampling.
//!
//! A turn goes through the stages of the workflow. A stage of one agent is a step of a sequence: the next stage
//! sees the applied action. In a stage of several agents every one sees the state as it was before the stage, a
//! candidate is scored with the other agents' parts as last applied, the choices of all agents are then applied
//! together, and whether the episode is over is asked of the joint result.
//!
//! Left out: tokens, models and lines. The logic here is a function of states, texts and named random
//! streams, so it is tested without any of them.

use std::ops::Range;
use std::sync::Arc;

use envs::{Outcome, State, Workflow};
use record::failure::{Failure, UNAVAILABLE};
use record::sample::Message;

use crate::streams::Streams;

/// Which candidate of a group the episode goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Select {
    /// The highest reward; of equal ones the lowest branch.
    Best,
    /// Any, with equal probability.
    Random,
}

/// What all episodes of a run have in common.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Turns after which an episode is cut off; `None`: the environment's own limit.
    pub turns: Option<u32>,
    /// Which candidate is applied.
    pub select: Select,
    /// α in r = α·team + local.
    pub team_weight: f64,
}

/// Why an episode could not go on: a fact about it, not a failure of the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it went wrong: `policy`, `env`, `sandbox` or `task`.
    pub boundary: &'static str,
    /// What went wrong.
    pub message: String,
}

impl Fault {
    /// A fault of the environment.
    pub fn environment(message: impl ToString) -> Fault {
        Fault { boundary: "env", message: message.to_string() }
    }

    /// A fault of the policy: its template, its tokenizer, its context length.
    pub fn policy(message: impl ToString) -> Fault {
        Fault { boundary: "policy", message: message.to_string() }
    }

    /// A fault of the task: its environment refuses it.
    pub fn task(message: impl ToString) -> Fault {
        Fault { boundary: "task", message: message.to_string() }
    }
}

/// A question to one agent: the conversation that its candidates continue.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The turn, from 0.
    pub turn: u32,
    /// Index of the agent in the workflow.
    pub agent: usize,
    /// The branches to be answered, one candidate each.
    pub branches: Range<u32>,
    /// The prompt, the same for all of them.
    pub messages: Vec<Message>,
}

/// One answer: what a policy said, and the tokens it said it in.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The text that the environment sees.
    pub text: String,
    /// Its tokens, the stop token included.
    pub ids: Vec<u32>,
    /// The log-probability of each token.
    pub logprobs: Vec<f32>,
    /// Whether it ended by itself, as opposed to at the token limit.
    pub stopped: bool,
}

/// A scored candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Which of the siblings it is.
    pub branch: u32,
    /// What was said.
    pub candidate: Candidate,
    /// What came of it.
    pub outcome: Outcome,
    /// α·team + local.
    pub reward: f64,
    /// Whether the episode went on from it.
    pub selected: bool,
    /// Whether the turn limit cut the episode off behind it.
    pub truncated: bool,
}

/// The scored candidates of one agent at one turn of one episode, in branch order.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The turn, from 0.
    pub turn: u32,
    /// Index of the agent in the workflow.
    pub agent: usize,
    /// The sample whose state this group builds on; none before anything was applied.
    pub parent: Option<Arc<str>>,
    /// The prompt that all members continue.
    pub messages: Vec<Message>,
    /// The candidates.
    pub members: Vec<Member>,
}

impl Group {
    /// The candidate that the episode went on from.
    pub fn selected(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.selected)
    }
}

/// How an episode ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// The task is solved.
    Success,
    /// The environment said that it is over, unsolved.
    Terminated,
    /// The turn limit was reached.
    Turns,
    /// It could not be scored.
    Error(Fault),
}

impl Stop {
    /// The word for it in an `episode` line.
    pub fn name(&self) -> &'static str {
        match self {
            Stop::Success => "success",
            Stop::Terminated => "terminated",
            Stop::Turns => "turns",
            Stop::Error(_) => "error",
        }
    }
}

/// What an answer led to.
#[derive(Debug, Default)]
pub struct Progress {
    /// The groups that the answer completed, in the workflow's order.
    pub groups: Vec<Group>,
    /// The questions that can be asked now; none while others of the turn are open, or at the end.
    pub asks: Vec<Ask>,
}

/// What names an episode and everything random in it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The episode's name, `STEP.INDEX`.
    pub name: Arc<str>,
    /// The random streams of its task.
    pub streams: Arc<Streams>,
    /// The branches that it samples: all of them in a tree, one in parallel sampling.
    pub branches: Range<u32>,
}

impl Identity {
    /// The id of a sample of this episode.
    pub fn sample(&self, turn: u32, agent: &str, branch: u32) -> String {
        format!("{}/{turn}/{agent}/{branch}", self.name)
    }
}

/// An episode on its way.
pub struct Episode {
    rules: Arc<Rules>,
    identity: Identity,
    state: Box<dyn State>,
    workflow: Arc<Workflow>,
    limit: u32,
    turn: u32,
    /// The stage of the workflow.
    stage: usize,
    parent: Option<Arc<str>>,
    /// Of a stage of several agents: the answers so far, by agent.
    answers: Vec<Option<(Ask, Vec<Candidate>)>>,
    reward: f64,
    stop: Option<Stop>,
}

impl Episode {
    /// Begins an episode in `state`; the questions are the first of its first turn.
    pub fn begin(rules: Arc<Rules>, identity: Identity, state: Box<dyn State>) -> (Episode, Vec<Ask>) {
        let limit = rules.turns.unwrap_or_else(|| state.turn_limit()).max(1);
        let workflow = Arc::clone(state.workflow());
        let answers = vec![None; workflow.agents().len()];
        let episode = Episode {
            rules,
            identity,
            state,
            workflow,
            limit,
            turn: 0,
            stage: 0,
            parent: None,
            answers,
            reward: 0.0,
            stop: None,
        };
        let asks = episode.open_stage();
        (episode, asks)
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The agents of its workflow.
    pub fn agents(&self) -> &[String] {
        self.workflow.agents()
    }

    /// How it ended, once it has.
    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    /// Turns begun.
    pub fn turns(&self) -> u32 {
        self.turn + 1
    }

    /// Sum of the rewards of the selected samples.
    pub fn reward(&self) -> f64 {
        self.reward
    }

    /// Groups begun and not complete: one for each agent of the stage.
    pub fn open_groups(&self) -> u64 {
        match self.stop {
            Some(_) => 0,
            None => self.workflow.stage(self.stage).len() as u64,
        }
    }

    /// Ends the episode because of `fault`.
    pub fn fail(&mut self, fault: Fault) {
        self.stop = Some(Stop::Error(fault));
    }

    /// Takes the answers to `ask`, one for each of its branches in order: scores them, applies the choice, and
    /// goes on. A fault ends the episode; groups that are not complete by then are not handed out.
    ///
    /// The answers of a stage of several agents are scored once all are here, in the workflow's order, so that nothing
    /// depends on which agent happened to answer first.
    pub fn answer(&mut self, ask: Ask, candidates: Vec<Candidate>) -> Progress {
        debug_assert_eq!(ask.branches.len(), candidates.len());
        let taken = if self.workflow.stage(self.stage).len() == 1 {
            self.act(ask, candidates)
        } else {
            let agent = ask.agent;
            self.answers[agent] = Some((ask, candidates));
            self.act_together()
        };
        taken.unwrap_or_else(|fault| {
            self.fail(fault);
            Progress::default()
        })
    }

    /// The one agent of a stage.
    fn act(&mut self, ask: Ask, candidates: Vec<Candidate>) -> Result<Progress, Fault> {
        let (group, state) = self.score(ask, candidates)?;
        let chosen = group.selected().ok_or_else(|| Fault::policy("no candidate was chosen"))?;
        let (terminated, success) = (chosen.outcome.terminated, chosen.outcome.success);
        self.reward += chosen.reward;
        self.parent =
            Some(self.identity.sample(group.turn, &self.agents()[group.agent], chosen.branch).into());
        self.state = state;
        Ok(Progress { groups: vec![group], asks: self.go_on(terminated, success) })
    }

    /// All agents of a stage, once each has answered.
    fn act_together(&mut self) -> Result<Progress, Fault> {
        let workflow = Arc::clone(&self.workflow);
        let stage = workflow.stage(self.stage);
        if self.answers[stage.clone()].iter().any(Option::is_none) {
            return Ok(Progress::default());
        }
        let agents = &workflow.agents()[stage.clone()];
        let answers: Vec<(Ask, Vec<Candidate>)> =
            self.answers[stage].iter_mut().filter_map(Option::take).collect();
        let mut groups = Vec::with_capacity(answers.len());
        for (ask, candidates) in answers {
            groups.push(self.score(ask, candidates)?.0);
        }
        let chosen: Vec<&Member> = groups.iter().filter_map(Group::selected).collect();
        let actions: Vec<(&str, &str)> = agents
            .iter()
            .zip(&chosen)
            .map(|(agent, member)| (agent.as_str(), member.candidate.text.as_str()))
            .collect();
        let joint = self.state.apply_together(&actions)?;
        self.reward += chosen.iter().map(|member| member.reward).sum::<f64>();
        if let (Some(agent), Some(member)) = (agents.last(), chosen.last()) {
            self.parent = Some(self.identity.sample(self.turn, agent, member.branch).into());
        }
        if joint.terminated {
            // The turn limit cut nothing off: the joint result is an end of its own.
            groups
                .iter_mut()
                .flat_map(|group| &mut group.members)
                .for_each(|member| member.truncated = false);
        }
        Ok(Progress { asks: self.go_on(joint.terminated, joint.success), groups })
    }

    /// Scores each candidate on a copy of the state and marks the choice; the state that the choice leads to.
    fn score(&self, ask: Ask, candidates: Vec<Candidate>) -> Result<(Group, Box<dyn State>), Fault> {
        let agent = self.agents()[ask.agent].as_str();
        let cut_off = self.turn + 1 == self.limit && self.stage + 1 == self.workflow.stages();
        let mut states = Vec::with_capacity(candidates.len());
        let mut members = Vec::with_capacity(candidates.len());
        for (branch, candidate) in ask.branches.clone().zip(candidates) {
            let mut state = self.state.clone_state();
            let outcome = state.apply(agent, &candidate.text)?;
            let reward = self.rules.team_weight * outcome.rewards.team + outcome.rewards.local;
            check_finite(agent, &outcome, reward)?;
            let truncated = cut_off && !outcome.terminated;
            members.push(Member { branch, candidate, outcome, reward, selected: false, truncated });
            states.push(state);
        }
        if members.is_empty() {
            return Err(Fault::policy(format!("no candidate of {agent} was generated")));
        }
        let position = self.choose(agent, &members);
        members[position].selected = true;
        let parent = self.parent.clone();
        let group = Group { turn: ask.turn, agent: ask.agent, parent, messages: ask.messages, members };
        Ok((group, states.swap_remove(position)))
    }

    /// The index of the member to go on from.
    fn choose(&self, agent: &str, members: &[Member]) -> usize {
        match self.rules.select {
            Select::Random if members.len() > 1 => {
                self.identity.streams.choice(self.turn, agent).below(members.len() as u32) as usize
            }
            _ => {
                let mut best = 0;
                for (index, member) in members.iter().enumerate() {
                    if member.reward > members[best].reward {
                        best = index;
                    }
                }
                best
            }
        }
    }

    /// The questions of a stage, one to each of its agents.
    fn open_stage(&self) -> Vec<Ask> {
        self.workflow.stage(self.stage).map(|agent| self.ask(agent)).collect()
    }

    fn ask(&self, agent: usize) -> Ask {
        let messages = self.state.observe(&self.agents()[agent]);
        Ask { turn: self.turn, agent, branches: self.identity.branches.clone(), messages }
    }

    /// What comes after the applied actions of a stage: the next stage of this turn, the next turn, or the end.
    fn go_on(&mut self, terminated: bool, success: bool) -> Vec<Ask> {
        if success || terminated {
            self.stop = Some(if success { Stop::Success } else { Stop::Terminated });
            return Vec::new();
        }
        if self.stage + 1 < self.workflow.stages() {
            self.stage += 1;
            return self.open_stage();
        }
        if self.turn + 1 == self.limit {
            self.stop = Some(Stop::Turns);
            return Vec::new();
        }
        self.turn += 1;
        self.stage = 0;
        self.open_stage()
    }
}

impl From<Failure> for Fault {
    /// An environment that could not answer. A missing sandbox is named apart, because the cure is another one.
    fn from(failure: Failure) -> Fault {
        let boundary = if failure.code == UNAVAILABLE { "sandbox" } else { "env" };
        Fault { boundary, message: failure.message }
    }
}

/// A reward that is no number would compare with nothing and poison every mean after it.
fn check_finite(agent: &str, outcome: &Outcome, reward: f64) -> Result<(), Fault> {
    if reward.is_finite() && outcome.components.values().all(|component| component.is_finite()) {
        return Ok(());
    }
    Err(Fault::environment(format!(
        "the action of {agent} was given a reward that is not a finite number: team {}, local {}",
        outcome.rewards.team, outcome.rewards.local
    )))
}
