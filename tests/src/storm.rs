//! Storms: tests that repeat kills, faults or random inputs for minutes.
//!
//! They are marked `#[ignore = "storm"]`, so `cargo test` leaves them out; `.ci/storms` runs a sample of each, or them whole.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How many rounds a storm has: `whole` if `TROUPE_STORMS` is `whole`, else `sample`.
pub fn rounds(sample: usize, whole: usize) -> usize {
    if std::env::var("TROUPE_STORMS").is_ok_and(|size| size == "whole") { whole } else { sample }
}

/// Duration of a fuzzer; `None`: its default number of inputs.
pub fn fuzz_time() -> Option<Duration> {
    let seconds = std::env::var("TROUPE_FUZZ_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("TROUPE_FUZZ_SECONDS is a number of seconds")))
}

/// The seed of all storms, from `TROUPE_SEED`, or 0.
pub fn seed() -> u64 {
    std::env::var("TROUPE_SEED").map_or(0, |seed| seed.parse().expect("TROUPE_SEED is a whole number"))
}

/// Pseudo-random choices that depend on [`seed`] alone (Knuth's MMIX constants).
pub struct Random(u64);

impl Random {
    /// The stream of the seed.
    pub fn new() -> Random {
        Random(0x9e37_79b9_7f4a_7c15 ^ seed())
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

impl Default for Random {
    fn default() -> Random {
        Random::new()
    }
}

/// Numbers of a fuzzer's inputs: `usual` of them, or however many fit into [`fuzz_time`].
pub fn inputs(usual: u64) -> impl Iterator<Item = u64> {
    let (time, started) = (fuzz_time(), Instant::now());
    (0..).take_while(move |number| time.map_or(*number < usual, |time| started.elapsed() < time))
}

/// Input `number` of a fuzzer: some damage to one of these seeds, or one of these tokens in it. [`seed`] decides which.
pub fn damaged(seeds: &[Vec<u8>], tokens: &[&str], number: u64) -> Vec<u8> {
    let mut random = Random(Random::new().0 ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d));
    // The first draws of neighbors are alike.
    random.below(2);
    random.below(2);
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        let from = random.below(bytes.len() + 1);
        let to = (from + random.below(64)).min(bytes.len());
        match random.below(7) {
            0 if from < bytes.len() => bytes[from] ^= 1 << random.below(8),
            1 if from < bytes.len() => bytes[from] = random.below(256) as u8,
            2 => drop(bytes.drain(from..to)),
            3 => {
                let again = bytes[from..to].repeat(1 + random.below(50));
                bytes.splice(from..from, again);
            }
            4 => {
                let other = &seeds[random.below(seeds.len())];
                let start = random.below(other.len() + 1);
                let part = other[start..(start + to - from).min(other.len())].to_vec();
                bytes.splice(from..to, part);
            }
            5 => bytes.truncate(from),
            _ => {
                let token = tokens[random.below(tokens.len())];
                bytes.splice(from..to.min(from + random.below(8)), token.bytes());
            }
        }
    }
    bytes
}

/// Kills a process, or with `-` in front of its number its process group; false if there is none.
pub fn kill(target: &str) -> bool {
    let mut kill = Command::new("kill");
    kill.args(["-9", "--", target]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The process ids of the ranks of `update-mpi` that train a policy below `place`: MPI starts each in a separate group.
pub fn ranks_of(place: &Path) -> Vec<String> {
    let listed = crate::must("ps -eo pid=,comm=,args=");
    let lines = listed.lines().filter(|line| line.contains(&*place.to_string_lossy()));
    let rank = |line: &str| {
        let mut words = line.split_whitespace();
        let pid = words.next()?;
        (words.next()? == "update-mpi").then(|| pid.to_owned())
    };
    lines.filter_map(rank).collect()
}
