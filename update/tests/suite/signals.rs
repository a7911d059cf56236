//! Signals, and readers that go away: the first publish nothing, the second change nothing.

use crate::common;

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use crate::common::{one, published};
use serde_json::json;

#[test]
fn a_reader_that_goes_away_does_not_stop_the_publishing() {
    let (place, root, input) = one();
    // More than a pipe holds, so that writing fails long before the end.
    let padding = format!("{}\n", json!({"type": "remark", "v": 1, "text": "x".repeat(1 << 20)}));
    let mut child = place.spawn("--policy p --pass-through --max-logprob-gap 0");
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
            let mut child = place.spawn(&format!("--policy p --max-logprob-gap 0 --epochs {epochs}"));
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

#[test]
fn a_signal_ends_the_wait_for_the_lock() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let (place, root, input) = one();
        let lock = std::fs::File::create(root.join(".lock")).unwrap();
        lock.lock().unwrap();
        let mut child = place.spawn("--policy p");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        until_it_watches(&child);
        std::thread::sleep(Duration::from_millis(300));
        assert!(child.try_wait().unwrap().is_none(), "it does not wait for the lock");
        signal(&child, name);
        let started = std::time::Instant::now();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        assert!(!published(&root));
        drop(lock);
        place.update("--policy p", &input).ok();
    }
}

#[test]
fn a_lock_that_is_no_file_is_refused() {
    let (place, root, input) = one();
    let lock = root.join(".lock");
    assert!(Command::new("mkfifo").arg(&lock).status().unwrap().success());
    let outcome = place.update("--policy p", &input);
    assert_eq!(outcome.code, 74, "{outcome:?}");
    assert!(outcome.stderr.contains(".lock: not a regular file\nhint: remove it"), "{}", outcome.stderr);
    assert!(!published(&root));
}

/// Where the system starts no more threads, that is a sentence and not a panic.
#[test]
fn threads_that_cannot_start_are_refused() {
    let (place, root, input) = one();
    std::fs::write(place.folder.path().join("input"), input).unwrap();
    // A thread's stack is address space, which is too small for them.
    let program = common::program();
    let command = format!("ulimit -v 4000000; '{}' --policy p --threads 5000 < input", program.display());
    let output = Command::new("sh").args(["-c", &command]).current_dir(&place.folder).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    let sentence = "update: 5000 threads cannot be started: ";
    assert!(stderr.starts_with(sentence) && stderr.contains("\nhint: lower --threads"), "{stderr}");
    assert!(!published(&root));
}
