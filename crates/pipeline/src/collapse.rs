//! Detects collapse by comparing a run's last step with the steps before it. `--on-collapse` says what follows.
//!
//! docs/evaluation.md says from which runs the limits were found.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Success compares the last two steps with this many before them; other measures compare the last step with all seven.
const BEFORE: usize = 6;
/// Absolute change of a share that counts as large: of well-formed answers, or of truncated ones.
const MOVED: f64 = 0.3;
/// Success has fallen if its mean over the last two steps is this many standard errors
/// lower, and at most half.
const STANDARD_ERRORS: f64 = 3.5;
/// Entropy that grew by this factor, and by at least 1 nat, means that the policy samples noise.
const ENTROPY: f64 = 2.0;
/// Factor by which answer length must change, while success falls.
const LENGTH: f64 = 2.0;
/// Largest sound share of tokens with a ratio outside the clip range; above it, the update moved too far from its start.
const CLIPPED: f64 = 0.15;

/// One step's statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepHealth {
    episodes: f64,
    solved: f64,
    samples: f64,
    cut: f64,
    tokens: f64,
    /// Samples with a format, and well-formed ones among them; some environments report no format.
    with_format: f64,
    well_formed: f64,
    /// Nats per token, averaged over policies.
    entropy: Option<f64>,
    /// The largest value of any policy.
    clipped: f64,
}

impl StepHealth {
    /// Reads a step's metrics; `None` without metrics.
    pub fn of(metrics: &Path) -> Option<StepHealth> {
        let text = fs::read_to_string(metrics).ok()?;
        let mut health = StepHealth::default();
        let mut entropies = Vec::new();
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            match line["type"].as_str() {
                Some("metrics") => {
                    entropies.extend(line["entropy"].as_f64());
                    health.clipped = health.clipped.max(line["clip_ratio"].as_f64().unwrap_or_default());
                }
                Some("end") => health.take_end(&line),
                _ => {}
            }
        }
        if !entropies.is_empty() {
            health.entropy = Some(entropies.iter().sum::<f64>() / entropies.len() as f64);
        }
        (health.episodes > 0.0 && health.samples > 0.0).then_some(health)
    }

    /// Share of episodes that succeed.
    pub fn success(&self) -> f64 {
        self.solved / self.episodes
    }

    /// Adds the counts of `rollout`, which may have run as several shards.
    fn take_end(&mut self, end: &Value) {
        end["after"].as_array().into_iter().flatten().for_each(|before| self.take_end(before));
        if end["stage"] != "rollout" {
            return;
        }
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let counts = &end["counts"];
        self.episodes += number(&counts["episodes"]);
        self.solved += number(&counts["solved"]);
        for agent in counts["agents"].as_object().into_iter().flat_map(|agents| agents.values()) {
            let samples = number(&agent["samples"]);
            if let Some(format) = agent["reward_components"]["format"].as_f64() {
                self.with_format += samples;
                self.well_formed += format * samples;
            }
            self.samples += samples;
            self.cut += number(&agent["cut"]);
            self.tokens += number(&agent["completion_tokens"]);
        }
    }
}

/// The last steps of a run.
#[derive(Debug, Default)]
pub struct Watch {
    steps: VecDeque<StepHealth>,
    /// True if the last step was reported as a collapse, which is reported once.
    has_warned: bool,
}

impl Watch {
    /// Number of steps before the last one that restore the state after a restart.
    pub const STEPS: u64 = BEFORE as u64;

    /// Adds a step. Returns the signs of collapse if the previous step had none.
    pub fn step(&mut self, health: StepHealth) -> Option<String> {
        let signs = signs(self.steps.make_contiguous(), &health);
        self.steps.push_back(health);
        if self.steps.len() > BEFORE + 1 {
            self.steps.pop_front();
        }
        let is_new = !std::mem::replace(&mut self.has_warned, !signs.is_empty());
        (is_new && !signs.is_empty()).then(|| signs.join(", "))
    }
}

/// The measures that moved far in a step, compared with the steps before it.
fn signs(before: &[StepHealth], now: &StepHealth) -> Vec<String> {
    let mut signs = Vec::new();
    let mean = |of: &dyn Fn(&StepHealth) -> Option<f64>| -> Option<f64> {
        let values: Vec<f64> = before.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let success = success(before, now);
    // A policy that learns a format moves far in its first steps, too.
    if now.clipped >= CLIPPED && success.is_some_and(|success| success.now < success.before) {
        signs.push(format!("{:.0} % of tokens outside the clip range", 100.0 * now.clipped));
    }
    if let Some(success) = success.filter(|success| success.fell()) {
        signs.push(format!("success in training {:.3} to {:.3}", success.before, success.now));
    }
    let cut = |health: &StepHealth| Some(health.cut / health.samples);
    let format =
        |health: &StepHealth| (health.with_format > 0.0).then(|| health.well_formed / health.with_format);
    if let (Some(old), Some(new)) = (mean(&cut), cut(now))
        && new - old >= MOVED
    {
        signs.push(format!("answers cut by the limit {:.0} to {:.0} %", 100.0 * old, 100.0 * new));
    }
    if let (Some(old), Some(new)) = (mean(&format), format(now))
        && old - new >= MOVED
    {
        signs.push(format!("well-formed answers {:.0} to {:.0} %", 100.0 * old, 100.0 * new));
    }
    let length = |health: &StepHealth| Some(health.tokens / health.samples);
    if let (Some(old), Some(new)) = (mean(&length), length(now))
        && (new >= LENGTH * old || old >= LENGTH * new)
        && success.is_some_and(|success| success.now < success.before)
    {
        signs.push(format!("tokens of an answer {old:.1} to {new:.1}"));
    }
    if let (Some(old), Some(new)) = (mean(&|health| health.entropy), now.entropy)
        && new >= ENTROPY * old
        && new - old >= 1.0
    {
        signs.push(format!("entropy {old:.1} to {new:.1} nats"));
    }
    signs
}

/// Success over the last two steps, and over the steps before them.
#[derive(Clone, Copy, Debug)]
struct Success {
    before: f64,
    now: f64,
    /// The probability of their difference by chance.
    standard_error: f64,
}

impl Success {
    /// Returns true if success fell significantly and at least by half.
    fn fell(self) -> bool {
        self.now <= self.before / 2.0
            && self.before - self.now >= STANDARD_ERRORS * self.standard_error.max(1e-9)
    }
}

fn success(before: &[StepHealth], now: &StepHealth) -> Option<Success> {
    let (last, older) = before.split_last()?;
    let sum = |steps: &[&StepHealth]| {
        let solved: f64 = steps.iter().map(|step| step.solved).sum();
        (solved, steps.iter().map(|step| step.episodes).sum::<f64>())
    };
    let (old_solved, old) = sum(&older.iter().collect::<Vec<_>>());
    let (new_solved, new) = sum(&[last, now]);
    let all = (old_solved + new_solved) / (old + new);
    let standard_error = (all * (1.0 - all) * (1.0 / old + 1.0 / new)).sqrt();
    (old > 0.0).then_some(Success { before: old_solved / old, now: new_solved / new, standard_error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(solved: f64, format: f64, cut: f64, entropy: f64) -> StepHealth {
        StepHealth {
            episodes: 16.0,
            solved,
            samples: 256.0,
            cut: 256.0 * cut,
            tokens: 4000.0,
            with_format: 256.0,
            well_formed: 256.0 * format,
            entropy: Some(entropy),
            clipped: 0.01,
        }
    }

    /// The warnings for each of these steps.
    fn said(steps: &[StepHealth]) -> Vec<Option<String>> {
        let mut watch = Watch::default();
        steps.iter().map(|step| watch.step(step.clone())).collect()
    }

    #[test]
    fn a_run_that_learns_or_wavers_says_nothing() {
        let learning = [1.0, 3.0, 2.0, 6.0, 5.0, 9.0, 12.0, 11.0, 14.0, 10.0, 15.0, 16.0];
        let steps: Vec<StepHealth> = learning
            .iter()
            .enumerate()
            .map(|(at, &solved)| {
                step(solved, 0.5 + 0.04 * at as f64, 0.3 - 0.02 * at as f64, 1.0 / (1.0 + at as f64))
            })
            .collect();
        assert!(said(&steps).iter().all(Option::is_none), "{:?}", said(&steps));
        // Not significant: one bad step among many at 50 %.
        let mut wavering = vec![step(8.0, 0.9, 0.1, 0.5); 8];
        wavering[5] = step(3.0, 0.85, 0.15, 0.6);
        assert!(said(&wavering).iter().all(Option::is_none), "{:?}", said(&wavering));
    }

    #[test]
    fn a_run_that_collapses_says_what_moved_and_once() {
        let mut steps = vec![step(12.0, 0.9, 0.0, 0.4); 4];
        steps.extend([step(2.0, 0.2, 0.91, 2.5), step(2.0, 0.1, 0.95, 2.6)]);
        let said = said(&steps);
        assert!(said[..4].iter().all(Option::is_none));
        let first = said[4].as_deref().unwrap();
        assert_eq!(
            first,
            "answers cut by the limit 0 to 91 %, well-formed answers 90 to 20 %, entropy 0.4 to 2.5 nats"
        );
        assert_eq!(said[5], None);
        // A drop in success alone is significant only after two steps.
        let mut slow = vec![step(12.0, 0.9, 0.0, 0.4); 5];
        slow.extend([step(3.0, 0.9, 0.0, 0.4), step(2.0, 0.9, 0.0, 0.4)]);
        let said = self::said(&slow);
        assert_eq!(said[6].as_deref(), Some("success in training 0.750 to 0.156"));
        assert!(said[..6].iter().all(Option::is_none), "{said:?}");
    }

    /// The clip shares are those of a half-billion model that learned Plan-Path, with learning rates of 5e-4 and 1e-4.
    #[test]
    fn many_clipped_tokens_are_a_sign_where_fewer_succeed() {
        let clipped = |solved: f64, clipped: f64| StepHealth { clipped, ..step(solved, 0.9, 0.0, 0.4) };
        let learned = [clipped(6.0, 0.284), clipped(9.0, 0.145), clipped(14.0, 0.163)];
        assert!(said(&learned).iter().all(Option::is_none), "{:?}", said(&learned));
        let lost = [clipped(9.0, 0.01), clipped(9.0, 0.1), clipped(5.0, 0.163)];
        assert_eq!(said(&lost)[2].as_deref(), Some("16 % of tokens outside the clip range"));
    }

    #[test]
    fn answers_that_grow_are_a_sign_where_fewer_succeed() {
        let of_length =
            |solved: f64, length: f64| StepHealth { tokens: 256.0 * length, ..step(solved, 0.9, 0.0, 0.4) };
        let grow = |to: f64| {
            said(&[of_length(8.0, 20.0), of_length(8.0, 20.0), of_length(to, 20.0), of_length(to, 45.0)])[3]
                .clone()
        };
        assert_eq!(grow(7.0).as_deref(), Some("tokens of an answer 20.0 to 45.0"));
        assert_eq!(grow(9.0), None);
        let shrunk =
            said(&[of_length(8.0, 20.0), of_length(8.0, 20.0), of_length(7.0, 20.0), of_length(7.0, 9.0)]);
        assert_eq!(shrunk[3].as_deref(), Some("tokens of an answer 20.0 to 9.0"));
    }

    #[test]
    fn seven_earlier_steps_are_compared() {
        // The mean over seven is 10 %; without the first step it would be 0, and the last step a sign.
        let mut steps = vec![step(8.0, 0.9, 0.7, 0.4)];
        steps.extend(vec![step(8.0, 0.9, 0.0, 0.4); 6]);
        steps.push(step(8.0, 0.9, 0.35, 0.4));
        assert!(said(&steps).iter().all(Option::is_none), "{:?}", said(&steps));
        // An eighth is forgotten.
        steps.insert(1, step(8.0, 0.9, 0.0, 0.4));
        assert_eq!(said(&steps)[8].as_deref(), Some("answers cut by the limit 0 to 35 %"));
    }

    #[test]
    fn success_that_falls_by_less_than_half_is_no_sign() {
        let many = |solved: f64| StepHealth { episodes: 160.0, ..step(solved, 0.9, 0.0, 0.4) };
        let mut steps = vec![many(144.0); 6];
        steps.extend([many(112.0), many(112.0)]);
        assert!(said(&steps).iter().all(Option::is_none), "{:?}", said(&steps));
        steps.extend([many(70.0), many(50.0)]);
        assert!(said(&steps)[9].is_some());
    }

    #[test]
    fn a_step_is_read_from_its_metrics_with_all_shards() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics.jsonl");
        let rollout = "{\"type\":\"end\",\"stage\":\"rollout\",\"counts\":{\"episodes\":8,\"solved\":2,\"agents\":{\"a\":{\"samples\":30,\"cut\":3,\
                       \"completion_tokens\":90,\"reward_components\":{\"format\":0.5}},\"b\":{\"samples\":10,\"cut\":1,\"completion_tokens\":10,\
                       \"reward_components\":{}}}}}";
        let text = format!(
            "{{\"type\":\"metrics\",\"entropy\":1.0,\"clip_ratio\":0.1}}\n{{\"type\":\"metrics\",\"entropy\":3.0,\"clip_ratio\":0.4}}\n\
             {{\"type\":\"end\",\"stage\":\"update\",\"after\":[{{\"stage\":\"group\",\"after\":[{rollout},{rollout}]}}]}}\n"
        );
        fs::write(&file, text).unwrap();
        let health = StepHealth::of(&file).unwrap();
        assert_eq!((health.episodes, health.solved, health.samples, health.cut), (16.0, 4.0, 80.0, 8.0));
        assert_eq!((health.entropy, health.clipped), (Some(2.0), 0.4));
        assert_eq!((health.with_format, health.well_formed), (60.0, 30.0));
        assert_eq!(StepHealth::of(&folder.path().join("nothing")), None);
    }
}
