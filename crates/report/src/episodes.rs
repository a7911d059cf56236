//! Sampled episodes for the page's browser: a few of a few steps, with every candidate of every turn.
//!
//! A run holds millions of candidates and a page should stay a few megabytes, so the choice is fixed and
//! stated on the page: evenly spaced steps, and of each the first solved and the first unsolved episodes.
//! Long texts are cut in the middle.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use record::failure::Result;
use record::line::{self, Episode, ErrorLine, Joint};
use record::read::{Kind, Line};
use record::sample::{Message, Sample};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::boards::Boards;
use crate::stream_summary::raw;
use crate::vocabulary::Vocabularies;

/// The longest text that is shown whole, in characters.
const LONGEST: usize = 4000;

/// Solved and unsolved episodes of a stream that are shown, each.
const EPISODES: usize = 2;

/// At most `count` of the steps, spread evenly, the first and the last among them.
pub fn spread(steps: &[u64], count: usize) -> Vec<u64> {
    if steps.len() <= count {
        return steps.to_vec();
    }
    let (last, gaps) = (steps.len() - 1, count.max(2) - 1);
    let mut spread: Vec<u64> = (0..=gaps).map(|gap| steps[(gap * last + gaps / 2) / gaps]).collect();
    spread.dedup();
    spread
}

/// Sampled episodes of one stream.
#[derive(Debug, Serialize, Deserialize)]
pub struct EpisodeSet {
    /// The training step.
    pub step: u64,
    /// True if the stream is an evaluation's.
    pub held_out: bool,
    /// Episodes of the stream.
    pub total: u64,
    /// The shown episodes in stream order, each an [`EpisodeTree`] as JSON.
    pub episodes: Vec<Box<RawValue>>,
}

/// One episode with all its candidates; in parallel sampling the parallel episodes of one task.
#[derive(Debug, Default, Serialize)]
pub struct EpisodeTree {
    /// Its name.
    pub episode: String,
    pub task: String,
    /// Its environment.
    pub env: String,
    /// How it ended; in parallel sampling one for each branch.
    pub ended: Vec<Ended>,
    /// Why it could not be scored.
    pub errors: Vec<String>,
    /// One for each turn, node and agent, in the order of the stream.
    pub groups: Vec<Candidates>,
    /// The board at the end, if the environment has boards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    /// Joint actions, in the order of the stream.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub joint: Vec<ScoredJoint>,
}

/// A joint action.
#[derive(Debug, Serialize)]
pub struct ScoredJoint {
    id: String,
    parent: Option<String>,
    node: Option<String>,
    turn: u32,
    members: Vec<String>,
    reward: Option<f64>,
    selected: bool,
    terminated: bool,
}

/// The end of an episode.
#[derive(Debug, Serialize)]
pub struct Ended {
    /// True if the task was solved.
    pub success: bool,
    stop: String,
    /// Turns that were started.
    pub turns: u32,
    reward: Option<f64>,
}

/// The candidates of one agent at one turn.
#[derive(Debug, Serialize)]
pub struct Candidates {
    /// From 0.
    pub turn: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Who acts.
    pub agent: String,
    /// The board before them, where the group before saw another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    policy: String,
    prompt: Vec<Message>,
    members: Vec<Candidate>,
}

impl Candidates {
    /// The text of the candidate that was executed.
    pub fn executed(&self) -> Option<&str> {
        self.members.iter().find(|member| member.selected).map(|member| &*member.text)
    }
}

#[derive(Debug, Serialize)]
struct Candidate {
    id: String,
    /// The candidate whose action led to the state acted on.
    parent: Option<String>,
    branch: u32,
    text: String,
    tokens: usize,
    logprob: Option<f64>,
    /// Characters that each token said, and its log-probability in hundredths, where its vocabulary is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pieces: Option<(Vec<usize>, Vec<i32>)>,
    reward: Option<f64>,
    team: Option<f64>,
    local: Option<f64>,
    components: BTreeMap<String, f64>,
    /// What the environment says about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<Value>,
    advantage: Option<f64>,
    selected: bool,
    cut: bool,
    terminated: bool,
    /// Where it differs from the group's, as in parallel sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<Vec<Message>>,
}

/// A run's knowledge about a stream's episodes that is not in the stream.
#[derive(Default)]
pub struct EpisodeContext {
    /// Draws the environment for a person.
    pub boards: Boards,
    /// What tokens are called.
    pub vocabularies: Rc<RefCell<Vocabularies>>,
}

/// Chooses episodes of one stream as it is read.
pub struct EpisodeSampler {
    set: EpisodeSet,
    wanted: Vec<String>,
    /// Episodes that go on, each with the number of its parallel episodes.
    pending: Vec<(EpisodeTree, u32)>,
    context: EpisodeContext,
    solved: usize,
    unsolved: usize,
}

impl EpisodeSampler {
    /// A sampler for the stream of a step; it also takes the episodes that are `wanted` by name.
    pub fn new(step: u64, held_out: bool, wanted: &[String], context: EpisodeContext) -> Self {
        let set = EpisodeSet { step, held_out, total: 0, episodes: Vec::new() };
        EpisodeSampler { set, wanted: wanted.to_vec(), pending: Vec::new(), context, solved: 0, unsolved: 0 }
    }

    /// Adds a line; `sample` is its parsed form if it is a sample.
    pub fn take(&mut self, line: &Line, sample: Option<&Sample>) -> Result<()> {
        let full = self.wanted.is_empty() && self.solved >= EPISODES && self.unsolved >= EPISODES;
        match (line.kind, sample) {
            (Kind::Sample, Some(sample)) if !full => self.sample(sample),
            (Kind::Served, _) if !full => {
                let text = served(line)?;
                self.sample(&serde_json::from_str(&text).map_err(|error| line.failure(error))?);
            }
            (Kind::Episode, _) => {
                self.set.total += 1;
                if !full {
                    self.episode(&line::parse(line)?)?;
                }
            }
            (Kind::Joint, _) if !full => {
                let joint = Joint::parse(line)?;
                self.tree(&joint.episode).0.joint.push(ScoredJoint {
                    id: joint.id,
                    parent: joint.parent,
                    node: joint.node,
                    turn: joint.turn,
                    members: joint.members,
                    reward: joint.reward,
                    selected: joint.selected,
                    terminated: joint.terminated,
                });
            }
            (Kind::Error, _) if !full => {
                let error: ErrorLine = line::parse(line)?;
                let text = format!("{}: {}", error.boundary, shortened(&error.message));
                self.tree(&error.episode).0.errors.push(text);
            }
            _ => {}
        }
        Ok(())
    }

    fn tree(&mut self, name: &str) -> &mut (EpisodeTree, u32) {
        let index = self.pending.iter().position(|(tree, _)| tree.episode == name).unwrap_or_else(|| {
            self.pending.push((EpisodeTree { episode: name.to_owned(), ..EpisodeTree::default() }, 1));
            self.pending.len() - 1
        });
        &mut self.pending[index]
    }

    fn sample(&mut self, sample: &Sample) {
        let vocabularies = Rc::clone(&self.context.vocabularies);
        let (tree, parallel) = self.tree(sample.episode.as_deref().unwrap_or_default());
        if sample.is_parallel() {
            *parallel = sample.branches.unwrap_or(1);
        }
        let pieces = || {
            let text = sample.completion.as_deref().filter(|text| text.chars().count() <= LONGEST)?;
            let lengths = vocabularies
                .borrow_mut()
                .get(sample.policy.as_deref()?)?
                .lengths(text, sample.completion_ids.as_deref()?)?;
            let hundredths = |logprob: &f32| (100.0 * logprob).round() as i32;
            Some((lengths, sample.completion_logprobs.as_ref()?.iter().map(hundredths).collect()))
        };
        tree.add(sample, pieces());
    }

    /// Records how an episode ended, and keeps or drops it once all its parallel episodes have ended.
    fn episode(&mut self, episode: &Episode) -> Result<()> {
        let (tree, parallel) = self.tree(&episode.episode);
        tree.task.clone_from(&episode.task);
        tree.env.clone_from(&episode.env);
        tree.ended.push(Ended {
            success: episode.success,
            stop: episode.stop.clone(),
            turns: episode.turns,
            reward: episode.reward,
        });
        if tree.ended.len() < *parallel as usize {
            return Ok(());
        }
        let solved = tree.ended.iter().any(|ended| ended.success);
        let index = self.pending.iter().position(|(tree, _)| tree.episode == episode.episode);
        let ended = index.map(|index| self.pending.remove(index).0);
        let kept = if solved { &mut self.solved } else { &mut self.unsolved };
        if *kept < EPISODES || self.wanted.contains(&episode.episode) {
            *kept += 1;
            if let Some(mut tree) = ended {
                self.context.boards.draw(&mut tree);
                self.set.episodes.push(raw(&tree)?);
            }
        }
        Ok(())
    }

    /// The chosen episodes.
    pub fn close(self) -> EpisodeSet {
        self.set
    }
}

impl EpisodeTree {
    fn add(&mut self, sample: &Sample, pieces: Option<(Vec<usize>, Vec<i32>)>) {
        let (turn, agent) = (sample.turn.unwrap_or_default(), sample.agent.as_deref().unwrap_or_default());
        let prompt = sample.prompt.as_deref().unwrap_or_default();
        let node = sample.node.as_deref();
        let is_own =
            |group: &Candidates| group.turn == turn && group.agent == agent && group.node.as_deref() == node;
        let index = self.groups.iter().position(is_own);
        let index = index.unwrap_or_else(|| {
            self.groups.push(Candidates {
                turn,
                node: node.map(str::to_owned),
                agent: agent.to_owned(),
                board: None,
                policy: sample.policy.as_deref().unwrap_or_default().to_owned(),
                prompt: shown(prompt),
                members: Vec::new(),
            });
            self.groups.len() - 1
        });
        let group = &mut self.groups[index];
        let mut member = Candidate { pieces, ..Candidate::of(sample) };
        if sample.is_parallel() {
            member.prompt = Some(shown(prompt)).filter(|prompt| *prompt != group.prompt);
        }
        group.members.push(member);
    }
}

impl Candidate {
    fn of(sample: &Sample) -> Self {
        let logprobs = sample.completion_logprobs.as_deref();
        let components = sample.reward_components.iter().flatten();
        Candidate {
            id: sample.id.as_deref().unwrap_or_default().to_owned(),
            parent: sample.parent.as_deref().map(str::to_owned),
            branch: sample.branch.unwrap_or_default(),
            text: shortened(sample.completion.as_deref().unwrap_or_default()),
            tokens: sample.completion_ids.as_ref().map_or(0, Vec::len),
            pieces: None,
            logprob: logprobs.map(|logprobs| logprobs.iter().map(|&logprob| f64::from(logprob)).sum()),
            reward: sample.reward.flatten(),
            team: sample.rewards.map(|rewards| rewards.team),
            local: sample.rewards.map(|rewards| rewards.local),
            components: components.map(|(name, value)| (name.to_string(), *value)).collect(),
            info: sample.info.clone(),
            advantage: sample.advantage.flatten(),
            selected: sample.selected == Some(true),
            cut: sample.finish_reason.as_deref() == Some("length"),
            terminated: sample.terminated == Some(true),
            prompt: None,
        }
    }
}

/// A line of a served agent or an opponent as a sample with the fields that it has.
fn served(line: &Line) -> Result<String> {
    let mut value: Value = line::parse(line)?;
    value["type"] = "sample".into();
    value["policy"] = match (value["model"].take(), &value["policy"], &value["policy_version"]) {
        // An opponent of self-play.
        (Value::Null, Value::String(policy), Value::String(version)) => format!("{policy} {version}").into(),
        (model, ..) => model,
    };
    Ok(value.to_string())
}

fn shown(prompt: &[Message]) -> Vec<Message> {
    prompt
        .iter()
        .map(|message| Message { role: message.role.clone(), content: shortened(&message.content) })
        .collect()
}

/// The text, without its middle where it is longer than [`LONGEST`].
fn shortened(text: &str) -> String {
    let count = text.chars().count();
    if count <= LONGEST {
        return text.to_owned();
    }
    let half = LONGEST / 2;
    let at = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(at, _)| at);
    format!(
        "{}\n[… {} characters left out …]\n{}",
        &text[..at(half)],
        count - 2 * half,
        &text[at(count - half)..]
    )
}

/// Drops episodes, the last of each stream first, until the rest takes at most `budget` bytes as JSON. The
/// first episode of each stream goes last, later streams before earlier ones. Returns the number of dropped
/// episodes.
pub fn fit(sets: &mut Vec<EpisodeSet>, budget: usize) -> usize {
    let size = |set: &EpisodeSet| set.episodes.iter().map(|tree| tree.get().len()).collect();
    let sizes: Vec<Vec<usize>> = sets.iter().map(size).collect();
    let deepest = sizes.iter().map(Vec::len).max().unwrap_or(0);
    let (mut used, mut dropped) = (0, 0);
    let mut kept = vec![0; sets.len()];
    for depth in 0..deepest {
        for (sizes, kept) in sizes.iter().zip(&mut kept) {
            let Some(size) = sizes.get(depth) else { continue };
            if *kept == depth && used + size <= budget {
                used += size;
                *kept += 1;
            } else {
                dropped += 1;
            }
        }
    }
    for (set, kept) in sets.iter_mut().zip(kept) {
        set.episodes.truncate(kept);
    }
    sets.retain(|set| !set.episodes.is_empty());
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_steps_hold_both_ends() {
        let all: Vec<u64> = (0..=80).collect();
        assert_eq!(spread(&all, 5), [0, 20, 40, 60, 80]);
        assert_eq!(spread(&[0, 10, 20], 5), [0, 10, 20]);
        assert_eq!(spread(&[], 5), [0; 0]);
        assert_eq!(spread(&all, 1), [0, 80]);
    }

    #[test]
    fn long_texts_lose_their_middle_between_characters() {
        let text = "é".repeat(LONGEST + 7);
        let short = shortened(&text);
        assert!(short.contains("[… 7 characters left out …]"), "{short}");
        assert_eq!(shortened("é"), "é");
    }

    #[test]
    fn budget_keeps_the_first_episode_of_each_stream() {
        let tree =
            |name: &str| raw(&EpisodeTree { episode: name.to_owned(), ..EpisodeTree::default() }).unwrap();
        let set = |step| EpisodeSet { step, held_out: false, total: 2, episodes: vec![tree("a"), tree("b")] };
        let size = tree("a").get().len();
        let mut sets = vec![set(1), set(2)];
        assert_eq!(fit(&mut sets, 3 * size), 1);
        assert_eq!((sets[0].episodes.len(), sets[1].episodes.len()), (2, 1));
        assert_eq!(fit(&mut sets, 0), 3);
        assert!(sets.is_empty());
    }
}
