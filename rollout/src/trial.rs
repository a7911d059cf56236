//! A task on its way: the episodes it began, their open questions, and the lines they made so far.
//!
//! With tree sampling a task is one episode of K branches; with parallel sampling it is K episodes of one
//! branch, told apart by `branch`. Questions that are the same for several episodes (the first of parallel
//! sampling) become one request, whose prompt is computed once.
//!
//! Groups become bytes as soon as they are complete; when the last episode has ended they are put in the order
//! turn, agent, branch, so that siblings are contiguous.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use envs::State;
use record::failure::{Failure, Result};
use record::line::Task;
use record::sample::Message;

use crate::account::{self, Account};
use crate::episode::{Ask, Candidate, Episode, Fault, Group, Identity, Rules, Stop};
use crate::lines::{self, About, Ended, Prompt, Speaker, Stamp};
use crate::streams::Streams;

/// A task and its place in the stream.
#[derive(Clone, Debug)]
pub struct Work {
    /// Position of its output among all output of this shard.
    pub sequence: u64,
    /// Position among all tasks of the stream, also those of other shards.
    pub index: u64,
    /// How often the same task came before.
    pub occurrence: u64,
    /// The task.
    pub task: Task,
}

/// What the trials of a run have in common.
pub struct Plan {
    /// How episodes go.
    pub rules: Arc<Rules>,
    /// What lines say.
    pub stamp: Stamp,
    /// How samples name each policy.
    pub speakers: Vec<Speaker>,
    /// Names the random streams.
    pub seed: u64,
}

/// A prompt to complete, for one episode or for several that ask the same.
#[derive(Debug)]
pub struct Request {
    /// The asking episodes and their questions, which differ in their branches only.
    asks: Vec<(usize, Ask)>,
}

impl Request {
    /// The turn of the question.
    pub fn turn(&self) -> u32 {
        self.asks[0].1.turn
    }

    /// Index of the agent it is put to.
    pub fn agent(&self) -> usize {
        self.asks[0].1.agent
    }

    /// The conversation to continue.
    pub fn messages(&self) -> &[Message] {
        &self.asks[0].1.messages
    }

    /// The branches to answer, in order.
    pub fn branches(&self) -> impl Iterator<Item = u32> {
        self.asks.iter().flat_map(|(_, ask)| ask.branches.clone())
    }
}

/// What a trial made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Episodes begun.
    pub episodes: u64,
    /// Of them, those that solved their task.
    pub solved: u64,
    /// Of them, those that could not be scored.
    pub failed: u64,
    /// Groups written. In parallel sampling each episode's candidate counts as one.
    pub groups: u64,
    /// Samples written.
    pub samples: u64,
    /// Tokens of the prompts that were completed, each counted once however many branches share it.
    pub prompt_tokens: u64,
    /// Tokens sampled and written.
    pub completion_tokens: u64,
}

impl Counts {
    /// Adds `other`.
    pub fn add(&mut self, other: &Counts) {
        self.episodes += other.episodes;
        self.solved += other.solved;
        self.failed += other.failed;
        self.groups += other.groups;
        self.samples += other.samples;
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
    }
}

/// A task that is finished.
#[derive(Debug)]
pub struct Finished {
    /// Position of its output.
    pub sequence: u64,
    /// Its lines, at least one, without the last line feed.
    pub text: String,
    /// What they are.
    pub counts: Counts,
    /// What they add up to.
    pub account: Account,
}

/// A complete group.
struct Written {
    /// Its place in the output: turn, agent, branch.
    place: (u32, usize, u32),
    lines: Vec<u8>,
    account: account::Agent,
}

/// A task on its way.
pub struct Trial {
    plan: Arc<Plan>,
    work: Work,
    streams: Arc<Streams>,
    name: Arc<str>,
    episodes: Vec<Episode>,
    groups: Vec<Written>,
    /// What the open groups of each episode and agent continue, and the policy that does it.
    prompts: HashMap<(usize, usize), (Arc<Prompt>, usize)>,
    open: usize,
    counts: Counts,
    account: Account,
    /// Why it could not begin.
    refused: Option<Stop>,
}

impl Trial {
    /// Begins the episodes of a task in `state`, or none when the environment refused it.
    pub fn begin(
        plan: Arc<Plan>,
        work: Work,
        state: std::result::Result<Box<dyn State>, Fault>,
    ) -> (Trial, Vec<Request>) {
        let stamp = &plan.stamp;
        let streams = Arc::new(Streams::new(plan.seed, stamp.step, &work.task.task, work.occurrence));
        let name: Arc<str> = format!("{}.{}", stamp.step, work.index).into();
        let mut trial = Trial {
            work,
            streams,
            name,
            episodes: Vec::new(),
            groups: Vec::new(),
            prompts: HashMap::new(),
            open: 0,
            counts: Counts::default(),
            account: Account::default(),
            refused: None,
            plan,
        };
        let requests = match state {
            Ok(state) => trial.begin_episodes(state),
            Err(fault) => {
                trial.refused = Some(Stop::Error(fault));
                Vec::new()
            }
        };
        trial.open = requests.len();
        (trial, requests)
    }

    fn begin_episodes(&mut self, state: Box<dyn State>) -> Vec<Request> {
        let branches = self.plan.stamp.branches;
        let ranges: Vec<Range<u32>> = match self.plan.stamp.side_by_side {
            true => (0..branches).map(|branch| branch..branch + 1).collect(),
            false => std::iter::once(0..branches).collect(),
        };
        let mut asks = Vec::new();
        for (position, branches) in ranges.into_iter().enumerate() {
            let identity = Identity { name: self.name.clone(), streams: self.streams.clone(), branches };
            let (episode, first) = Episode::begin(self.plan.rules.clone(), identity, state.clone_state());
            asks.extend(first.into_iter().map(|ask| (position, ask)));
            self.episodes.push(episode);
        }
        self.account.expected += asks.len() as u64;
        let mut requests: Vec<Request> = Vec::new();
        for (position, ask) in asks {
            let same = requests.iter_mut().find(|request| {
                request.agent() == ask.agent
                    && request.turn() == ask.turn
                    && request.messages() == ask.messages
            });
            match same {
                Some(request) => request.asks.push((position, ask)),
                None => requests.push(Request { asks: vec![(position, ask)] }),
            }
        }
        requests
    }

    /// The agents of its workflow; none when it could not begin.
    pub fn agents(&self) -> &[String] {
        self.episodes.first().map_or(&[], Episode::agents)
    }

    /// The random streams of its task.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Whether nothing of it is being generated any more.
    pub fn is_over(&self) -> bool {
        self.open == 0
    }

    /// Takes the candidates for `request`, in the order of its branches, and hands out what to ask next.
    /// `speaker` is the index of the policy that generated them.
    ///
    /// # Errors
    /// Log-probabilities that are not finite.
    pub fn answer(
        &mut self,
        request: Request,
        prompt: &Arc<Prompt>,
        speaker: usize,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Request>> {
        self.open -= 1;
        let mut candidates = candidates.into_iter();
        let mut requests = Vec::new();
        self.counts.prompt_tokens += prompt.ids.len() as u64;
        for (position, ask) in request.asks {
            let own: Vec<Candidate> = candidates.by_ref().take(ask.branches.len()).collect();
            let episode = &mut self.episodes[position];
            if episode.stop().is_some() {
                // Another agent of the turn met a fault: what this one said leads nowhere.
                continue;
            }
            self.prompts.insert((position, ask.agent), (prompt.clone(), speaker));
            let begun = episode.open_groups();
            let progress = episode.answer(ask, own);
            if let Some(Stop::Error(fault)) = episode.stop() {
                self.account.drop(fault.boundary, begun);
            }
            self.account.expected += progress.asks.len() as u64;
            for group in &progress.groups {
                self.write(position, group)?;
            }
            requests.extend(progress.asks.into_iter().map(|ask| Request { asks: vec![(position, ask)] }));
        }
        self.open += requests.len();
        Ok(requests)
    }

    /// Turns a group into lines.
    fn write(&mut self, position: usize, group: &Group) -> Result<()> {
        let episode = &self.episodes[position];
        let Some((prompt, speaker)) = self.prompts.remove(&(position, group.agent)) else { return Ok(()) };
        let mut bytes = Vec::new();
        let about = About { env: &self.work.task.env, task: &self.work.task.task };
        lines::group(
            &mut bytes,
            &self.plan.stamp,
            about,
            episode,
            group,
            &self.plan.speakers[speaker],
            &prompt,
        )?;
        self.counts.groups += 1;
        self.counts.samples += group.members.len() as u64;
        self.counts.completion_tokens +=
            group.members.iter().map(|member| member.candidate.ids.len() as u64).sum::<u64>();
        let first = group.members.first().map_or(0, |member| member.branch);
        let place = (group.turn, group.agent, first);
        self.groups.push(Written { place, lines: bytes, account: account::Agent::of(group) });
        Ok(())
    }

    /// Whether any episode still waits for what `request` asks.
    pub fn wants(&self, request: &Request) -> bool {
        request.asks.iter().any(|&(position, _)| self.episodes[position].stop().is_none())
    }

    /// Takes `request` back, which nobody waits for any more.
    pub fn withdraw(&mut self, request: Request) {
        drop(request);
        self.open -= 1;
    }

    /// Ends the episodes that wait for `request`, because it cannot be completed.
    pub fn fail(&mut self, request: Request, fault: &Fault) {
        self.open -= 1;
        for (position, _) in request.asks {
            let episode = &mut self.episodes[position];
            if episode.stop().is_none() {
                self.account.drop(fault.boundary, episode.open_groups());
                episode.fail(fault.clone());
            }
        }
    }

    /// The lines of a task that is over.
    ///
    /// # Errors
    /// None that finite rewards can cause.
    pub fn finish(mut self) -> Result<Finished> {
        self.groups.sort_by_key(|group| group.place);
        let mut bytes =
            Vec::with_capacity(self.groups.iter().map(|group| group.lines.len()).sum::<usize>() + 512);
        let mut account = std::mem::take(&mut self.account);
        for group in &self.groups {
            bytes.extend_from_slice(&group.lines);
            account.agent(&self.agents()[group.place.1], &group.account);
        }
        let about = About { env: &self.work.task.env, task: &self.work.task.task };
        let mut counts = self.counts;
        let mut end = |branch: u32, turns: u32, reward: Option<f64>, stop: &Stop| {
            counts.episodes += 1;
            counts.solved += u64::from(*stop == Stop::Success);
            counts.failed += u64::from(matches!(stop, Stop::Error(_)));
            account.episode(about.env, turns, stop);
            lines::ending(
                &mut bytes,
                &self.plan.stamp,
                about,
                &Ended { name: &self.name, branch, turns, reward, stop },
            )
        };
        if let Some(stop) = &self.refused {
            let episodes = if self.plan.stamp.side_by_side { self.plan.stamp.branches } else { 1 };
            for branch in 0..episodes {
                end(branch, 0, None, stop)?;
            }
        }
        for episode in &self.episodes {
            if let Some(stop) = episode.stop() {
                end(episode.identity().branches.start, episode.turns(), Some(episode.reward()), stop)?;
            }
        }
        bytes.pop();
        let text = String::from_utf8(bytes).map_err(Failure::work)?;
        Ok(Finished { sequence: self.work.sequence, text, counts, account })
    }
}
