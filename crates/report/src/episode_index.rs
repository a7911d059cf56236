//! All episodes of a stream in a few bytes each, so that a page can search, filter and sort a whole run.

use std::collections::{BTreeMap, HashMap};

use record::failure::Result;
use record::line::{self, Episode};
use record::read::{Kind, Line};
use record::sample::Sample;
use serde::{Deserialize, Serialize};

/// The episodes of a stream, a column for each fact. Digits are in base 36, where `z` means 35 or more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpisodeIndex {
    /// Their names; empty where they are `STEP.0`, `STEP.1`, …
    pub names: Vec<String>,
    /// `1` solved, `0` not solved, `e` could not be scored.
    pub verdicts: String,
    /// A digit each: turns.
    pub turns: String,
    /// A digit each: groups.
    pub groups: String,
    /// A digit each: groups whose members all earned the same.
    pub flat: String,
    /// Rewards of the executed paths, to three decimals.
    pub rewards: Vec<Option<f64>>,
}

/// Makes an index while a stream is read.
#[derive(Debug, Default)]
pub struct Indexer {
    episodes: BTreeMap<(usize, String), Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    solved: bool,
    error: bool,
    turns: u32,
    reward: Option<f64>,
    /// Groups by turn, node and agent.
    groups: HashMap<String, Compared>,
}

/// A group: its first reward, whether all are the same, and, once a rule has scored it, whether an advantage is not 0.
#[derive(Debug)]
struct Compared {
    reward: Option<f64>,
    same: bool,
    taught: Option<bool>,
}

impl Compared {
    fn is_flat(&self) -> bool {
        self.taught.map_or(self.same, |taught| !taught)
    }
}

impl Indexer {
    /// Adds a line; `sample` is its parsed form if it is a sample.
    pub fn take(&mut self, line: &Line, sample: Option<&Sample>) -> Result<()> {
        if let Some(sample) = sample {
            let reward = sample.reward.flatten();
            let place = format!(
                "{} {} {}",
                sample.turn.unwrap_or_default(),
                sample.agent.as_deref().unwrap_or_default(),
                sample.node.as_deref().unwrap_or_default()
            );
            let entry = self.entry(sample.episode.as_deref().unwrap_or_default());
            let new = Compared { reward, same: true, taught: None };
            let group = entry.groups.entry(place).or_insert(new);
            group.same &= group.reward == reward;
            if let Some(advantage) = sample.advantage.flatten() {
                group.taught = Some(group.taught.unwrap_or(false) || advantage != 0.0);
            }
        } else if line.kind == Kind::Episode {
            let episode: Episode = line::parse(line)?;
            let entry = self.entry(&episode.episode);
            entry.solved |= episode.success;
            entry.error |= episode.stop == "error";
            entry.turns = entry.turns.max(episode.turns);
            entry.reward = [entry.reward, episode.reward].into_iter().flatten().reduce(f64::max);
        }
        Ok(())
    }

    /// By length first, so that 4.9 comes before 4.10.
    fn entry(&mut self, name: &str) -> &mut Entry {
        self.episodes.entry((name.len(), name.to_owned())).or_default()
    }

    /// The index of the stream of `step`.
    pub fn close(self, step: u64) -> EpisodeIndex {
        let mut index = EpisodeIndex::default();
        let mut plain = true;
        for (place, ((_, name), entry)) in self.episodes.into_iter().enumerate() {
            plain &= name == format!("{step}.{place}");
            index.names.push(name);
            index.verdicts.push(if entry.solved {
                '1'
            } else if entry.error {
                'e'
            } else {
                '0'
            });
            index.turns.push(digit(entry.turns as usize));
            index.groups.push(digit(entry.groups.len()));
            index.flat.push(digit(entry.groups.values().filter(|group| group.is_flat()).count()));
            index.rewards.push(entry.reward.map(|reward| (reward * 1000.0).round() / 1000.0));
        }
        if plain {
            index.names.clear();
        }
        index
    }
}

impl EpisodeIndex {
    /// Returns true if the stream of `step` has an episode of this name.
    pub fn has(&self, step: u64, name: &str) -> bool {
        let of_step = || name.strip_prefix(&format!("{step}."))?.parse::<usize>().ok();
        match self.names.is_empty() {
            true => of_step().is_some_and(|place| place < self.verdicts.len()),
            false => self.names.iter().any(|known| known == name),
        }
    }
}

fn digit(value: usize) -> char {
    char::from_digit(value.min(35) as u32, 36).unwrap_or('z')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_counts_groups_and_omits_regular_names() {
        let mut indexer = Indexer::default();
        for (episode, rewards) in [("7.10", [1.0, 1.0]), ("7.2", [0.0, 1.0])] {
            for reward in rewards {
                let sample =
                    Sample { episode: Some(episode.into()), reward: Some(Some(reward)), ..Sample::default() };
                let line = Line::parse("t", 1, "{\"type\":\"sample\",\"v\":1}".to_owned()).unwrap();
                indexer.take(&line, Some(&sample)).unwrap();
            }
        }
        let index = indexer.close(7);
        assert_eq!(index.names, ["7.2", "7.10"]);
        assert_eq!((&*index.groups, &*index.flat, &*index.verdicts), ("11", "01", "00"));
        assert!(index.has(7, "7.10") && !index.has(7, "7.1"));
        let plain = EpisodeIndex { verdicts: "10".to_owned(), ..EpisodeIndex::default() };
        assert!(plain.has(7, "7.1") && !plain.has(7, "7.2") && !plain.has(7, "8.0"));
    }
}
