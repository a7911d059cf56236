//! The metrics as TensorBoard events: scalar summaries in TFRecord framing.
//!
//! An event file is a sequence of records, each `length, CRC-32C of the length, data, CRC-32C of the data`, where the data is
//! an `Event` protocol buffer. Only the fields of scalars are written: the wall time (1), the step (2), the file's version
//! (3) and a summary (5) of values (1) with a tag (1) and a number (2).
//!
//! The wall time is that of the run itself, in seconds from its start: TensorBoard's relative time is then right, and
//! the same run gives the same bytes.

use std::collections::BTreeMap;

use crc32c::crc32c;

use crate::metrics::Metric;

/// The name of an event file; TensorBoard looks for `tfevents` in it.
pub const FILE_NAME: &str = "events.out.tfevents.0.troupe";

/// The bytes of an event file.
pub fn events(metrics: &[Metric]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut first = time(0.0);
    text(&mut first, 3, "brain.Event:2");
    record(&mut bytes, &first);
    let clock = clock(metrics);
    for metric in metrics {
        let mut value = Vec::new();
        text(&mut value, 1, &tag(metric));
        value.push(2 << 3 | 5);
        value.extend_from_slice(&(metric.value as f32).to_le_bytes());
        let mut summary = Vec::new();
        message(&mut summary, 1, &value);
        let mut event = time(clock.get(&metric.step).copied().unwrap_or_default());
        event.push(2 << 3);
        variable(&mut event, metric.step);
        message(&mut event, 5, &summary);
        record(&mut bytes, &event);
    }
    bytes
}

/// `train/reward/planner`: TensorBoard draws what has the same first part together.
fn tag(metric: &Metric) -> String {
    let parts = [metric.split, &metric.name, &metric.environment, &metric.policy, &metric.agent];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<&str>>().join("/")
}

/// Seconds from the start of the run to the end of each step, as far as its stages tell.
fn clock(metrics: &[Metric]) -> BTreeMap<u64, f64> {
    let mut clock = BTreeMap::new();
    for metric in metrics {
        let counts =
            ["rollout/seconds", "update/seconds", "evaluation_seconds"].contains(&metric.name.as_str());
        *clock.entry(metric.step).or_insert(0.0) += if counts { metric.value } else { 0.0 };
    }
    let mut now = 0.0;
    for seconds in clock.values_mut() {
        now += *seconds;
        *seconds = now;
    }
    clock
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

    #[test]
    fn records_are_framed_and_tags_say_what_they_are_of() {
        let metric = |name: &str, step, value| Metric {
            step,
            split: "train",
            agent: "tool".to_owned(),
            name: name.to_owned(),
            value,
            ..Metric::default()
        };
        let metrics =
            [metric("reward", 300, 0.5), metric("rollout/seconds", 300, 2.0), metric("reward", 301, 1.0)];
        assert_eq!(tag(&metrics[0]), "train/reward/tool");
        assert_eq!(clock(&metrics), BTreeMap::from([(300, 2.0), (301, 2.0)]));
        let bytes = events(&metrics);
        let (mut rest, mut records) = (bytes.as_slice(), Vec::new());
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(rest[8..12].try_into().unwrap()), masked(&rest[..8]));
            let data = &rest[12..12 + length];
            assert_eq!(u32::from_le_bytes(rest[12 + length..16 + length].try_into().unwrap()), masked(data));
            records.push(data.to_vec());
            rest = &rest[16 + length..];
        }
        assert_eq!(records.len(), 4);
        assert!(records[0].ends_with(b"\x1a\x0dbrain.Event:2"));
        // Step 300 is the bytes 172 and 2; the number 0.5 ends the event.
        assert_eq!(records[1][9..12], [16, 172, 2]);
        assert!(records[1].ends_with(&0.5_f32.to_le_bytes()));
    }
}
