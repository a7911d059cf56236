//! Storms: tests that repeat kills, faults or random inputs for minutes.
//!
//! They are marked `#[ignore = "storm"]`, so `cargo test` leaves them out; `.ci/storms` runs a sample of each, or them whole.

use std::time::Duration;

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
