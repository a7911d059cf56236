//! The metrics as TensorBoard events: scalar summaries in TFRecord framing.
//!
//! An event file is a sequence of records, each `length, CRC-32C of the length, data, CRC-32C of the data`,
//! where the data is an `Event` protocol buffer. Only the fields of scalars are written: the wall time (1),
//! the step (2), the file's version (3) and a summary (5) of values (1) with a tag (1) and a number (2).
//!
//! The wall time of an event is when its stream was written. The events of one more step come after those of
//! the steps before, so a file that TensorBoard has open only grows. A metric that TRL also logs appears a
//! second time under TRL's name.

use std::collections::{BTreeMap, BTreeSet};

use crc32c::crc32c;

use crate::metrics::Metric;
use crate::run_directory::RunDirectory;

/// The name of an event file; TensorBoard looks for `tfevents` in it.
pub const FILE_NAME: &str = "events.out.tfevents.0.troupe";

/// What a `metrics` line of `update` calls it, and what TRL's `GRPOTrainer` does.
const TRL: &[(&str, &str)] = &[
    ("loss", "loss"),
    ("lr", "learning_rate"),
    ("grad_norm", "grad_norm"),
    ("entropy", "entropy"),
    ("kl", "kl"),
    ("clip_ratio", "clip_ratio/region_mean"),
    ("clip_ratio/low_mean", "clip_ratio/low_mean"),
    ("clip_ratio/high_mean", "clip_ratio/high_mean"),
    ("reward", "reward"),
    ("reward_std", "reward_std"),
    ("frac_reward_zero_std", "frac_reward_zero_std"),
    ("completions/mean_length", "completions/mean_length"),
    ("completions/min_length", "completions/min_length"),
    ("completions/max_length", "completions/max_length"),
    ("sampling/logp_difference_mean", "sampling/sampling_logp_difference/mean"),
    ("sampling/logp_difference_max", "sampling/sampling_logp_difference/max"),
    ("sampling/importance_sampling_ratio_mean", "sampling/importance_sampling_ratio/mean"),
];

/// The bytes of an event file about a run.
pub fn events(run: &RunDirectory) -> Vec<u8> {
    let mut streams: Vec<_> = run.streams.iter().collect();
    streams.sort_by_key(|stream| (stream.step, stream.held_out));
    let mut bytes = Vec::new();
    let mut first = time(streams.first().map_or(0.0, |stream| stream.wall));
    text(&mut first, 3, "brain.Event:2");
    record(&mut bytes, &first);
    let mut tokens = BTreeMap::new();
    for stream in streams {
        for metric in &stream.metrics {
            event(&mut bytes, stream.wall, metric.step, &tag(metric), metric.value);
        }
        for (tag, value) in trl(&stream.metrics, &mut tokens) {
            event(&mut bytes, stream.wall, stream.step, &tag, value);
        }
    }
    bytes
}

/// The metrics of a training step by TRL's names; `tokens` counts each policy's tokens so far. With several
/// policies the name includes the policy.
fn trl(metrics: &[Metric], tokens: &mut BTreeMap<String, f64>) -> Vec<(String, f64)> {
    let policies: BTreeSet<&str> =
        metrics.iter().map(|metric| &*metric.policy).filter(|name| !name.is_empty()).collect();
    let mut named = Vec::new();
    for metric in metrics.iter().filter(|metric| metric.split == "train") {
        let mut put = |name: &str, value| {
            let policy = if policies.len() > 1 && !metric.policy.is_empty() {
                format!("/{}", metric.policy)
            } else {
                String::new()
            };
            named.push((format!("train/{name}{policy}"), value));
        };
        if !metric.policy.is_empty() {
            if let Some((_, name)) = TRL.iter().find(|(own, _)| *own == metric.name) {
                put(name, metric.value);
            } else if metric.name == "total_tokens" {
                let sum = tokens.entry(metric.policy.clone()).or_insert(0.0);
                *sum += metric.value;
                put("num_tokens", *sum);
            }
        } else if !metric.agent.is_empty() {
            match &*metric.name {
                "reward" => put(&format!("rewards/{}/mean", metric.agent), metric.value),
                "reward_std" => put(&format!("rewards/{}/std", metric.agent), metric.value),
                "completions_cut" => {
                    put(&format!("completions/clipped_ratio/{}", metric.agent), metric.value)
                }
                _ => {}
            }
        }
    }
    // Where several policies are named, some are there already.
    let own: BTreeSet<String> = metrics.iter().map(tag).collect();
    named.retain(|(tag, _)| !own.contains(tag));
    named
}

fn event(bytes: &mut Vec<u8>, wall: f64, step: u64, tag: &str, number: f64) {
    let mut value = Vec::new();
    text(&mut value, 1, tag);
    value.push(2 << 3 | 5);
    value.extend_from_slice(&(number as f32).to_le_bytes());
    let mut summary = Vec::new();
    message(&mut summary, 1, &value);
    let mut event = time(wall);
    event.push(2 << 3);
    variable(&mut event, step);
    message(&mut event, 5, &summary);
    record(bytes, &event);
}

/// `train/reward/planner`: TensorBoard groups names by their first part.
fn tag(metric: &Metric) -> String {
    let parts = [&*metric.split, &metric.name, &metric.environment, &metric.policy, &metric.agent];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<&str>>().join("/")
}

fn time(seconds: f64) -> Vec<u8> {
    let mut bytes = vec![1 << 3 | 1];
    bytes.extend_from_slice(&seconds.to_le_bytes());
    bytes
}

fn text(bytes: &mut Vec<u8>, field: u8, text: &str) {
    message(bytes, field, text.as_bytes());
}

fn message(bytes: &mut Vec<u8>, field: u8, content: &[u8]) {
    bytes.push(field << 3 | 2);
    variable(bytes, content.len() as u64);
    bytes.extend_from_slice(content);
}

/// Seven bits a byte, the lowest first.
fn variable(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn record(bytes: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    bytes.extend_from_slice(&length);
    bytes.extend_from_slice(&masked(&length).to_le_bytes());
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(&masked(data).to_le_bytes());
}

/// The checksum as the format stores it, so that a checksum over checksums does not cancel.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode_index::EpisodeIndex;
    use crate::stream_summary::StreamSummary;

    #[test]
    fn records_are_framed_and_tags_name_the_metric() {
        let metric = |name: &str, step, value| Metric {
            step,
            split: "train".into(),
            agent: "tool".to_owned(),
            name: name.to_owned(),
            value,
            ..Metric::default()
        };
        let metrics = vec![metric("reward", 300, 0.5), metric("reward_std", 300, 1.0)];
        assert_eq!(tag(&metrics[0]), "train/reward/tool");
        let stream = |step, metrics| StreamSummary {
            step,
            held_out: false,
            equal_prompts: true,
            wall: 1e9,
            metrics,
            index: EpisodeIndex::default(),
        };
        let mut run = RunDirectory {
            name: "run".to_owned(),
            settings: serde_json::Map::new(),
            defaults: None,
            streams: vec![stream(300, metrics)],
            begun: None,
            episode_sets: Vec::new(),
            vocabularies: Default::default(),
        };
        let bytes = events(&run);
        run.streams.push(stream(301, vec![metric("reward", 301, 1.0)]));
        assert!(events(&run).starts_with(&bytes), "a file that is open elsewhere only grows");
        let (mut rest, mut records) = (bytes.as_slice(), Vec::new());
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(rest[8..12].try_into().unwrap()), masked(&rest[..8]));
            let data = &rest[12..12 + length];
            assert_eq!(u32::from_le_bytes(rest[12 + length..16 + length].try_into().unwrap()), masked(data));
            records.push(data.to_vec());
            rest = &rest[16 + length..];
        }
        assert_eq!(records.len(), 5);
        assert!(records[0].ends_with(b"\x1a\x0dbrain.Event:2"));
        // Step 300 is the bytes 172 and 2; the number 0.5 ends the event, and TRL's name for it comes second.
        assert_eq!(records[1][9..12], [16, 172, 2]);
        assert!(records[1].ends_with(&0.5_f32.to_le_bytes()));
        let named = b"train/rewards/tool/mean";
        assert!(records[3].windows(named.len()).any(|part| part == named));
    }
}
