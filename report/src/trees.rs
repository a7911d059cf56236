//! Sampled episodes for the page's browser: a few of a few steps, with every candidate of every turn.
//!
//! A run holds millions of candidates and a page should stay a few megabytes, so what is shown is a fixed choice that
//! the page states: steps spread evenly from the first to the last, and of each the first episodes that were solved
//! and the first that were not. Long texts lose their middle.

use std::collections::BTreeMap;

use record::failure::Result;
use record::line::{self, Episode, ErrorLine};
use record::read::Kind;
use record::sample::{Message, Sample};
use serde::Serialize;

use crate::stream::Seen;

/// The longest text that is shown whole, in characters.
const LONGEST: usize = 4000;

/// How much is shown.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Steps, spread evenly; the first and the last are among them.
    pub steps: usize,
    /// Solved episodes of each, and as many unsolved ones.
    pub episodes: usize,
}

impl Limits {
    /// The steps to show out of all.
    pub fn shown(self, all: &[u64]) -> Vec<u64> {
        if all.len() <= self.steps {
            return all.to_vec();
        }
        let last = all.len() - 1;
        let places = self.steps.max(2) - 1;
        let mut shown: Vec<u64> =
            (0..=places).map(|place| all[(place * last + places / 2) / places]).collect();
        shown.dedup();
        shown
    }
}

/// Episodes of one stream.
#[derive(Debug, Serialize)]
pub struct Tree {
    /// The training step.
    pub step: u64,
    /// Whether the stream is an evaluation's.
    pub held_out: bool,
    /// Episodes of the stream, of which `episodes` is a part.
    pub of: u64,
    /// In the order of the stream.
    pub episodes: Vec<Played>,
}

/// One episode; in parallel sampling the episodes of one task side by side.
#[derive(Debug, Default, Serialize)]
pub struct Played {
    /// Its name.
    pub episode: String,
    /// Its task.
    pub task: String,
    /// Its environment.
    pub env: String,
    /// How it ended; in parallel sampling one for each branch.
    pub ended: Vec<Ended>,
    /// Why it could not be scored.
    pub errors: Vec<String>,
    /// One for each turn and agent, in the order of the stream.
    pub groups: Vec<Candidates>,
}

/// How an episode ended.
#[derive(Debug, Serialize)]
pub struct Ended {
    success: bool,
    stop: String,
    turns: u32,
    reward: Option<f64>,
}

/// The candidates of one agent at one turn.
#[derive(Debug, Serialize)]
pub struct Candidates {
    turn: u32,
    agent: String,
    policy: String,
    prompt: Vec<Message>,
    members: Vec<Member>,
}

/// One candidate.
#[derive(Debug, Serialize)]
struct Member {
    id: String,
    /// The candidate whose action led to the state acted on.
    parent: Option<String>,
    branch: u32,
    text: String,
    tokens: usize,
    logprob: Option<f64>,
    reward: Option<f64>,
    team: Option<f64>,
    local: Option<f64>,
    components: BTreeMap<String, f64>,
    advantage: Option<f64>,
    selected: bool,
    cut: bool,
    terminated: bool,
    /// Where it differs from the group's, as in parallel sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<Vec<Message>>,
}

/// Chooses episodes of one stream as it is read.
#[derive(Debug)]
pub struct Collector {
    tree: Tree,
    limits: Limits,
    pending: Vec<(Played, u32)>,
    solved: usize,
    unsolved: usize,
}

impl Collector {
    /// A collector for the stream of a step.
    pub fn new(step: u64, held_out: bool, limits: Limits) -> Self {
        let tree = Tree { step, held_out, of: 0, episodes: Vec::new() };
        Collector { tree, limits, pending: Vec::new(), solved: 0, unsolved: 0 }
    }

    /// Takes a line in.
    ///
    /// # Errors
    /// 65 when it breaks the record.
    pub fn take(&mut self, seen: &Seen) -> Result<()> {
        match seen {
            Seen::Sample(sample) if !self.is_full() => self.sample(sample),
            Seen::Other(line) if line.kind == Kind::Episode => self.episode(&line::parse(line)?),
            Seen::Other(line) if line.kind == Kind::Error && !self.is_full() => {
                let error: ErrorLine = line::parse(line)?;
                let text = format!("{}: {}", error.boundary, shortened(&error.message));
                self.played(&error.episode).0.errors.push(text);
            }
            _ => {}
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.solved >= self.limits.episodes && self.unsolved >= self.limits.episodes
    }

    fn played(&mut self, name: &str) -> &mut (Played, u32) {
        let place = self.pending.iter().position(|(played, _)| played.episode == name).unwrap_or_else(|| {
            self.pending.push((Played { episode: name.to_owned(), ..Played::default() }, 1));
            self.pending.len() - 1
        });
        &mut self.pending[place]
    }

    fn sample(&mut self, sample: &Sample) {
        let (played, side_by_side) = self.played(sample.episode.as_deref().unwrap_or_default());
        if sample.is_parallel() {
            *side_by_side = sample.branches.unwrap_or(1);
        }
        played.add(sample);
    }

    fn episode(&mut self, episode: &Episode) {
        self.tree.of += 1;
        if self.is_full() {
            return;
        }
        let (played, side_by_side) = self.played(&episode.episode);
        played.task.clone_from(&episode.task);
        played.env.clone_from(&episode.env);
        played.ended.push(Ended {
            success: episode.success,
            stop: episode.stop.clone(),
            turns: episode.turns,
            reward: episode.reward,
        });
        if played.ended.len() >= *side_by_side as usize {
            self.decide(&episode.episode);
        }
    }

    /// Keeps a whole episode or lets it go.
    fn decide(&mut self, name: &str) {
        let Some(place) = self.pending.iter().position(|(played, _)| played.episode == name) else { return };
        let (played, _) = self.pending.remove(place);
        let kept = if played.ended.iter().any(|ended| ended.success) {
            &mut self.solved
        } else {
            &mut self.unsolved
        };
        if *kept < self.limits.episodes {
            *kept += 1;
            self.tree.episodes.push(played);
        }
    }

    /// What was chosen; none where the stream had no episode.
    pub fn close(self) -> Option<Tree> {
        (!self.tree.episodes.is_empty()).then_some(self.tree)
    }
}

impl Played {
    fn add(&mut self, sample: &Sample) {
        let (turn, agent) = (sample.turn.unwrap_or_default(), sample.agent.as_deref().unwrap_or_default());
        let prompt = sample.prompt.as_deref().unwrap_or_default();
        let place = self.groups.iter().position(|group| group.turn == turn && group.agent == agent);
        let place = place.unwrap_or_else(|| {
            self.groups.push(Candidates {
                turn,
                agent: agent.to_owned(),
                policy: sample.policy.clone().unwrap_or_default(),
                prompt: shown(prompt),
                members: Vec::new(),
            });
            self.groups.len() - 1
        });
        let group = &mut self.groups[place];
        let mut member = Member::of(sample);
        if sample.is_parallel() {
            member.prompt = Some(shown(prompt)).filter(|prompt| *prompt != group.prompt);
        }
        group.members.push(member);
    }
}

impl Member {
    fn of(sample: &Sample) -> Self {
        let logprobs = sample.completion_logprobs.as_deref();
        Member {
            id: sample.id.clone().unwrap_or_default(),
            parent: sample.parent.clone(),
            branch: sample.branch.unwrap_or_default(),
            text: shortened(sample.completion.as_deref().unwrap_or_default()),
            tokens: sample.completion_ids.as_ref().map_or(0, Vec::len),
            logprob: logprobs.map(|logprobs| logprobs.iter().map(|&logprob| f64::from(logprob)).sum()),
            reward: sample.reward.flatten(),
            team: sample.rewards.map(|rewards| rewards.team),
            local: sample.rewards.map(|rewards| rewards.local),
            components: sample.reward_components.clone().unwrap_or_default(),
            advantage: sample.advantage,
            selected: sample.selected == Some(true),
            cut: sample.finish_reason.as_deref() == Some("length"),
            terminated: sample.terminated == Some(true),
            prompt: None,
        }
    }
}

fn shown(prompt: &[Message]) -> Vec<Message> {
    prompt
        .iter()
        .map(|message| Message { role: message.role.clone(), content: shortened(&message.content) })
        .collect()
}

/// The text, its middle left out where it is longer than [`LONGEST`].
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

/// Drops episodes, the last of each stream first, until what is left takes at most `budget` bytes as JSON; the first
/// episode of each stream is given up last, and those of later streams first.
///
/// # Errors
/// None that a record can cause.
pub fn fit(trees: &mut Vec<Tree>, budget: usize) -> Result<usize> {
    let mut sizes = Vec::new();
    for tree in trees.iter() {
        let of: Result<Vec<usize>> =
            tree.episodes.iter().map(|played| Ok(record::splice::json(played)?.len())).collect();
        sizes.push(of?);
    }
    let deepest = sizes.iter().map(Vec::len).max().unwrap_or(0);
    let (mut used, mut dropped) = (0, 0);
    let mut kept = vec![0; trees.len()];
    for depth in 0..deepest {
        for (place, sizes) in sizes.iter().enumerate() {
            let Some(size) = sizes.get(depth) else { continue };
            if kept[place] == depth && used + size <= budget {
                used += size;
                kept[place] += 1;
            } else {
                dropped += 1;
            }
        }
    }
    for (tree, kept) in trees.iter_mut().zip(kept) {
        tree.episodes.truncate(kept);
    }
    trees.retain(|tree| !tree.episodes.is_empty());
    Ok(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_steps_are_spread_and_hold_both_ends() {
        let limits = Limits { steps: 5, episodes: 1 };
        let all: Vec<u64> = (0..=80).collect();
        assert_eq!(limits.shown(&all), [0, 20, 40, 60, 80]);
        assert_eq!(limits.shown(&[0, 10, 20]), [0, 10, 20]);
        assert_eq!(limits.shown(&[]), [0; 0]);
        assert_eq!(Limits { steps: 1, ..limits }.shown(&all), [0, 80]);
    }

    #[test]
    fn long_texts_lose_their_middle_between_characters() {
        let text = "é".repeat(LONGEST + 7);
        let short = shortened(&text);
        assert!(short.contains("[… 7 characters left out …]"), "{short}");
        assert_eq!(shortened("é"), "é");
    }

    #[test]
    fn a_budget_keeps_the_first_of_each_stream() {
        let played = |name: &str| Played { episode: name.to_owned(), ..Played::default() };
        let tree = |step| Tree { step, held_out: false, of: 2, episodes: vec![played("a"), played("b")] };
        let size = record::splice::json(&played("a")).unwrap().len();
        let mut trees = vec![tree(1), tree(2)];
        assert_eq!(fit(&mut trees, 3 * size).unwrap(), 1);
        assert_eq!((trees[0].episodes.len(), trees[1].episodes.len()), (2, 1));
        assert_eq!(fit(&mut trees, 0).unwrap(), 3);
        assert!(trees.is_empty());
    }
}
