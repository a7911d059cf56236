//! One episode: chooses the agent to prompt, scores its candidates, executes one, and decides when to stop.
//!
//! With K branches this is the tree of AT-GRPO (arXiv 2510.11062, algorithm 1). At every turn each agent
//! samples K candidates from one prompt; each candidate is scored by its own consequence on a copy of the
//! state, r = α·team + local; and one of them is executed. With one branch it is an ordinary trajectory; K of
//! those are parallel sampling.
//!
//! A turn runs the stages of the workflow in order. A stage of one agent is sequential: the next stage sees
//! the executed action. In a stage of several agents, all see the state before the stage. A candidate is
//! chosen by its reward with the other agents' last executed actions; then all chosen actions are executed
//! together, and the joint result decides whether the episode is over. An agent whose turn the environment
//! skips is not prompted. If success takes several agents, each candidate is credited with what it achieves
//! together with the others' choices, so that a joint success is rewarded when it happens, and once. With a
//! [`JointConfig`], joint actions are scored instead; see [`joint`].
//!
//! Left out: tokens, models and lines. The logic is a function of states, texts and named random streams, so
//! it is tested without any of them.

pub mod group;
pub mod joint;
mod stop;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use envs::{Outcome, State, Workflow};
use policy::ownership::Ownership;

use crate::by_agent::Widths;
use crate::streams::Streams;
use group::{Candidate, Group, Member, PromptRequest, Spoken};
use joint::{Expand, JointAction, JointConfig, Node};
pub use stop::{EpisodeError, Stop};

/// Actions of an agent whose tokens are kept: conversations that go on from an earlier one are rendered anew.
const MOST_SPOKEN: usize = 64;

/// Which candidate of a group is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Select {
    /// The highest reward; the lowest branch on a tie.
    Best,
    /// A random one, uniformly.
    Random,
}

/// Settings of all episodes of a run.
#[derive(Clone, Debug)]
pub struct EpisodeConfig {
    /// Turn limit; `None` for the environment's default.
    pub turns: Option<u32>,
    /// How the candidate to execute is selected.
    pub select: Select,
    /// α in r = α·team + local.
    pub team_weight: f64,
    /// How joint actions are scored; `None` scores each candidate separately.
    pub joint: Option<JointConfig>,
    /// Number of candidates of each agent at a turn of a tree.
    pub widths: Widths,
    /// Which agents are not trained: each has one candidate a turn, with which nothing is compared.
    pub served_agents: ServedAgents,
}

/// Agents that a server plays, or that are absent.
#[derive(Clone, Debug, Default)]
pub struct ServedAgents(pub Option<Arc<Ownership>>);

impl ServedAgents {
    fn has(&self, agent: &str) -> bool {
        self.0.as_ref().is_some_and(|team| team.is_served(agent))
    }
}

/// The result of one step.
#[derive(Default)]
pub struct Transition {
    /// The completed groups, in the workflow's order.
    pub groups: Vec<Group>,
    /// The joint actions that were scored.
    pub joint: Vec<JointAction>,
    /// Forked episodes, one for each other joint action, with their first requests.
    pub forks: Vec<(Episode, Vec<PromptRequest>)>,
    /// The next requests; empty while others of the stage are open, and at the end.
    pub requests: Vec<PromptRequest>,
    /// Rewards, by agent's index, for the actions of others, if agents have one candidate a turn.
    pub late: Vec<(usize, f64)>,
}

/// Identifies an episode and its random numbers.
#[derive(Clone, Debug)]
pub struct EpisodeId {
    /// The episode's name, `STEP.INDEX`.
    pub name: Arc<str>,
    /// The random streams of its task.
    pub streams: Arc<Streams>,
    /// The branches that it samples: all in a tree, one in parallel sampling.
    pub branches: Range<u32>,
    /// In self-play the agent that learns, by its index: each other one has one candidate a turn.
    pub learner: Option<usize>,
}

impl EpisodeId {
    /// The id of a sample of this episode.
    pub fn sample(&self, node: &Node, turn: u32, agent: &str, branch: u32) -> String {
        match node.name() {
            None => format!("{}/{turn}/{agent}/{branch}", self.name),
            Some(node) => format!("{}/{node}/{turn}/{agent}/{branch}", self.name),
        }
    }
}

/// An episode in progress.
pub struct Episode {
    config: Arc<EpisodeConfig>,
    id: EpisodeId,
    state: Box<dyn State>,
    workflow: Arc<Workflow>,
    limit: u32,
    turn: u32,
    /// The stage of the current turn.
    stage: usize,
    parent: Option<Arc<str>>,
    /// The joint actions so far.
    path: Node,
    /// Joint actions since it left the executed path; 0 on it.
    off_path: u32,
    /// Candidates of a stage of several agents, by agent, until all are there.
    waiting: Vec<Option<(PromptRequest, Vec<Candidate>)>>,
    /// The last action of each agent that may call tools.
    spoken: Vec<Vec<Arc<Spoken>>>,
    reward: f64,
    returns: BTreeMap<String, f64>,
    /// The agents that have acted, by their index.
    acted: Vec<bool>,
    /// True once an agent was paid for what another one did.
    pays_others: bool,
    /// True once such pay was for an agent that learns, but could not be added to its candidates.
    has_unpaid: bool,
    stop: Option<Stop>,
}

impl Episode {
    /// Begins an episode in `state`; returns the requests of its first stage.
    pub fn begin(
        config: Arc<EpisodeConfig>,
        id: EpisodeId,
        state: Box<dyn State>,
    ) -> (Episode, Vec<PromptRequest>) {
        let limit = config.turns.unwrap_or_else(|| state.turn_limit()).max(1);
        let workflow = Arc::clone(state.workflow());
        let (waiting, spoken) =
            (vec![None; workflow.agents().len()], vec![Vec::new(); workflow.agents().len()]);
        let mut episode = Episode {
            config,
            id,
            state,
            workflow,
            limit,
            turn: 0,
            stage: 0,
            parent: None,
            path: Node::default(),
            off_path: 0,
            waiting,
            spoken,
            reward: 0.0,
            returns: BTreeMap::new(),
            acted: Vec::new(),
            pays_others: false,
            has_unpaid: false,
            stop: None,
        };
        episode.acted = vec![false; episode.agents().len()];
        episode.stage = episode.acting_stage(&*episode.state, 0..episode.workflow.stages()).unwrap_or(0);
        let requests = episode.stage_requests();
        if requests.is_empty() {
            episode.stop = Some(Stop::Turns);
        }
        (episode, requests)
    }

    pub fn id(&self) -> &EpisodeId {
        &self.id
    }

    pub fn agents(&self) -> &[String] {
        self.workflow.agents()
    }

    /// How the episode ended; `None` while it continues.
    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    /// Turns begun.
    pub fn turns(&self) -> u32 {
        self.turn + 1
    }

    /// The reward of the executed path. Agents that act at once add the mean of their rewards.
    pub fn reward(&self) -> f64 {
        self.reward
    }

    /// Each agent's rewards on the executed path, where agents are paid for the actions of others.
    pub fn returns(&self) -> Option<&BTreeMap<String, f64>> {
        self.pays_others.then_some(&self.returns)
    }

    /// Returns true if an agent that learns was paid for what another one did, and no sample has this pay because the
    /// agent has several candidates a turn.
    pub fn has_unpaid(&self) -> bool {
        self.has_unpaid
    }

    /// Returns true for the executed path, which alone has an `episode` line.
    pub fn is_executed(&self) -> bool {
        self.off_path == 0
    }

    /// Requested groups that are not complete: one for each agent of the stage.
    pub fn open_groups(&self) -> u64 {
        match self.stop {
            Some(_) => 0,
            None => self.state.acting(self.stage).len() as u64,
        }
    }

    /// Ends the episode with `error`.
    pub fn fail(&mut self, error: EpisodeError) {
        self.stop = Some(Stop::Error(error));
    }

    /// Takes the candidates for `request`, in branch order: scores them, executes one, and continues. An
    /// error ends the episode and drops its incomplete groups.
    ///
    /// In a stage of several agents, candidates are scored once all are complete, in the workflow's order, so
    /// that nothing depends on which agent finished first.
    pub fn step(&mut self, request: PromptRequest, candidates: Vec<Candidate>) -> Transition {
        debug_assert_eq!(request.branches.len(), candidates.len());
        let joint = self.config.joint;
        let stepped = if joint.is_none() && self.workflow.stage(self.stage).len() == 1 {
            self.step_agent(request, candidates)
        } else {
            let agent = request.agent;
            self.waiting[agent] = Some((request, candidates));
            match joint {
                None => self.step_stage(),
                Some(joint) => self.step_node(&joint),
            }
        };
        stepped.unwrap_or_else(|error| {
            self.fail(error);
            Transition::default()
        })
    }

    /// Executes a stage of one agent.
    fn step_agent(
        &mut self,
        request: PromptRequest,
        candidates: Vec<Candidate>,
    ) -> Result<Transition, EpisodeError> {
        let (group, state) = self.score(request, candidates)?;
        let chosen = group.selected().ok_or_else(|| EpisodeError::at("policy", "no candidate was chosen"))?;
        let (terminated, success) = (chosen.outcome.terminated, chosen.outcome.success);
        let late = self.collect(std::slice::from_ref(&group), &chosen.outcome)?;
        let agent = &self.agents()[group.agent];
        self.parent = Some(self.id.sample(&group.node, group.turn, agent, chosen.branch).into());
        self.state = state;
        self.remember(&group, chosen);
        Ok(Transition {
            groups: vec![group],
            requests: self.advance(terminated, success),
            late,
            ..Transition::default()
        })
    }

    /// Adds what executed actions earned. Agents that acted at once add their mean, because each reward contains
    /// the team's share. Returns what agents earned by actions of others, if each has one candidate a turn to be
    /// paid.
    fn collect(&mut self, groups: &[Group], outcome: &Outcome) -> Result<Vec<(usize, f64)>, EpisodeError> {
        let workflow = Arc::clone(&self.workflow);
        let counts = |agent: usize| self.id.learner.is_none_or(|learner| learner == agent);
        let mut late = Vec::new();
        let mut paid = 0.0;
        let mut acting = Vec::new();
        for (index, agent) in workflow.agents().iter().enumerate() {
            let acted = groups.iter().find(|group| group.agent == index);
            let earned = match acted {
                Some(group) => group.selected().map_or(0.0, |member| member.reward),
                None => {
                    let Some(&local) = outcome.locals.get(agent) else { continue };
                    if !local.is_finite() {
                        let message = format!("the reward of {agent} is not finite: {local}");
                        return Err(EpisodeError::at("env", message));
                    }
                    self.pays_others = true;
                    local
                }
            };
            *self.returns.entry(agent.clone()).or_default() += earned;
            let is_paid = acted.is_some() || self.id.branches.len() == 1 && self.acted[index];
            let learns = counts(index) && !self.config.served_agents.has(agent);
            self.has_unpaid |= learns && acted.is_none() && self.id.branches.len() > 1 && earned != 0.0;
            if acted.is_none() && is_paid {
                late.push((index, earned));
            }
            match acted {
                Some(_) if counts(index) => acting.push(earned),
                None if counts(index) && self.acted[index] => paid += earned,
                _ => {}
            }
        }
        groups.iter().for_each(|group| self.acted[group.agent] = true);
        let shared = acting.iter().sum::<f64>() / acting.len().max(1) as f64;
        self.reward += shared + paid;
        Ok(late)
    }

    /// The candidates of all acting agents of the stage, once they are complete.
    fn take_stage(&mut self) -> Option<Vec<(PromptRequest, Vec<Candidate>)>> {
        let acting = self.state.acting(self.stage);
        let complete = acting.iter().all(|&agent| self.waiting[agent].is_some());
        complete.then(|| acting.into_iter().filter_map(|agent| self.waiting[agent].take()).collect())
    }

    /// Executes a stage of several agents, once all candidates are complete.
    fn step_stage(&mut self) -> Result<Transition, EpisodeError> {
        let Some(complete) = self.take_stage() else { return Ok(Transition::default()) };
        let workflow = Arc::clone(&self.workflow);
        let agents: Vec<&str> =
            complete.iter().map(|(request, _)| workflow.agents()[request.agent].as_str()).collect();
        let mut groups = Vec::with_capacity(complete.len());
        for (request, candidates) in complete {
            groups.push(self.score(request, candidates)?.0);
        }
        let answer = |member: &Member| member.candidate.answer().to_owned();
        let chosen: Vec<String> = groups.iter().filter_map(Group::selected).map(answer).collect();
        let actions: Vec<(&str, &str)> =
            agents.iter().copied().zip(chosen.iter().map(String::as_str)).collect();
        for group in &mut groups {
            let agent = self.agents()[group.agent].as_str();
            let others: Vec<(&str, &str)> =
                actions.iter().copied().filter(|(other, _)| *other != agent).collect();
            for member in &mut group.members {
                let mut state = self.state.clone_state();
                state.set_generation(agent, member.candidate.generation());
                if let Some(outcome) = state.apply_beside(agent, member.candidate.answer(), &others)? {
                    member.reward = self.reward_of(agent, &outcome)?;
                    member.outcome = outcome;
                }
            }
        }
        for (agent, member) in agents.iter().zip(groups.iter().filter_map(Group::selected)) {
            self.state.set_generation(agent, member.candidate.generation());
        }
        let joint = self.state.apply_together(&actions)?;
        let late = self.collect(&groups, &joint)?;
        let mut selected = groups.iter().filter_map(Group::selected);
        if let (Some(agent), Some(member)) = (agents.last(), selected.next_back()) {
            self.parent = Some(self.id.sample(&self.node(), self.turn, agent, member.branch).into());
        }
        // If the joint result ended the episode, the turn limit did not.
        let truncated = !joint.terminated && self.next(&*self.state).is_none();
        for member in groups.iter_mut().flat_map(|group| &mut group.members) {
            member.truncated = truncated && !member.outcome.terminated;
        }
        for group in &groups {
            group.selected().into_iter().for_each(|member| self.remember(group, member));
        }
        let requests = self.advance(joint.terminated, joint.success);
        Ok(Transition { groups, requests, late, ..Transition::default() })
    }

    /// Scores each candidate on a copy of the state and selects one. Returns the group
    /// and the resulting state.
    fn score(
        &self,
        request: PromptRequest,
        candidates: Vec<Candidate>,
    ) -> Result<(Group, Box<dyn State>), EpisodeError> {
        let agent = self.agents()[request.agent].as_str();
        let mut states = Vec::with_capacity(candidates.len());
        let mut members = Vec::with_capacity(candidates.len());
        for (branch, candidate) in request.branches.clone().zip(candidates) {
            let mut state = self.state.clone_state();
            state.set_generation(agent, candidate.generation());
            let outcome = state.apply(agent, candidate.answer())?;
            let reward = self.reward_of(agent, &outcome)?;
            let truncated = !outcome.terminated && self.next(&*state).is_none();
            members.push(Member { branch, candidate, outcome, reward, selected: false, truncated });
            states.push(state);
        }
        if members.is_empty() {
            return Err(EpisodeError::at("policy", format!("no candidate of {agent} was generated")));
        }
        let position = self.choose(agent, &members);
        members[position].selected = true;
        let PromptRequest { node, turn, agent, messages, tools, .. } = request;
        let group = Group { node, turn, agent, parent: self.parent.clone(), messages, tools, members };
        Ok((group, states.swap_remove(position)))
    }

    /// The first of `stages` in which an agent acts in `state`.
    fn acting_stage(&self, state: &dyn State, mut stages: Range<usize>) -> Option<usize> {
        stages.find(|&stage| !state.acting(stage).is_empty())
    }

    /// The next turn and stage in which an agent acts in `state`; `None` if the turn limit comes first.
    fn next(&self, state: &dyn State) -> Option<(u32, usize)> {
        let later = self.acting_stage(state, self.stage + 1..self.workflow.stages());
        later.map(|stage| (self.turn, stage)).or_else(|| {
            let stage = self.acting_stage(state, 0..self.workflow.stages())?;
            (self.turn + 1 < self.limit).then_some((self.turn + 1, stage))
        })
    }

    /// α·team + local. Refuses NaN and infinity, which would spoil every mean.
    fn reward_of(&self, agent: &str, outcome: &Outcome) -> Result<f64, EpisodeError> {
        let (team, local) = (outcome.rewards.team, outcome.local_of(agent));
        let reward = self.config.team_weight * team + local;
        if reward.is_finite() && outcome.components.values().all(|component| component.is_finite()) {
            return Ok(reward);
        }
        let message =
            format!("the reward for the action of {agent} is not finite: team {team}, local {local}");
        Err(EpisodeError::at("env", message))
    }

    /// The index of the member to execute.
    fn choose(&self, agent: &str, members: &[Member]) -> usize {
        match self.config.select {
            Select::Random => self.id.streams.choice(self.turn, agent).below(members.len() as u32) as usize,
            Select::Best => (1..members.len()).fold(0, |best, index| {
                if members[index].reward > members[best].reward { index } else { best }
            }),
        }
    }

    /// The requests of the current stage, one for each acting agent.
    fn stage_requests(&self) -> Vec<PromptRequest> {
        self.state.acting(self.stage).into_iter().map(|agent| self.request(agent)).collect()
    }

    fn request(&self, agent: usize) -> PromptRequest {
        let name = &self.agents()[agent];
        let messages = self.state.observe(name);
        let (node, mut branches) = (self.node(), self.id.branches.clone());
        let is_opponent = self.id.learner.is_some_and(|learner| learner != agent);
        let expand = self.config.joint.map(|joint| joint.expand);
        if self.config.served_agents.has(name) || is_opponent {
            branches.end = branches.start + 1;
        } else if let Some(Expand::Ends(plays)) = expand.filter(|_| self.off_path > 0) {
            branches.end = branches.start + if self.off_path == 1 { plays } else { 1 };
        } else if let Some(width) = self.config.widths.own.get(name) {
            branches.end = branches.start + width;
        }
        let tools = self.state.tools(name);
        let continued = |spoken: &&Arc<Spoken>| spoken.is_continued_by(&messages, tools.as_deref());
        let after =
            self.spoken[agent].iter().filter(continued).max_by_key(|spoken| spoken.messages.len()).cloned();
        PromptRequest { node, turn: self.turn, agent, branches, messages, tools, after }
    }

    /// Keeps an executed action, from whose tokens its conversation may go on.
    fn remember(&mut self, group: &Group, member: &Member) {
        let (messages, tools, candidate) =
            (group.messages.clone(), group.tools.clone(), member.candidate.clone());
        let spoken = &mut self.spoken[group.agent];
        if spoken.len() == MOST_SPOKEN {
            spoken.remove(0);
        }
        spoken.push(Arc::new(Spoken { messages, tools, candidate }));
    }

    /// Continues after the executed actions of a stage: with the next stage, the next turn, or the end. Skips
    /// stages in which no agent acts.
    fn advance(&mut self, terminated: bool, success: bool) -> Vec<PromptRequest> {
        if success || terminated {
            self.stop = Some(if success { Stop::Success } else { Stop::Terminated });
            return Vec::new();
        }
        match self.next(&*self.state) {
            Some(next) => {
                (self.turn, self.stage) = next;
                self.stage_requests()
            }
            None => {
                self.stop = Some(Stop::Turns);
                Vec::new()
            }
        }
    }
}
