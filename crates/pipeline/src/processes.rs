//! Signal handling: a signal ends this process and all its descendants, even those that ignore it.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use record::child;
use record::failure::{Failure, Result};
use record::stage::printable;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::quote::quoted;

/// How long descendants have to end after SIGTERM.
const PATIENCE: Duration = Duration::from_millis(800);

static STOPPING: AtomicBool = AtomicBool::new(false);

/// What the message about a signal mentions.
#[derive(Debug)]
struct StopMessage {
    step: Option<u64>,
    resumable: Option<String>,
}

static SAID: Mutex<StopMessage> = Mutex::new(StopMessage { step: None, resumable: None });

fn said() -> std::sync::MutexGuard<'static, StopMessage> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the step being trained.
pub fn in_step(step: u64) {
    said().step = Some(step);
}

/// Sets the run that can be resumed. It is in no step yet.
pub fn is_resumable(run: &std::path::Path) {
    *said() = StopMessage { step: None, resumable: Some(run.display().to_string()) };
}

/// The command that the user typed.
pub fn called() -> String {
    std::env::var("TROUPE_CALLED").unwrap_or_else(|_| "./pipeline.sh".to_owned())
}

/// From now on a signal ends all descendants, and then this process.
///
/// # Errors
/// Signal handlers cannot be installed (exit 69).
pub fn heed_signals() -> Result<()> {
    let unavailable = |error| Failure::unavailable(format!("signals cannot be watched: {error}"));
    // Exceeding the file size limit then fails the write, like a full disk.
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default()).map_err(unavailable)?;
    let heeded = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(heeded).map_err(unavailable)?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            STOPPING.store(true, Ordering::SeqCst);
            stop(signal);
        }
    });
    Ok(())
}

/// Returns true if the parent process set this signal to be ignored, as `nohup` does.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: it only reads the current action, into a buffer of the right size.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Blocks if a signal is stopping the run, so that failures caused by the signal are not reported. A child
/// may receive the signal and fail before this process handles it.
pub fn wait_if_stopping() {
    for _ in 0..10 {
        if STOPPING.load(Ordering::SeqCst) {
            loop {
                std::thread::park();
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn stop(signal: i32) -> ! {
    end_descendants(std::process::id());
    let said = said();
    let step = said.step.map_or(String::new(), |step| format!(" in step {step}"));
    let resume = said
        .resumable
        .as_ref()
        .map_or(String::new(), |run| format!(", and so does {} --resume {}", called(), quoted(run)));
    let text = format!(
        "pipeline.sh: stopped{step}\nhint: the same command goes on from there{}\n",
        printable(&resume)
    );
    // If stderr is closed, there is nobody to tell.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
    std::process::exit(128 + signal)
}

/// Ends a process and all its descendants.
pub fn kill_with_descendants(process: u32) {
    send("STOP", &[process]); // so that it starts no more processes
    end_descendants(process);
    send("KILL", &[process]);
}

fn end_descendants(process: u32) {
    let mut all = Vec::new();
    loop {
        // Stopped processes start no others, so the search ends once it finds no new ones.
        let found: Vec<u32> = descendants(process).into_iter().filter(|pid| !all.contains(pid)).collect();
        if found.is_empty() {
            break;
        }
        send("STOP", &found);
        all.extend(found);
    }
    send("TERM", &all);
    send("CONT", &all);
    let asked = Instant::now();
    while asked.elapsed() < PATIENCE && all.iter().any(|pid| is_running(*pid)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    send("KILL", &all);
}

fn send(signal: &str, processes: &[u32]) {
    let number = match signal {
        "STOP" => libc::SIGSTOP,
        "CONT" => libc::SIGCONT,
        "TERM" => libc::SIGTERM,
        _ => libc::SIGKILL,
    };
    for process in processes.iter().filter_map(|pid| i32::try_from(*pid).ok()) {
        // SAFETY: sends a signal; the process may be gone already, which is only an error code.
        unsafe { libc::kill(process, number) };
    }
}

fn descendants(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = vec![process];
    while let Some(parent) = next.pop() {
        let children = children(parent);
        found.extend(&children);
        next.extend(children);
    }
    found
}

fn children(process: u32) -> Vec<u32> {
    let numbers =
        |text: &str| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>();
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
        if std::path::Path::new("/proc/self/task").exists() {
            return Vec::new();
        }
        let listed = child::output(Command::new("pgrep").args(["-P", &process.to_string()]));
        return listed.map(|output| numbers(&String::from_utf8_lossy(&output.stdout))).unwrap_or_default();
    };
    tasks
        .flatten()
        .flat_map(|task| numbers(&fs::read_to_string(task.path().join("children")).unwrap_or_default()))
        .collect()
}

/// Returns true if a process has not ended. The command line of an ended process is empty even before
/// its parent waits for it.
fn is_running(process: u32) -> bool {
    match fs::read(format!("/proc/{process}/cmdline")) {
        Ok(line) => !line.is_empty(),
        Err(_) if std::path::Path::new("/proc/self/cmdline").exists() => false,
        // SAFETY: signal 0 only checks that the process exists.
        Err(_) => i32::try_from(process).is_ok_and(|pid| unsafe { libc::kill(pid, 0) } == 0),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn the_next_run_is_in_none_of_the_steps_of_the_last() {
        is_resumable("runs/a".as_ref());
        in_step(3);
        is_resumable("runs/b".as_ref());
        let said = said();
        assert_eq!((said.step, said.resumable.as_deref()), (None, Some("runs/b")));
    }

    #[test]
    fn what_a_process_started_ends_with_it() {
        let mut shell = Command::new("bash");
        shell.args(["-c", "bash -c 'trap \"\" TERM; sleep 1000 & echo; wait' & wait"]).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let below = descendants(child.id());
        assert!(below.len() >= 2, "{below:?}");
        kill_with_descendants(child.id());
        child.wait().unwrap();
        // Orphans may stay zombies if nothing reaps them; `is_running` counts zombies as ended.
        let asked = Instant::now();
        while below.iter().any(|pid| is_running(*pid)) {
            assert!(asked.elapsed() < Duration::from_secs(60), "{below:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
