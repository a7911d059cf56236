//! Signals, and readers that go away: the first publish nothing, the second change nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use common::{one, published};
use serde_json::json;

#[test]
fn a_reader_that_goes_away_does_not_stop_the_publishing() {
    let (place, root, input) = one();
    // More than a pipe holds, so that writing fails long before the end.
    let padding = format!("{}\n", json!({"type": "remark", "v": 1, "text": "x".repeat(1 << 20)}));
    let mut child = place.spawn("--policy p --pass-through");
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(padding.as_bytes()).unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
    assert!(published(&root));
}

fn signal(child: &std::process::Child, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Waits until a program has handlers for SIGINT and SIGTERM, however busy the machine is.
fn until_it_watches(child: &std::process::Child) {
    let wanted = 1 << (2 - 1) | 1 << (15 - 1);
    for _ in 0..6000 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        if u64::from_str_radix(caught, 16).unwrap() & wanted == wanted {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no handlers after a minute");
}

#[test]
fn a_signal_publishes_nothing() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let (place, root, input) = one();
        // While it waits for input, and while it trains for what would be hours.
        for epochs in [1, 1_000_000] {
            let mut child = place.spawn(&format!("--policy p --epochs {epochs}"));
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(input.as_bytes()).unwrap();
            let waiting = (epochs == 1).then_some(stdin);
            until_it_watches(&child);
            // Time to begin with the training; where it has not, the signal finds it earlier and the end is the same.
            std::thread::sleep(Duration::from_millis(300));
            signal(&child, name);
            let status = child.wait().unwrap();
            drop(waiting);
            assert_eq!(status.code(), Some(code), "{name}, {epochs} epochs, signal {:?}", status.signal());
            assert!(!published(&root));
        }
    }
}
