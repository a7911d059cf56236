//! Credit by role, from the record alone: whose advantages are largest, and whether they go with success.
//!
//! By agent, of one training step: its share of the advantage mass, Σ|A|·n over its samples of n tokens;
//! mean, deviation and largest of A; the correlation of A with success, over samples on a path that was
//! played; and the cosine with the advantages that another rule gives the same samples.

use std::collections::{BTreeMap, HashMap};

use record::line::Episode;
use record::sample::Sample;

use crate::stats::RunningStats;

/// Share of the samples whose advantages are the largest.
const LARGEST: f64 = 0.01;

/// The credit of all agents of a step.
#[derive(Debug, Default)]
pub struct StepCredit {
    agents: BTreeMap<String, AgentCredit>,
    /// Advantages by episode, until its line says how it ended.
    open: HashMap<Played, BTreeMap<String, Sums>>,
    /// Advantages of another rule by sample, if there is one.
    other: Option<HashMap<String, f64>>,
}

#[derive(Clone, Debug, Default)]
pub struct AgentCredit {
    /// Σ|A|·n.
    pub mass: f64,
    pub advantage: RunningStats,
    paired: Sums,
    successes: f64,
    /// Σ A over samples of episodes that succeeded.
    succeeded: f64,
    /// |A|.
    sizes: Vec<f64>,
    /// Σ A·B, Σ A² and Σ B² over samples to which another rule gives B.
    products: (f64, f64, f64),
}

/// An episode, and which of those that share its name in parallel sampling.
type Played = (String, Option<u64>);

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: f64,
    sum: f64,
    squares: f64,
}

impl StepCredit {
    /// Compared with the advantages of another rule, by the `id` of samples.
    pub fn against(other: HashMap<String, f64>) -> Self {
        StepCredit { other: Some(other), ..StepCredit::default() }
    }

    /// Takes in a sample; one without an advantage says nothing.
    pub fn sample(&mut self, sample: &Sample) {
        let Some(advantage) = sample.advantage.flatten() else { return };
        let name = sample.agent.as_deref().unwrap_or_default().to_owned();
        let tokens = sample.completion_ids.as_ref().map_or(0, Vec::len) as f64;
        let agent = self.agents.entry(name.clone()).or_default();
        agent.mass += advantage.abs() * tokens;
        agent.advantage.push(advantage);
        agent.sizes.push(advantage.abs());
        let other = self.other.as_ref().and_then(|other| other.get(sample.id.as_deref()?));
        if let Some(other) = other {
            let (dot, own, their) = agent.products;
            agent.products = (dot + advantage * other, own + advantage * advantage, their + other * other);
        }
        let is_parallel = sample.is_parallel();
        if !is_parallel && sample.selected != Some(true) {
            return; // nobody knows how an episode with it would have ended
        }
        let branch = sample.branch.map(u64::from).filter(|_| is_parallel);
        let key = (sample.episode.as_deref().unwrap_or_default().to_owned(), branch);
        let episode = self.open.entry(key).or_default();
        let sums = episode.entry(name).or_default();
        sums.count += 1.0;
        sums.sum += advantage;
        sums.squares += advantage * advantage;
    }

    /// Takes in how an episode ended.
    pub fn episode(&mut self, episode: &Episode) {
        let branch = episode.extra.get("branch").and_then(serde_json::Value::as_u64);
        let played = self.open.remove(&(episode.episode.clone(), branch));
        for (name, sums) in played.into_iter().flatten() {
            let agent = self.agents.entry(name).or_default();
            agent.paired.count += sums.count;
            agent.paired.sum += sums.sum;
            agent.paired.squares += sums.squares;
            if episode.success {
                agent.successes += sums.count;
                agent.succeeded += sums.sum;
            }
        }
    }

    /// The credit of an agent, and its share of the mass of all; none without advantages.
    pub fn get(&self, agent: &str) -> Option<(&AgentCredit, Option<f64>)> {
        let all: f64 = self.agents.values().map(|agent| agent.mass).sum();
        let credit = self.agents.get(agent)?;
        Some((credit, (all > 0.0).then(|| credit.mass / all)))
    }
}

impl AgentCredit {
    /// Pearson's correlation of the advantage with success; none where one of both does not vary.
    pub fn correlation(&self) -> Option<f64> {
        let n = self.paired.count;
        let (mean, rate) = (self.paired.sum / n, self.successes / n);
        let covariance = self.succeeded / n - mean * rate;
        let deviation =
            (self.paired.squares / n - mean * mean).max(0.0).sqrt() * (rate * (1.0 - rate)).max(0.0).sqrt();
        (deviation > 1e-12).then(|| (covariance / deviation).clamp(-1.0, 1.0))
    }
}

impl AgentCredit {
    /// Mean |A| of the 1 % of the samples where it is largest, and of one at least.
    pub fn largest(&self) -> Option<f64> {
        let mut sizes = self.sizes.clone();
        sizes.sort_by(|one, other| other.total_cmp(one));
        sizes.truncate((sizes.len() as f64 * LARGEST).ceil() as usize);
        (!sizes.is_empty()).then(|| sizes.iter().sum::<f64>() / sizes.len() as f64)
    }

    /// The cosine with another rule's advantages; `None` without them, or if all of one rule are 0.
    pub fn cosine(&self) -> Option<f64> {
        let (dot, own, their) = self.products;
        (own > 0.0 && their > 0.0).then(|| dot / (own * their).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantage_that_follows_success_has_all_the_mass() {
        let mut credits = StepCredit::default();
        for (episode, success) in [("a", true), ("b", false), ("c", true), ("d", false)] {
            for (agent, advantage) in [("one", if success { 1.0 } else { -1.0 }), ("two", 0.0)] {
                credits.sample(&Sample {
                    agent: Some(agent.into()),
                    episode: Some(episode.into()),
                    advantage: Some(Some(advantage)),
                    selected: Some(true),
                    completion_ids: Some(vec![1, 2]),
                    ..Sample::default()
                });
            }
            let text = format!(
                "{{\"type\":\"episode\",\"v\":1,\"env\":\"e\",\"task\":\"t\",\"episode\":\"{episode}\",\"success\":{success},\"turns\":1,\"reward\":1,\"stop\":\"turns\"}}"
            );
            credits.episode(&serde_json::from_str(&text).unwrap());
        }
        let (one, share) = credits.get("one").unwrap();
        assert_eq!((one.mass, share, one.correlation()), (8.0, Some(1.0), Some(1.0)));
        assert_eq!((one.largest(), one.cosine()), (Some(1.0), None));
        assert_eq!((one.advantage.mean(), credits.get("two").unwrap().0.correlation()), (Some(0.0), None));
        assert!(credits.get("three").is_none());
    }

    /// The cosine of (1, −1, 0.5) with (2, 0, 1), and a sample that the other rule does not know.
    #[test]
    fn cosine_takes_samples_of_both_rules() {
        let other = [("a", 2.0), ("b", 0.0), ("c", 1.0)].map(|(id, value)| (id.to_owned(), value));
        let mut credits = StepCredit::against(HashMap::from(other));
        for (id, advantage) in [("a", 1.0), ("b", -1.0), ("c", 0.5), ("d", 9.0)] {
            credits.sample(&Sample {
                agent: Some("one".into()),
                id: Some(id.into()),
                advantage: Some(Some(advantage)),
                ..Sample::default()
            });
        }
        let cosine = credits.get("one").unwrap().0.cosine().unwrap();
        assert!((cosine - 2.5 / (2.25_f64 * 5.0).sqrt()).abs() < 1e-12, "{cosine}");
    }
}
