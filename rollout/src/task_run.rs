//! A task in progress: its episodes, their open prompt requests, and the lines written so far.
//!
//! Tree sampling plays a task as one episode of K branches, parallel sampling as K episodes of one branch
//! each. Equal requests of several episodes (the first ones of parallel sampling) are merged, so that their
//! prompt is computed once.
//!
//! Completed groups are serialized at once, and sorted by node, turn, agent and branch at the end, so that
//! siblings are contiguous and a tree of joint actions is written depth first.

use std::collections::HashMap;
use std::sync::Arc;

use envs::{Environment, State};
use policy::tools::reading;
use record::failure::{Failure, Result};
use record::line::Task;

use crate::episode::group::{Candidate, Group, PromptRequest, ServerTokens};
use crate::episode::joint::{Expand, JointAction, Node};
use crate::episode::{Episode, EpisodeError, EpisodeId, Stop};
use crate::fill::Lessons;
use crate::lines::{EpisodeEnd, PolicyLabel, TaskRef};
use crate::opponents::{Opponents, Seats};
use crate::policies::policy_of;
use crate::prompts::Prompt;
use crate::settings::Settings;
use crate::stats::{AgentStats, Stats};
use crate::streams::Streams;

/// Shared by all tasks of a run.
pub struct RunContext {
    /// The command line.
    pub settings: Arc<Settings>,
    /// The environment of every task; `None` for the built-in one that the task names.
    pub external: Option<Box<dyn Environment>>,
    /// How samples identify each policy.
    pub labels: Vec<PolicyLabel>,
    /// With `--opponents`, whom they are drawn from.
    pub opponents: Opponents,
}

/// A task and its position in the stream.
#[derive(Clone, Debug)]
pub struct QueuedTask {
    /// Position of its output among all output of this shard.
    pub sequence: u64,
    /// Position among all tasks of the stream, other shards' included.
    pub index: u64,
    /// How often the same task occurred before.
    pub occurrence: u64,
    pub task: Task,
}

/// A prompt to complete, shared by one or more episodes.
#[derive(Debug)]
pub struct SharedRequest {
    /// Index of the episode, and its request. Requests differ only in their branches.
    parts: Vec<(usize, PromptRequest)>,
}

impl SharedRequest {
    /// The first request; all have its node, turn, agent and messages. [`SharedRequest::branches`]
    /// has the branches of all.
    pub fn first(&self) -> &PromptRequest {
        &self.parts[0].1
    }

    /// The branches to sample, in order.
    pub fn branches(&self) -> impl Iterator<Item = u32> {
        self.parts.iter().flat_map(|(_, request)| request.branches.clone())
    }
}

/// Lines for the output.
#[derive(Debug)]
pub struct Output {
    /// Position among all output of this shard.
    pub sequence: u64,
    /// The lines, at least one, without the final line feed.
    pub text: String,
    /// Their contribution to the statistics.
    pub stats: Stats,
}

/// The lines of a completed group, or of a node's joint actions.
struct PendingLines {
    /// Sort key: node, turn, agent, branch; joint actions come after the agents.
    order: (Node, u32, usize, u32),
    lines: Vec<u8>,
    /// Statistics of a group.
    stats: Option<AgentStats>,
}

/// The last group of an agent with one candidate, which may still be paid for what others do.
struct HeldGroup {
    /// Index of its episode.
    episode: usize,
    group: Group,
    prompt: Arc<Prompt>,
    policy: usize,
}

/// A task in progress.
pub struct TaskRun {
    context: Arc<RunContext>,
    task: QueuedTask,
    streams: Arc<Streams>,
    name: Arc<str>,
    episodes: Vec<Episode>,
    seats: Seats,
    held: Vec<HeldGroup>,
    written: Vec<PendingLines>,
    /// The prompt and the policy of each open group, by episode and agent.
    prompts: HashMap<(usize, usize), (Arc<Prompt>, usize)>,
    open_requests: usize,
    stats: Stats,
    /// The counts that `--fill` needs.
    lessons: Lessons,
    /// Why it could not begin.
    refused: Option<Stop>,
}

impl TaskRun {
    /// Begins the episodes of a task in `state`, or none if the environment refused it.
    pub fn begin(
        context: Arc<RunContext>,
        task: QueuedTask,
        state: std::result::Result<Box<dyn State>, EpisodeError>,
    ) -> (TaskRun, Vec<SharedRequest>) {
        let (seed, step) = (context.settings.flags.seed, context.settings.metadata.step);
        let mut run = TaskRun {
            streams: Arc::new(Streams::new(seed, step, &task.task.task, task.occurrence)),
            name: format!("{step}.{}", task.index).into(),
            context,
            task,
            episodes: Vec::new(),
            seats: Seats::default(),
            held: Vec::new(),
            written: Vec::new(),
            prompts: HashMap::new(),
            open_requests: 0,
            stats: Stats::default(),
            lessons: Lessons::default(),
            refused: None,
        };
        run.stats.tasks = 1;
        let states = state.and_then(|state| {
            let others = (1..run.episode_count()).map(|_| state.begin_again());
            let mut states = others.collect::<Result<Vec<_>>>()?;
            states.insert(0, state);
            Ok(states)
        });
        let requests = match states {
            Ok(states) => run.begin_episodes(states),
            Err(error) => {
                run.refused = Some(Stop::Error(error));
                Vec::new()
            }
        };
        run.open_requests = requests.len();
        (run, requests)
    }

    fn begin_episodes(&mut self, states: Vec<Box<dyn State>>) -> Vec<SharedRequest> {
        let settings = self.context.settings.clone();
        let (branches, count) = (settings.metadata.branches, self.episode_count());
        let width = branches / count;
        let (agents, number) = (states[0].workflow().agents(), settings.metadata.step + self.task.index);
        self.seats = self.context.opponents.seats(&settings.team, agents, &self.streams, number);
        let mut shared: Vec<SharedRequest> = Vec::new();
        let firsts = (0..branches).step_by(width as usize);
        for (index, (first, state)) in firsts.zip(states).enumerate() {
            let (name, streams) = (self.name.clone(), self.streams.clone());
            let (branches, learner) = (first..first + width, self.seats.learner);
            let id = EpisodeId { name, streams, branches, learner };
            let (episode, requests) = Episode::begin(settings.episodes.clone(), id, state);
            self.episodes.push(episode);
            self.stats.groups_expected += requests.len() as u64;
            for request in requests {
                let key = |request: &PromptRequest| (request.agent, request.turn);
                let is_same =
                    |other: &PromptRequest| key(other) == key(&request) && other.messages == request.messages;
                match shared.iter_mut().find(|other| is_same(other.first())) {
                    Some(other) => other.parts.push((index, request)),
                    None => shared.push(SharedRequest { parts: vec![(index, request)] }),
                }
            }
        }
        shared
    }

    fn episode_count(&self) -> u32 {
        let metadata = &self.context.settings.metadata;
        if metadata.parallel { metadata.branches } else { 1 }
    }

    /// The agents of its workflow; empty if it could not begin.
    pub fn agents(&self) -> &[String] {
        self.episodes.first().map_or(&[], Episode::agents)
    }

    /// The player of an agent, by its index: a policy of the command line, or an earlier version.
    pub fn player_of(&self, agent: usize) -> Result<usize> {
        match self.seats.players.get(agent) {
            Some(&Some(player)) => Ok(player),
            _ => policy_of(&self.context.settings.team, &self.agents()[agent]),
        }
    }

    fn is_opponent(&self, agent: usize) -> bool {
        self.seats.learner.is_some_and(|learner| learner != agent)
    }

    /// The random streams of its task.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Returns true if no request is open.
    pub fn is_over(&self) -> bool {
        self.open_requests == 0
    }

    /// Takes the candidates for `request`, in the order of its branches, and returns the next requests. `policy` is the
    /// index of the policy that generated them.
    ///
    /// # Errors
    /// Log-probabilities that are not finite.
    pub fn step(
        &mut self,
        request: SharedRequest,
        prompt: &Arc<Prompt>,
        policy: usize,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<SharedRequest>> {
        self.open_requests -= 1;
        let mut candidates = candidates;
        let ids: Arc<[u32]> = prompt.ids.as_slice().into();
        for candidate in &mut candidates {
            candidate.is_in_thought = prompt.begins_thought;
            candidate.prompt_ids = ids.clone();
        }
        let PromptRequest { turn, messages, tools, .. } = request.first();
        if let Some(tools) = tools {
            let is_unread = |candidate: &&Candidate| reading(candidate.answer(), Some(tools)).is_unread;
            self.stats.unread_calls += candidates.iter().filter(is_unread).count() as u64;
        }
        if *turn > 0 && !ids.is_empty() && messages.iter().any(|message| message.role == "assistant") {
            *(if prompt.continues { &mut self.stats.continued } else { &mut self.stats.rendered }) += 1;
        }
        let mut candidates = candidates.into_iter();
        let mut next = Vec::new();
        if !self.is_opponent(request.first().agent) {
            self.stats.prompt_tokens += prompt.ids.len() as u64;
        }
        for (index, request) in request.parts {
            let own: Vec<Candidate> = candidates.by_ref().take(request.branches.len()).collect();
            let episode = &mut self.episodes[index];
            if episode.stop().is_some() {
                // Another agent of the stage failed in the meantime.
                continue;
            }
            self.prompts.insert((index, request.agent), (prompt.clone(), policy));
            let open = episode.open_groups();
            let transition = episode.step(request, own);
            self.stats.has_unpaid |= episode.has_unpaid();
            if let Some(Stop::Error(error)) = episode.stop() {
                let error = error.clone();
                self.stats.drop_groups(error.boundary, open);
                self.end_tree(&error);
            }
            if !transition.joint.is_empty() {
                self.write_joint(index, &transition.groups, &transition.joint)?;
            }
            for group in transition.groups {
                self.take(index, group)?;
            }
            for (agent, late) in transition.late {
                self.pay_late(index, agent, late);
            }
            let mut begun = vec![(index, transition.requests)];
            for (fork, requests) in transition.forks {
                begun.push((self.episodes.len(), requests));
                self.episodes.push(fork);
            }
            for (index, requests) in begun {
                self.stats.groups_expected += requests.len() as u64;
                next.extend(
                    requests.into_iter().map(|request| SharedRequest { parts: vec![(index, request)] }),
                );
            }
        }
        self.open_requests += next.len();
        Ok(next)
    }

    /// Adds to the last reward of an agent, if it has acted.
    fn pay_late(&mut self, index: usize, agent: usize, late: f64) {
        let last = self.held.iter_mut().find(|held| held.episode == index && held.group.agent == agent);
        for member in last.into_iter().flat_map(|held| &mut held.group.members) {
            member.reward += late;
            member.outcome.rewards.local += late;
        }
    }

    /// Writes a completed group, or holds it while it may still be paid.
    fn take(&mut self, index: usize, mut group: Group) -> Result<()> {
        let Some((prompt, policy)) = self.prompts.remove(&(index, group.agent)) else { return Ok(()) };
        if self.is_opponent(group.agent) && !self.context.labels[policy].served {
            for Candidate { usage, ids, .. } in group.members.iter_mut().map(|member| &mut member.candidate) {
                let tokens = [prompt.ids.len(), ids.len()].map(|count| Some(count as u64));
                *usage = ServerTokens { prompt: tokens[0], completion: tokens[1] };
            }
        }
        let is_single = self.episodes[index].id().branches.len() == 1;
        if !is_single || self.context.settings.episodes.joint.is_some() {
            return self.write(index, &group, &prompt, policy);
        }
        let is_own = |held: &HeldGroup| held.episode == index && held.group.agent == group.agent;
        let before = self.held.iter().position(is_own).map(|place| self.held.swap_remove(place));
        self.held.push(HeldGroup { episode: index, group, prompt, policy });
        match before {
            Some(HeldGroup { group, prompt, policy, .. }) => self.write(index, &group, &prompt, policy),
            None => Ok(()),
        }
    }

    fn write(&mut self, index: usize, group: &Group, prompt: &Prompt, policy: usize) -> Result<()> {
        let (episode, label) = (&self.episodes[index], &self.context.labels[policy]);
        let mut lines = Vec::new();
        let is_frozen = label.served || self.is_opponent(group.agent);
        if self.context.settings.fill.is_some() && !is_frozen {
            self.lessons.group(group);
            if self.context.settings.episodes.joint.is_none() && !self.context.settings.metadata.parallel {
                self.lessons.ends_of_candidates(group);
            }
        }
        let sampling = self.context.settings.sampling.of(&episode.agents()[group.agent]);
        match is_frozen {
            false => {
                self.reference().write_group(&mut lines, episode, group, label, (prompt, &sampling.json))?;
            }
            true => self.reference().write_served(&mut lines, episode, group, label, prompt)?,
        }
        let first = group.members.first().map_or(0, |member| member.branch);
        let order = (group.node.clone(), group.turn, group.agent, first);
        self.written.push(PendingLines { order, lines, stats: Some(AgentStats::of(group, is_frozen)) });
        Ok(())
    }

    fn write_joint(&mut self, index: usize, groups: &[Group], actions: &[JointAction]) -> Result<()> {
        let Some(group) = groups.first() else { return Ok(()) };
        if !self.context.settings.metadata.parallel {
            self.lessons.ends_of_actions(actions);
        }
        let branch = self.episodes[index].id().branches.start;
        let mut lines = Vec::new();
        self.reference().write_joint(&mut lines, branch, group, actions)?;
        self.stats.nodes += 1;
        self.stats.joint_actions += actions.len() as u64;
        let order = (group.node.clone(), group.turn, usize::MAX, branch);
        self.written.push(PendingLines { order, lines, stats: None });
        Ok(())
    }

    /// Returns true if an episode has forks; it is then scored as a whole or not at all.
    fn branches(&self) -> bool {
        self.context.settings.episodes.joint.is_some_and(|joint| joint.expand != Expand::One)
    }

    /// Ends all forks of an episode, because of `error` in one of them.
    fn end_tree(&mut self, error: &EpisodeError) {
        if !self.branches() {
            return;
        }
        for episode in &mut self.episodes {
            self.stats.drop_groups(error.boundary, episode.open_groups());
            if episode.is_executed() || episode.stop().is_none() {
                episode.fail(error.clone());
            }
        }
    }

    fn reference(&self) -> TaskRef<'_> {
        let Task { env, task, .. } = &self.task.task;
        TaskRef { metadata: &self.context.settings.metadata, env, task, episode: &self.name }
    }

    /// Returns true if any episode of `request` still continues.
    pub fn needs(&self, request: &SharedRequest) -> bool {
        request.parts.iter().any(|&(index, _)| self.episodes[index].stop().is_none())
    }

    /// Withdraws a request that is no longer needed.
    pub fn cancel(&mut self, _request: SharedRequest) {
        self.open_requests -= 1;
    }

    /// Ends the episodes of `request`, which cannot be completed.
    pub fn fail(&mut self, request: SharedRequest, error: &EpisodeError) {
        self.open_requests -= 1;
        for (index, _) in request.parts {
            let episode = &mut self.episodes[index];
            if episode.stop().is_none() {
                self.stats.drop_groups(error.boundary, episode.open_groups());
                episode.fail(error.clone());
                self.end_tree(error);
            }
        }
    }

    /// The output of a finished task.
    pub fn finish(mut self) -> Result<Output> {
        for HeldGroup { episode, group, prompt, policy } in std::mem::take(&mut self.held) {
            self.write(episode, &group, &prompt, policy)?;
        }
        self.written.sort_by(|a, b| a.order.cmp(&b.order));
        let mut bytes = Vec::new();
        let mut stats = std::mem::take(&mut self.stats);
        let failed = self.episodes.first().and_then(Episode::stop).filter(|_| self.branches());
        if let Some(Stop::Error(error)) = failed {
            // Returns over an incomplete tree would be wrong.
            let groups = self.written.iter().filter(|written| written.stats.is_some()).count();
            stats.drop_groups(error.boundary, groups as u64);
            (stats.nodes, stats.joint_actions) = (0, 0);
            self.written.clear();
            self.lessons = Lessons::default();
        }
        // An episode without a reward has nothing to compare, and its part would count as a whole one.
        if self.context.settings.metadata.parallel {
            for episode in &self.episodes {
                let Some(Stop::Error(error)) = episode.stop() else { continue };
                let branch = episode.id().branches.start;
                for lost in self.written.extract_if(.., |lines| lines.order.3 == branch) {
                    if lost.stats.is_some() {
                        stats.drop_groups(error.boundary, 1);
                    } else {
                        stats.nodes -= 1;
                        stats.joint_actions -=
                            lost.lines.split_inclusive(|byte| *byte == b'\n').count() as u64;
                    }
                }
            }
        }
        for written in &self.written {
            bytes.extend_from_slice(&written.lines);
            if let Some(group) = &written.stats {
                stats.add_agent(&self.agents()[written.order.2], group);
            }
        }
        let refused = self.refused.iter().flat_map(|stop| {
            (0..self.episode_count()).map(move |branch| EpisodeEnd {
                branch,
                turns: 0,
                reward: None,
                returns: None,
                stop,
            })
        });
        let played = self.episodes.iter().filter(|episode| episode.is_executed()).filter_map(|episode| {
            let (branch, reward) = (episode.id().branches.start, Some(episode.reward()));
            let (turns, returns) = (episode.turns(), episode.returns());
            Some(EpisodeEnd { branch, turns, reward, returns, stop: episode.stop()? })
        });
        for end in refused.chain(played) {
            stats.add_episode(&self.task.task.env, end.turns, end.reward, end.stop);
            self.reference().write_end(&mut bytes, &end)?;
        }
        if let Some(fill) = &self.context.settings.fill {
            let mut lessons = std::mem::take(&mut self.lessons);
            if self.context.settings.metadata.parallel {
                let stops = self.episodes.iter().filter_map(Episode::stop);
                stops
                    .filter(|stop| !matches!(stop, Stop::Error(_)))
                    .for_each(|stop| lessons.end(*stop == Stop::Success));
            }
            stats.set_teaching(lessons.teaches(fill));
        }
        bytes.pop();
        let text = String::from_utf8(bytes).map_err(Failure::work)?;
        Ok(Output { sequence: self.task.sequence, text, stats })
    }
}
