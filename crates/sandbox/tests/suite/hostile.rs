//! Programs that try to get out of the sandbox, to outlive it, or to change a verdict.
//!
//! Each attempt in `hostile/` prints `ESCAPED` if it succeeds at something forbidden. They run one by one,
//! and then a thousand times between honest programs, whose verdicts must stay right.

#![cfg(target_os = "linux")]

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use sandbox::{Entry, Limits, Program, Sandbox, Status};

const ATTEMPTS: [&str; 3] = [
    include_str!("../hostile/outside.py"),
    include_str!("../hostile/limits.py"),
    include_str!("../hostile/verdicts.py"),
];

/// Name and source of each attempt; a line `#:` gives the name.
fn attempts() -> Vec<(&'static str, String)> {
    let parts = ATTEMPTS.iter().flat_map(|file| file.split("\n#: ").skip(1));
    parts
        .map(|part| {
            let (name, source) = part.split_once('\n').unwrap();
            let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
            (name, source.replace("@HOME@", &home).replace("@PID@", &std::process::id().to_string()))
        })
        .collect()
}

fn limits() -> Limits {
    Limits { cpu_seconds: 0.2, wall_seconds: 0.5, memory_bytes: 128 << 20, ..Limits::default() }
}

#[test]
fn no_attempt_succeeds() {
    if support::sandbox().is_none() {
        return;
    }
    let sandbox = Sandbox::shared().unwrap();
    for (name, source) in attempts() {
        let program = Program { limits: limits(), ..Program::python(&source, "") };
        let execution = sandbox.run(&program).unwrap();
        let said = format!("{}{}", execution.stdout, execution.stderr);
        assert!(!said.contains("ESCAPED"), "{name}: {execution:?}");
        let compiled =
            sandbox.run(&Program { entry: Entry::Compile, ..Program::python(&source, "") }).unwrap();
        assert!(compiled.is_success(), "{name} is not a program: {compiled:?}");
    }
}

/// Checks which limit stops each attempt, if that is visible from outside.
#[test]
fn attempts_end_as_they_should() {
    if support::sandbox().is_none() {
        return;
    }
    let sandbox = Sandbox::shared().unwrap();
    let attempts: BTreeMap<&str, String> = attempts().into_iter().collect();
    let expected = [
        ("infinite loop", Status::CpuTime),
        ("infinite loop in threads", Status::CpuTime),
        ("sleep", Status::WallTime),
        ("ignored signals", Status::WallTime),
        ("output bomb", Status::Output),
        ("exit code of success after a fake verdict", Status::Exited(0)),
    ];
    for (name, status) in expected {
        // On a busy machine a short wall time would run out before any other limit.
        let wall_seconds = if status == Status::WallTime { 1.0 } else { 60.0 };
        let limits = Limits { wall_seconds, ..limits() };
        let program = Program { limits, ..Program::python(&attempts[name], "") };
        assert_eq!(sandbox.run(&program).unwrap().status, status, "{name}");
    }
}

#[test]
fn there_are_no_children() {
    if support::sandbox().is_none() {
        return;
    }
    let source = "import os, subprocess, sys\n\
        for make in os.fork, os.forkpty, lambda: subprocess.run([sys.executable]), \
            lambda: os.posix_spawn(sys.executable, ['python'], {}):\n    try:\n        make()\n        \
            print('ESCAPED')\n    except OSError:\n        print('refused')\n";
    let execution = Sandbox::shared().unwrap().run(&Program::python(source, "")).unwrap();
    assert_eq!(execution.stdout, "refused\n".repeat(4), "{execution:?}");
}

#[test]
fn nothing_of_one_program_is_found_by_the_next() {
    if support::sandbox().is_none() {
        return;
    }
    let sandbox = Sandbox::open(1).unwrap();
    let secret = "treasure-4711";
    let write = format!("open('/tmp/left', 'w').write('{secret}')\nprint(input())\n");
    sandbox.run(&Program::python(&write, secret)).unwrap();
    // Searches all text that the next program can reach for the source, input and output of the one before.
    let search = "import gc, os\nneedle = 'treasure-' + str(4000 + 711)\n\
        texts = [v for o in gc.get_objects() if isinstance(o, dict) for v in list(o.values()) if isinstance(v, str)]\n\
        print(os.listdir('/tmp'), sum(needle in text for text in texts if text is not needle))\n";
    let execution = sandbox.run(&Program::python(search, "")).unwrap();
    assert_eq!(execution.stdout, "[] 0\n", "{execution:?}");
    // The fork server's heap, read from outside, holds neither source nor input.
    let mut read = 0;
    for id in descendants() {
        let maps = std::fs::read_to_string(format!("/proc/{id}/maps")).unwrap_or_default();
        let Ok(memory) = std::fs::File::open(format!("/proc/{id}/mem")) else { continue };
        for line in maps.lines().filter(|line| line.contains(" rw")) {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let (from, to) = (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
            let mut bytes = vec![0; (to - from) as usize];
            if std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, from).is_ok() {
                let found = holds(&bytes, secret.as_bytes());
                assert!(!found, "the fork server remembers at {line}");
                read += usize::from(holds(&bytes, b"The fork server: a warm interpreter"));
            }
        }
    }
    // Only root may read the memory of a process that has a capability.
    let root = std::fs::read("/proc/1/environ").is_ok();
    assert!(read > 0 || !root, "the memory of the fork server was not looked at");
}

fn holds(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

/// All descendants of this process.
fn descendants() -> BTreeSet<u32> {
    let parents: BTreeMap<u32, u32> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let id = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((id, parent))
        })
        .collect();
    let mut found = BTreeSet::from([std::process::id()]);
    loop {
        let more = parents.iter().filter(|(_, parent)| found.contains(parent)).map(|(id, _)| *id);
        let more: Vec<u32> = more.filter(|id| !found.contains(id)).collect();
        if more.is_empty() {
            found.remove(&std::process::id());
            return found;
        }
        found.extend(more);
    }
}

/// Runs a thousand hostile programs with an honest one after each. Needs a separate process,
/// because it counts processes.
#[test]
#[ignore = "run by `a_thousand_hostile_programs_leave_nothing` in a process of its own"]
fn thousand() {
    let attempts = attempts();
    let sandbox = Sandbox::open(2).unwrap();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= 1000 {
                        return;
                    }
                    let (name, source) = &attempts[number % attempts.len()];
                    let hostile = Program { limits: limits(), ..Program::python(source, "5 expected 5") };
                    let execution = sandbox.run(&hostile).unwrap();
                    let said = format!("{}{}", execution.stdout, execution.stderr);
                    assert!(!said.contains("ESCAPED"), "{name}: {execution:?}");
                    honest(&sandbox, number, name);
                }
            });
        }
    });
    let left = descendants();
    assert!(left.len() <= 2, "processes are left: {left:?}");
    drop(sandbox);
    assert_eq!(descendants(), BTreeSet::new(), "workers are left");
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    for place in ["/tmp", "/var/tmp", "/dev/shm", "/", ".", "..", "/usr/lib", home.as_str()] {
        let Ok(entries) = std::fs::read_dir(place) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            assert!(!name.to_string_lossy().contains("escapee"), "{place} holds {}", name.display());
        }
    }
}

/// Checks the verdicts of a right and a wrong program.
fn honest(sandbox: &Sandbox, number: usize, after: &str) {
    let input = number.to_string();
    let right = sandbox.run(&Program::python("print(int(input()) + 1)", &input)).unwrap();
    assert_eq!(right.stdout, format!("{}\n", number + 1), "after {after}: {right:?}");
    assert_eq!(right.status, Status::Exited(0), "after {after}");
    let wrong = Program { entry: Entry::Call("f"), ..Program::python("def f(x): return x", "[1]") };
    assert_eq!(sandbox.run(&wrong).unwrap().result.as_deref(), Some("1"), "after {after}");
}

#[test]
fn a_thousand_hostile_programs_leave_nothing() {
    if support::sandbox().is_none() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let output = std::process::Command::new(&this)
        .args(["--ignored", "--exact", "hostile::thousand", "--test-threads=1"])
        .env("SECRET_TOKEN", "do not tell")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

/// If the judge dies, its workers die with it.
#[test]
#[ignore = "run by `workers_end_with_their_judge` in a process of its own"]
fn judge() {
    let sandbox = Sandbox::shared().unwrap();
    sandbox.run(&Program::python("print(1)", "")).unwrap();
    let before = descendants();
    let named = |ids: &BTreeSet<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    println!("workers {}", named(&before));
    std::thread::spawn(|| {
        let limits = Limits { wall_seconds: 60.0, ..Limits::default() };
        let endless = Program { limits, ..Program::python("import time; time.sleep(60)", "") };
        Sandbox::shared().unwrap().run(&endless)
    });
    // Wait until the program is visible, which takes long on a busy machine.
    let mut now = descendants();
    for _ in 0..6000 {
        if now.difference(&before).next().is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        now = descendants();
    }
    println!("workers {}", named(&now));
    std::process::abort();
}

#[test]
fn workers_end_with_their_judge() {
    if support::sandbox().is_none() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let output = std::process::Command::new(&this)
        .args(["--ignored", "--exact", "hostile::judge", "--test-threads=1", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let ids: BTreeSet<&str> = said
        .lines()
        .filter_map(|line| line.split_once("workers "))
        .flat_map(|(_, ids)| ids.split(' '))
        .collect();
    assert!(ids.len() >= 2, "a worker and a program were seen: {said}");
    for _ in 0..200 {
        let alive = |id: &&&str| {
            std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
        };
        if !ids.iter().any(|id| alive(&id)) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("still there: {ids:?}");
}
