//! One policy's samples in memory: token ids, log-probabilities and advantages, no text.
//!
//! Consecutive equal prompts are stored once, so that a group stores its prompt once. Everything that affects
//! the result enters a digest, by which a repeated call recognizes its published version. Samples of shards
//! are sorted by episode, so that the order in which the shards were joined affects nothing.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use record::failure::Result;
use record::read::Line;
use record::sample::Sample;

use crate::tree::Sequence;

/// Bytes buffered before they are hashed.
const HASH_BUFFER: usize = 1 << 16;

/// One sample of the policy.
#[derive(Clone, Debug)]
pub struct Row {
    prompt: Range<usize>,
    completion: Range<usize>,
    /// Its advantage; for `nll` its weight.
    pub advantage: f64,
    /// The divisor of the logits under which its log-probabilities were recorded.
    pub temperature: f32,
    /// Its reward where it has one.
    pub reward: Option<f64>,
    /// Number of its task, in order of first appearance.
    pub task: u32,
    /// Number of its group, in order of first appearance.
    pub group: u32,
    /// Index of its agent in [`Samples::agents`].
    agent: Option<u32>,
    episode: EpisodeKey,
}

/// The order of an episode among all of a run, whatever shard it was played in: the step and index that rollout's names
/// consist of (`12.7`). `None` for a name of another form.
type EpisodeKey = Option<(u64, u64)>;

impl Row {
    /// Completion tokens, the stop token included.
    pub fn length(&self) -> usize {
        self.completion.len()
    }

    /// Index of its agent in [`Samples::agents`].
    pub fn agent(&self) -> Option<usize> {
        self.agent.map(|agent| agent as usize)
    }
}

/// The samples of one policy.
#[derive(Debug, Default)]
pub struct Samples {
    /// In stream order, or after [`Samples::sort`] in order of their episodes.
    pub rows: Vec<Row>,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    tasks: HashMap<String, u32>,
    groups: HashMap<String, u32>,
    /// The version that every sample names, and the place of the first.
    pub version: Option<(String, String)>,
    /// The training step that the samples name.
    pub step: Option<u64>,
    /// The agents seen, in order of first appearance.
    pub agents: Vec<String>,
    /// True if log-probabilities were needed, and so belong to the digest.
    recorded: bool,
    /// True if a sample comes from one of several shards.
    sharded: bool,
    /// The largest token id anywhere.
    pub largest_id: u32,
}

/// What a sample must have.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Log-probabilities recorded when the tokens were sampled.
    pub logprobs: bool,
    /// An advantage; otherwise an absent one is 1.
    pub advantage: bool,
    /// True if the tokens were sampled from the full distribution.
    pub full_distribution: bool,
}

impl Samples {
    /// Adds a sample, unless its advantage is null: it then counts nowhere, and no average either.
    ///
    /// # Errors
    /// 65: a required field is missing, or the sample cannot be trained on.
    pub fn push(&mut self, sample: &Sample, line: &Line, needs: Needs) -> Result<()> {
        use record::sample::Field;
        sample.require(line, &[Field::PolicyVersion, Field::PromptIds, Field::CompletionIds])?;
        if needs.logprobs {
            sample.require(line, &[Field::CompletionLogprobs, Field::Sampling])?;
        }
        if needs.advantage && sample.advantage.is_none() {
            return Err(sample
                .failure(line, "`advantage` is missing")
                .hint("put the stages before it: … | group | advantage | update"));
        }
        self.check_sampling(sample, line, needs)?;
        self.check_version(sample, line)?;
        let Some(advantage) = sample.advantage.unwrap_or(Some(1.0)) else { return Ok(()) };
        let prompt = sample.prompt_ids.as_deref().unwrap_or_default();
        let completion = sample.completion_ids.as_deref().unwrap_or_default();
        let temperature = match &sample.sampling {
            // Greedy completions are recorded at temperature 1 whatever the temperature flag said.
            Some(sampling) if !sampling.greedy => sampling.temperature,
            _ => 1.0,
        };
        let logprobs = match needs.logprobs {
            true => sample.completion_logprobs.as_deref().unwrap_or_default(),
            false => &[],
        };
        self.recorded = needs.logprobs;
        self.sharded |= sample.shard.as_deref().is_some_and(|shard| !shard.ends_with("/1"));
        self.step = self.step.max(sample.step);
        self.largest_id = prompt.iter().chain(completion).copied().fold(self.largest_id, u32::max);
        let row = Row {
            prompt: self.store_prompt(prompt),
            completion: self.store(completion),
            advantage,
            temperature,
            reward: sample.reward.flatten(),
            task: intern_name(&mut self.tasks, &task_key(sample, line)),
            group: intern_name(&mut self.groups, &group_key(sample, line)),
            agent: sample.agent.as_deref().map(|agent| self.agent(agent)),
            episode: sample.episode.as_deref().and_then(parse_episode_key),
        };
        self.logprobs.resize(self.ids.len(), 0.0);
        self.logprobs[row.completion.clone()][..logprobs.len()].copy_from_slice(logprobs);
        self.rows.push(row);
        Ok(())
    }

    fn check_sampling(&self, sample: &Sample, line: &Line, needs: Needs) -> Result<()> {
        let Some(sampling) = sample.sampling.as_ref().filter(|_| needs.full_distribution) else {
            return Ok(());
        };
        let (kind, remedy) = if sampling.greedy {
            ("a greedy sample", "sample at a --temperature above 0")
        } else if sampling.is_truncated() {
            (
                "a sample of truncated sampling (top-p, top-k or min-p)",
                "sample without --top-p, --top-k and --min-p",
            )
        } else {
            return Ok(());
        };
        let cause =
            format!("{kind}: its log-probabilities are not those of the distribution it was sampled from");
        Err(sample.failure(line, cause).hint(format!("{remedy}, or pass --allow-truncated-sampling")))
    }

    fn check_version(&mut self, sample: &Sample, line: &Line) -> Result<()> {
        let version = sample.policy_version.as_deref().unwrap_or_default();
        match &self.version {
            None => self.version = Some((version.to_owned(), line.location())),
            Some((first, _)) if first == version => {}
            Some((first, place)) => {
                let cause = format!("policy_version is {version}, but {first} at {place}");
                return Err(sample
                    .failure(line, cause)
                    .hint("an update is on-policy: all samples of a policy come from one version of it"));
            }
        }
        Ok(())
    }

    /// Index of an agent, by first appearance.
    fn agent(&mut self, name: &str) -> u32 {
        let known = self.agents.iter().position(|agent| agent == name);
        known.unwrap_or_else(|| {
            self.agents.push(name.to_owned());
            self.agents.len() - 1
        }) as u32
    }

    /// Puts samples of shards in the order of their episodes, as one process writes them, and numbers tasks, groups and
    /// agents anew: however shards were joined, the result is the same. Leaves them as they are where an episode's name
    /// has another form.
    pub fn sort(&mut self) {
        if !self.sharded || self.rows.iter().any(|row| row.episode.is_none()) {
            return;
        }
        self.rows.sort_by_key(|row| row.episode);
        let (mut tasks, mut groups, mut agents) = (HashMap::new(), HashMap::new(), HashMap::new());
        for row in &mut self.rows {
            row.task = intern(&mut tasks, row.task);
            row.group = intern(&mut groups, row.group);
            row.agent = row.agent.map(|agent| intern(&mut agents, agent));
        }
        let before = std::mem::take(&mut self.agents);
        let mut order: Vec<(u32, u32)> = agents.into_iter().map(|(before, after)| (after, before)).collect();
        order.sort_unstable();
        self.agents = order.into_iter().map(|(_, agent)| before[agent as usize].clone()).collect();
    }

    /// Returns true if samples come from several shards, so that they may have another order in the end.
    pub fn is_sharded(&self) -> bool {
        self.sharded
    }

    fn store(&mut self, ids: &[u32]) -> Range<usize> {
        let start = self.ids.len();
        self.ids.extend_from_slice(ids);
        start..self.ids.len()
    }

    fn store_prompt(&mut self, prompt: &[u32]) -> Range<usize> {
        match self.rows.last() {
            Some(last) if self.ids[last.prompt.clone()] == *prompt => last.prompt.clone(),
            _ => self.store(prompt),
        }
    }

    /// The tokens of a sample.
    pub fn sequence(&self, index: usize) -> Sequence<'_> {
        let row = &self.rows[index];
        Sequence { prompt: &self.ids[row.prompt.clone()], completion: &self.ids[row.completion.clone()] }
    }

    /// The recorded log-probabilities of a sample's completion; zeros where they were not needed.
    pub fn logprobs(&self, index: usize) -> &[f32] {
        &self.logprobs[self.rows[index].completion.clone()]
    }

    /// Completion tokens of all samples.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(Row::length).sum()
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// For each group, true if every advantage in it is 0.
    pub fn flat_groups(&self) -> Vec<bool> {
        let mut flat = vec![true; self.groups.len()];
        for row in &self.rows {
            flat[row.group as usize] &= row.advantage == 0.0;
        }
        flat
    }

    /// BLAKE3 over everything that affects the result: tokens, log-probabilities, temperatures, advantages, tasks and
    /// groups, in the order of the samples.
    pub fn input_digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let mut unhashed: Vec<u8> = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            let Sequence { prompt, completion } = self.sequence(index);
            let logprobs = if self.recorded { self.logprobs(index) } else { &[] };
            let sizes = [prompt.len() as u64, completion.len() as u64, logprobs.len() as u64];
            unhashed.extend_from_slice(bytemuck::cast_slice(&sizes));
            unhashed.extend_from_slice(bytemuck::cast_slice(prompt));
            unhashed.extend_from_slice(bytemuck::cast_slice(completion));
            unhashed.extend_from_slice(bytemuck::cast_slice(logprobs));
            unhashed.extend_from_slice(&row.temperature.to_le_bytes());
            unhashed.extend_from_slice(&row.advantage.to_le_bytes());
            // The hasher is fast over many bytes at once.
            if unhashed.len() >= HASH_BUFFER {
                hasher.update(&unhashed);
                unhashed.clear();
            }
        }
        hasher.update(&unhashed);
        for row in &self.rows {
            hasher.update(bytemuck::cast_slice(&[row.task, row.group]));
        }
        hasher.finalize()
    }
}

/// The number of a key, counted by first appearance.
fn intern<K: Eq + Hash>(known: &mut HashMap<K, u32>, key: K) -> u32 {
    let next = known.len() as u32;
    *known.entry(key).or_insert(next)
}

/// The number of a name, which is copied only at its first appearance.
fn intern_name(known: &mut HashMap<String, u32>, name: &str) -> u32 {
    match known.get(name) {
        Some(&number) => number,
        None => intern(known, name.to_owned()),
    }
}

/// The step and index in the name of an episode.
fn parse_episode_key(episode: &str) -> EpisodeKey {
    let (step, index) = episode.split_once('.')?;
    Some((step.parse().ok()?, index.parse().ok()?))
}

/// The task of a sample, else its episode, else its group; a sample without any is alone.
fn task_key<'a>(sample: &'a Sample, line: &Line) -> Cow<'a, str> {
    let key = sample.task.as_deref().or(sample.episode.as_deref()).or(sample.group.as_deref());
    key.map_or_else(|| line.location().into(), Cow::Borrowed)
}

/// The group that `group` wrote; without that stage, the candidates of one agent at one turn of one episode.
fn group_key<'a>(sample: &'a Sample, line: &Line) -> Cow<'a, str> {
    match (&sample.group, &sample.episode, sample.turn, &sample.agent) {
        (Some(group), ..) => Cow::Borrowed(group),
        (None, Some(episode), Some(turn), Some(agent)) => format!("{episode}/{turn}/{agent}").into(),
        _ => line.location().into(),
    }
}
