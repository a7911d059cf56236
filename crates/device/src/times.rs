//! Time by kernel, to find slow ones. With `TROUPE_KERNEL_TIMES=FILE` every launch and GEMM of an
//! [`Any`](crate::Any) first waits for the one before it, and is timed until it is done.
//!
//! Waiting costs about ten microseconds, which are included: sums over many small kernels are too large, and
//! the run is slower. The file is rewritten at each synchronization, so an interrupted run leaves its times.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use record::failure::{Failure, Result};

const VARIABLE: &str = "TROUPE_KERNEL_TIMES";

/// Number and total time of launches, by kernel.
pub(crate) struct Times {
    path: PathBuf,
    sums: Mutex<BTreeMap<String, (u64, Duration)>>,
}

/// The times of this process, if requested.
pub(crate) fn asked() -> Option<&'static Times> {
    static TIMES: OnceLock<Option<Times>> = OnceLock::new();
    let named = || std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    TIMES.get_or_init(|| Some(Times { path: named()?.into(), sums: Mutex::default() })).as_ref()
}

impl Times {
    /// Adds a launch.
    pub fn add(&self, kernel: String, time: Duration) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = sums.entry(kernel).or_default();
        *sum = (sum.0 + 1, sum.1 + time);
    }

    /// Writes the file: one JSON object a line, the longest time first.
    pub fn write(&self) -> Result<()> {
        let text = lines(&self.sums.lock().unwrap_or_else(PoisonError::into_inner));
        std::fs::write(&self.path, text)
            .map_err(|error| Failure::io(format!("{VARIABLE}: {}: {error}", self.path.display())))
    }
}

fn lines(sums: &BTreeMap<String, (u64, Duration)>) -> String {
    let mut sums: Vec<_> = sums.iter().collect();
    sums.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
    let line = |(kernel, (launches, time)): (&String, &(u64, Duration))| {
        let seconds = time.as_secs_f64();
        format!("{{\"kernel\":\"{kernel}\",\"launches\":{launches},\"seconds\":{seconds:.6}}}\n")
    };
    sums.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_comes_first() {
        let times = Times { path: PathBuf::new(), sums: Mutex::default() };
        for (kernel, milliseconds) in [("short", 1), ("long", 5), ("short", 2)] {
            times.add(kernel.to_owned(), Duration::from_millis(milliseconds));
        }
        let text = "{\"kernel\":\"long\",\"launches\":1,\"seconds\":0.005000}\n\
                    {\"kernel\":\"short\",\"launches\":2,\"seconds\":0.003000}\n";
        assert_eq!(lines(&times.sums.lock().unwrap()), text);
        assert!(times.write().is_err(), "a file without a name");
    }
}
