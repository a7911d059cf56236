//! How a rank waits for others: at once where they are there, asleep where they are not, and with a word where it takes long.

use std::time::{Duration, Instant};

/// The longest sleep between two polls.
const SLEEP: Duration = Duration::from_millis(2);
/// A wait of which nothing is said.
const SILENCE: Duration = Duration::from_secs(60);

pub struct Wait {
    begun: Instant,
    /// When something is said next.
    next: Duration,
}

impl Wait {
    /// A wait that begins now.
    pub fn new() -> Wait {
        Wait { begun: Instant::now(), next: SILENCE }
    }

    /// Leaves the core to others for a small part of what was waited so far.
    pub fn pause(&self) {
        match (self.begun.elapsed() / 64).min(SLEEP) {
            sleep if sleep < Duration::from_micros(20) => std::thread::yield_now(),
            sleep => std::thread::sleep(sleep),
        }
    }

    /// How long it has taken, where it is time to say so: after a minute, two, four.
    pub fn is_over(&mut self) -> Option<Duration> {
        self.after(self.begun.elapsed())
    }

    fn after(&mut self, elapsed: Duration) -> Option<Duration> {
        let over = elapsed >= self.next;
        while self.next <= elapsed {
            self.next *= 2;
        }
        over.then_some(elapsed)
    }
}

/// What the lowest of the ranks that are there says about those that are not; the others are silent. Both are in order.
pub fn word(
    rank: usize,
    absent: &[usize],
    waited: Duration,
    number: impl Fn(usize) -> usize,
) -> Option<String> {
    let lowest = (0..).find(|rank| !absent.contains(rank));
    let names: Vec<String> = absent.iter().map(|rank| number(*rank).to_string()).collect();
    (lowest == Some(rank) && !absent.is_empty()).then(|| {
        format!(
            "rank {} has waited {} s for rank {}, which is stopped, cut off or slow",
            number(rank),
            waited.as_secs(),
            names.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_after_a_minute_and_ever_more_rarely() {
        let mut wait = Wait::new();
        let told = (0..1000).filter(|second| wait.after(Duration::from_secs(*second)).is_some());
        assert_eq!(told.collect::<Vec<_>>(), [60, 120, 240, 480, 960]);
    }

    #[test]
    fn one_rank_names_those_that_are_not_there() {
        let waited = Duration::from_secs(61);
        let said = |rank, absent: &[usize]| word(rank, absent, waited, |rank| 4 + rank);
        assert_eq!(
            said(0, &[1, 3]).as_deref(),
            Some("rank 4 has waited 61 s for rank 5 and 7, which is stopped, cut off or slow")
        );
        assert!(said(2, &[1, 3]).is_none());
        assert!(said(1, &[0]).is_some(), "rank 0 itself may be stopped");
    }
}
