//! Tests that this machine cannot run.

use std::fs::OpenOptions;
use std::io::Write;

/// Ends the test and reports the reason: `skip!("there is no {program}")`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {
        return $crate::skip::not_run(&format!($($reason)*))
    };
}

/// Reports that the running test cannot run here. The line goes to stderr and, if `TROUPE_NOT_RUN` names a file, is appended to it.
pub fn not_run(reason: &str) {
    let thread = std::thread::current();
    let line = format!("NOT RUN: {}: {reason}\n", thread.name().unwrap_or("a test"));
    // The test harness captures `eprintln!`, but not this. A closed stderr must not fail a test.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("TROUPE_NOT_RUN") {
        let mut file =
            OpenOptions::new().create(true).append(true).open(path).expect("TROUPE_NOT_RUN names a file");
        file.write_all(line.as_bytes()).expect("TROUPE_NOT_RUN can be written");
    }
}
