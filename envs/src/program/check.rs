//! Whether a program can be trained, and how: some tasks are played several times with fixed answers, and compared.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use record::failure::{Failure, Result};
use record::line::Task;
use serde_json::{Value, json};

use super::call::Answer;
use super::episode::{Episode, Start, divergence};
use super::outcome::outcome;
use super::roles::Settings;

/// Tasks that are played, and how often each.
const TASKS: usize = 8;
const PLAYS: usize = 3;

/// One play of a task.
struct Play {
    episode: Episode,
    first_call: Duration,
    end: Result<Value>,
}

/// Plays tasks and describes the program; the second is true if the program can be trained.
///
/// # Errors
/// The program cannot be started, or a signal arrived.
pub fn check(start: &mut impl Start, tasks: &[Task], settings: &Settings) -> Result<(String, bool)> {
    let (mut acted, mut calls, mut first_call) = (BTreeMap::<&str, u32>::new(), Vec::new(), Vec::new());
    let (mut faults, mut difference, mut crashed, mut uncalled) = (Vec::new(), None, 0, 0);
    let cpu = cpu_of_children();
    let tasks = &tasks[..tasks.len().min(TASKS)];
    for task in tasks {
        let mut before: Option<Play> = None;
        for _ in 0..PLAYS {
            let play = play(start, &task.spec, settings)?;
            first_call.push(play.first_call);
            if let Some(before) = &before {
                difference = difference.or_else(|| differs(before, &play));
                continue;
            }
            for name in settings.names() {
                let acts = play.episode.calls().any(|asked| asked.role == name);
                *acted.entry(name).or_default() += u32::from(acts);
            }
            calls.push(play.episode.calls().count());
            match &play.end {
                Ok(end) => crashed += u32::from(end["reward_components"]["crashed"] == json!(1.0)),
                Err(_) if calls.last() == Some(&0) => uncalled += 1,
                Err(failure) => faults.push(failure.clone()),
            }
            before = Some(play);
        }
    }
    let (plays, count) = (first_call.len().max(1) as u32, tasks.len());
    let seconds = first_call.iter().sum::<Duration>().as_secs_f64() / f64::from(plays);
    let cpu = (cpu_of_children() - cpu) / f64::from(plays);
    let (least, most) = (calls.iter().min().unwrap_or(&0), calls.iter().max().unwrap_or(&0));
    let roles: Vec<String> = acted.iter().map(|(name, tasks)| format!("{name} in {tasks}")).collect();
    let mut text = String::new();
    let mut row = |name: &str, value: String| text += &format!("{name:<15}{value}\n");
    row("tasks", format!("{count}, each played {PLAYS} times with answers of our own"));
    row("calls", format!("{least} to {most} an episode"));
    row("roles", format!("{}, of {count} tasks", roles.join(", ")));
    // What a preloaded Python starts is not our child.
    let cpu = if cpu > 0.0 { format!("; {cpu:.2} CPU-s to the end") } else { String::new() };
    row("a start", format!("{seconds:.2} s to the first call{cpu}"));
    row("crashed", format!("{crashed} of {count} tasks"));
    match &difference {
        None => {
            row("deterministic", "yes".to_owned());
            row("methods", "drmas, and c3 with --flags rollout='--expand ends=1'".to_owned());
        }
        Some(failure) => {
            row("deterministic", format!("no: {}", failure.message));
            row("methods", "drmas, with --no-copies before the program".to_owned());
        }
    }
    for (name, _) in acted.iter().filter(|(_, tasks)| **tasks == 0) {
        row(
            "never acts",
            format!("{name}: it cannot learn; is it the name of a model that the program calls?"),
        );
    }
    if uncalled > 0 {
        row(
            "fault",
            format!("{uncalled} of {count} tasks without a call: does the program read OPENAI_BASE_URL?"),
        );
    }
    if let Some(failure) = faults.first() {
        row("fault", format!("{}, in {} of {count} tasks", failure.message, faults.len()));
        row("", failure.hint.clone().unwrap_or_default());
    }
    Ok((text, faults.is_empty() && uncalled == 0 && acted.values().any(|tasks| *tasks > 0)))
}

/// Plays a task to its end. Some answers are the task's answer, so that paths after a right answer are played as well.
fn play(start: &mut impl Start, spec: &Value, settings: &Settings) -> Result<Play> {
    let began = Instant::now();
    let mut episode = Episode::begin(start, spec.clone(), settings.silence())?;
    let first_call = began.elapsed();
    let answer =
        spec.get("answer").map(|answer| answer.as_str().map_or_else(|| answer.to_string(), str::to_owned));
    let text = answer.unwrap_or_else(|| "1".to_owned());
    let mut played = Ok(());
    while episode.asked().is_some() && played.is_ok() {
        if episode.calls().count() >= settings.max_calls as usize {
            let cause = format!("the program makes more than {} calls", settings.max_calls);
            played = Err(Failure::data(cause).hint("--max-calls allows more"));
            break;
        }
        played = episode.answer(start, Answer { text: text.clone(), ..Answer::default() });
    }
    let end = match (played, episode.exit()) {
        (Err(failure), _) if failure.is_interruption() || failure.is_closed() => return Err(failure),
        (Err(failure), _) => Err(failure),
        (Ok(()), Some(exit)) => outcome(exit, spec, settings),
        (Ok(()), None) => Err(Failure::work("the program is lost")),
    };
    Ok(Play { episode, first_call, end })
}

/// How two plays of a task differ.
fn differs(before: &Play, now: &Play) -> Option<Failure> {
    let (mut was, mut is) = (before.episode.calls(), now.episode.calls());
    for number in 1.. {
        match (was.next(), is.next()) {
            (None, None) => break,
            (Some(was), Some(is)) if was.key == is.key => {}
            (was, is) => return Some(divergence(number, was, is)),
        }
    }
    let (was, is) = (before.end.as_ref().ok()?, now.end.as_ref().ok()?);
    (was != is).then(|| Failure::data(format!("equal answers ended in {was} and in {is}")))
}

/// Seconds of processor time of children that have ended.
fn cpu_of_children() -> f64 {
    // SAFETY: all-zero bytes are a valid rusage, which outlives the call that fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6).sum()
}
