//! Reports long waits for a server on stderr, so that a silent program explains itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use record::failure::Result;
use record::stage;

use super::RetryPolicy;
use crate::runtime;

/// A wait from which on it is told.
const LONG: Duration = Duration::from_secs(10);
/// Interval between repeated notices.
const AGAIN: Duration = Duration::from_secs(60);

/// The calls of a server that have no answer yet.
#[derive(Debug)]
pub(super) struct Waits {
    url: String,
    retry_policy: RetryPolicy,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: BTreeMap<u64, Instant>,
    next: u64,
    told: Option<Instant>,
}

/// A call that waits, until it is dropped.
pub(super) struct Waiting<'a>(&'a Waits, u64);

impl Waits {
    /// Watches waits for the server at `url`. The thread lives while a caller holds the result.
    pub fn of(url: &str, retry_policy: RetryPolicy) -> Result<Arc<Waits>> {
        let waits = Arc::new(Waits { url: url.to_owned(), retry_policy, state: Mutex::default() });
        if !retry_policy.quiet {
            let watched = Arc::downgrade(&waits);
            let watch = move || {
                while let Some(waits) = watched.upgrade() {
                    waits.tell_of_silence();
                    drop(waits);
                    thread::sleep(Duration::from_secs(1));
                }
            };
            thread::Builder::new().spawn(watch).map_err(|error| runtime::spawn_failure(&error))?;
        }
        Ok(waits)
    }

    pub fn begin(&self) -> Waiting<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.next += 1;
        let number = state.next;
        state.calls.insert(number, Instant::now());
        Waiting(self, number)
    }

    /// Tells of a pause before a call is repeated, and for how long the server `wanted` it.
    pub fn tell_of_pause(&self, cause: &str, pause: Duration, wanted: Option<Duration>) {
        let wanted = wanted.filter(|wanted| *wanted > pause);
        if pause >= LONG || wanted.is_some() {
            let asks = wanted
                .map_or(String::new(), |wanted| format!(" (it asks for {:.0} s)", wanted.as_secs_f64()));
            self.tell(|_| Some(format!("{cause}; trying again in {:.0} s{asks}", pause.as_secs_f64())));
        }
    }

    fn tell_of_silence(&self) {
        self.tell(|state| {
            let oldest = state.calls.values().min()?.elapsed();
            let limit = self.retry_policy.timeout.as_secs_f64();
            (oldest >= LONG).then(|| {
                let calls = stage::counted(state.calls.len() as u64, "call");
                format!(
                    "{}: {calls} without an answer, one for {} s; given up after {limit} s (--server-timeout)",
                    self.url,
                    oldest.as_secs()
                )
            })
        });
    }

    fn tell(&self, what: impl FnOnce(&State) -> Option<String>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.retry_policy.quiet || state.told.is_some_and(|told| told.elapsed() < AGAIN) {
            return;
        }
        if let Some(message) = what(&state) {
            state.told = Some(Instant::now());
            stage::note(stage::name(), message);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).calls.remove(&self.1);
    }
}
