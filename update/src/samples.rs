//! One policy's samples in memory: token ids, log-probabilities and advantages, no text.
//!
//! Consecutive equal prompts are stored once, so that a group stores its prompt once. Everything that affects the result
//! enters a digest, by which a repeated call recognizes what it already published.

use std::collections::HashMap;
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
}

impl Row {
    /// Completion tokens, the stop token included.
    pub fn length(&self) -> usize {
        self.completion.len()
    }
}

/// The samples of one policy.
#[derive(Debug, Default)]
pub struct Samples {
    /// In stream order.
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
    hasher: blake3::Hasher,
    /// Bytes for the hasher, which is fast over many at once.
    unhashed: Vec<u8>,
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
    /// That the tokens were sampled from the full distribution.
    pub full_distribution: bool,
}

impl Samples {
    /// Adds a sample.
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
        let prompt = sample.prompt_ids.as_deref().unwrap_or_default();
        let completion = sample.completion_ids.as_deref().unwrap_or_default();
        let temperature = match &sample.sampling {
            // Greedy completions are recorded at temperature 1 whatever the temperature flag said.
            Some(sampling) if !sampling.greedy => sampling.temperature,
            _ => 1.0,
        };
        let advantage = sample.advantage.unwrap_or(1.0);
        let logprobs = match needs.logprobs {
            true => sample.completion_logprobs.as_deref().unwrap_or_default(),
            false => &[],
        };
        self.digest(prompt, completion, logprobs, temperature, advantage);
        self.step = self.step.max(sample.step);
        if let Some(agent) = &sample.agent
            && !self.agents.contains(agent)
        {
            self.agents.push(agent.clone());
        }
        self.largest_id = prompt.iter().chain(completion).copied().fold(self.largest_id, u32::max);
        let row = Row {
            prompt: self.store_prompt(prompt),
            completion: self.store(completion),
            advantage,
            temperature,
            reward: sample.reward.flatten(),
            task: number(&mut self.tasks, task_key(sample, line)),
            group: number(&mut self.groups, group_key(sample, line)),
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
            ("a greedy sample", "sample without --greedy")
        } else if sampling.top_p < 1.0 || sampling.top_k > 0 {
            ("a sample of truncated sampling (top-p or top-k)", "sample with --top-p 1 --top-k 0")
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
            None => self.version = Some((version.to_owned(), line.place())),
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

    fn digest(
        &mut self,
        prompt: &[u32],
        completion: &[u32],
        logprobs: &[f32],
        temperature: f32,
        advantage: f64,
    ) {
        let sizes = [prompt.len() as u64, completion.len() as u64, logprobs.len() as u64];
        self.unhashed.extend_from_slice(bytemuck::cast_slice(&sizes));
        self.unhashed.extend_from_slice(bytemuck::cast_slice(prompt));
        self.unhashed.extend_from_slice(bytemuck::cast_slice(completion));
        self.unhashed.extend_from_slice(bytemuck::cast_slice(logprobs));
        self.unhashed.extend_from_slice(&temperature.to_le_bytes());
        self.unhashed.extend_from_slice(&advantage.to_le_bytes());
        if self.unhashed.len() >= HASH_BUFFER {
            self.hasher.update(&self.unhashed);
            self.unhashed.clear();
        }
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

    /// Of each group: whether every advantage in it is 0.
    pub fn flat_groups(&self) -> Vec<bool> {
        let mut flat = vec![true; self.groups.len()];
        for row in &self.rows {
            flat[row.group as usize] &= row.advantage == 0.0;
        }
        flat
    }

    /// BLAKE3 over everything that affects the result: tokens, log-probabilities, temperatures, advantages, tasks and
    /// groups, in stream order.
    pub fn input_digest(&self) -> blake3::Hash {
        let mut hasher = self.hasher.clone();
        hasher.update(&self.unhashed);
        for row in &self.rows {
            hasher.update(bytemuck::cast_slice(&[row.task, row.group]));
        }
        hasher.finalize()
    }
}

/// The number of a key, counted by first appearance.
fn number(known: &mut HashMap<String, u32>, key: String) -> u32 {
    let next = known.len() as u32;
    *known.entry(key).or_insert(next)
}

/// The task of a sample, else its episode, else its group; a sample without any is alone.
fn task_key(sample: &Sample, line: &Line) -> String {
    let key = sample.task.as_ref().or(sample.episode.as_ref()).or(sample.group.as_ref());
    key.cloned().unwrap_or_else(|| line.place())
}

/// The group that `group` wrote; without that stage, the candidates of one agent at one turn of one episode.
fn group_key(sample: &Sample, line: &Line) -> String {
    match (&sample.group, &sample.episode, sample.turn, &sample.agent) {
        (Some(group), ..) => group.clone(),
        (None, Some(episode), Some(turn), Some(agent)) => format!("{episode}/{turn}/{agent}"),
        _ => line.place(),
    }
}
