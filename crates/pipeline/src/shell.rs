//! Runs the pipes of `pipeline.sh`. A shell process stays alive, reads which pipe to run next, and
//! answers with exit codes.

use std::fs;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use record::failure::{Failure, Result};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::processes;
use crate::programs::{Programs, cannot_start};

/// A pipe of `pipeline.sh`, with the names of its stages from left to right.
#[derive(Clone, Copy, Debug)]
pub struct Pipe {
    name: &'static str,
    parts: &'static [&'static str],
}

/// Trains on demonstrations.
pub const WARM_UP: Pipe = Pipe { name: "warm-up", parts: &["demo", "policy encode", "update"] };
/// Plays the test tasks.
pub const EVALUATION: Pipe = Pipe { name: "evaluation", parts: &["tasks", "rollout"] };
/// An evaluation on stdout.
pub const PRINTED: Pipe = Pipe { name: "printed-evaluation", parts: &["tasks", "rollout"] };
pub const STEP: Pipe = Pipe {
    name: "step",
    parts: &["tasks", TASKS_FILE, "rollout", "group", "advantage", SAMPLES_FILE, "update"],
};
/// A training step with a judge.
pub const JUDGED_STEP: Pipe = Pipe {
    name: "judged-step",
    parts: &["tasks", TASKS_FILE, "rollout", "reward", "group", "advantage", SAMPLES_FILE, "update"],
};
/// All training steps in one pipe, with resident stages.
pub const RESIDENT: Pipe =
    Pipe { name: "resident", parts: &["rollout", "group", "advantage", SAMPLES_FILE, "update"] };

const TASKS_FILE: &str = "tee tasks.jsonl";
const SAMPLES_FILE: &str = "tee samples.jsonl";
/// The exit code of a process that SIGPIPE ended, because its reader had gone.
const BROKEN_PIPE: u8 = 141;

impl Pipe {
    /// Checks the exit codes of a pipe's stages.
    ///
    /// # Errors
    /// The leftmost failure, ignoring stages that only lost their reader.
    pub fn outcome(self, codes: &[u8], context: &str, demo: &str) -> Result<()> {
        let failed: Vec<(&str, u8)> =
            self.parts.iter().copied().zip(codes.iter().copied()).filter(|(_, code)| *code != 0).collect();
        // A stage before one that lost its reader loses its reader, too. A user's program then ends with any code.
        let lost_its_reader = |part: &str| {
            let at = self.parts.iter().position(|other| *other == part);
            at.and_then(|at| codes.get(at + 1)) == Some(&BROKEN_PIPE)
        };
        let is_cause = |(part, code): &&(&str, u8)| *code != BROKEN_PIPE && !lost_its_reader(part);
        let first = failed.iter().find(is_cause).or_else(|| failed.first());
        let Some((part, code)) = first else { return Ok(()) };
        let program = if self.name == STEP.name || self.name == JUDGED_STEP.name { "" } else { demo };
        let part = match *part {
            "demo" | "tasks" if !program.is_empty() => format!("{program} {part}"),
            part => part.to_owned(),
        };
        if let Some(file) = part.strip_prefix("tee ").filter(|_| *code != BROKEN_PIPE) {
            let failure = Failure::io(format!("{context}: {file} cannot be written"));
            return Err(
                failure.hint("see that there is room on that disk (df -h), and who may write there (ls -l)")
            );
        }
        let mut failure = Failure::work(format!("{context}: {part} failed with exit code {code}"));
        failure.code = *code;
        let refused = failed.iter().rfind(|(part, code)| *code != BROKEN_PIPE && lost_its_reader(part));
        if let Some((writer, _)) = refused.filter(|(writer, _)| *writer != part) {
            return Err(failure.hint(format!("it read what {writer} wrote: see its message above")));
        }
        Err(match code {
            2 => failure.hint("./pipeline.sh --help says what the flags take"),
            74 => {
                failure.hint("see that there is room on that disk (df -h), and who may write there (ls -l)")
            }
            _ => failure,
        })
    }
}

/// The context in which pipes run.
#[derive(Debug)]
pub struct Place<'a> {
    pub programs: &'a Programs,
    /// The run directory.
    pub run: &'a Path,
    /// The folder of the stages' command lines.
    pub stages: PathBuf,
    /// The run's lock, which stages inherit.
    pub lock: Option<File>,
}

impl Place<'_> {
    /// Starts a command. It inherits the run's lock, and keeps it if it outlives this process.
    pub fn start(&self, command: &mut Command) -> Result<Child> {
        let inherit = |flags: FdFlags| match &self.lock {
            Some(lock) => fcntl_setfd(lock.as_fd(), flags).map_err(std::io::Error::from),
            None => Ok(()),
        };
        let child = inherit(FdFlags::empty()).and_then(|()| command.spawn());
        inherit(FdFlags::CLOEXEC)?;
        child.map_err(|error| cannot_start("bash", &error))
    }

    /// A `bash` that runs one of this project's scripts.
    pub fn bash(&self, file: &Path) -> Command {
        let mut bash = self.programs.command("bash");
        bash.arg(file).env("RUN", self.run).env("STAGES", &self.stages);
        bash
    }

    /// A shell that runs one pipe.
    pub fn one_pipe(&self, pipe: Pipe, step: u64) -> Command {
        let mut bash = self.bash(&self.programs.script());
        bash.args(["pipe", pipe.name, &step.to_string()]);
        bash
    }

    /// The exit codes that a one-pipe shell recorded.
    pub fn codes(&self) -> Vec<u8> {
        let text = fs::read_to_string(self.stages.join("codes")).unwrap_or_default();
        numbers(&text)
    }
}

fn numbers(text: &str) -> Vec<u8> {
    text.split_whitespace().filter_map(|code| code.parse().ok()).collect()
}

/// A shell that stays alive and runs pipes on request.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Shell {
    pub fn start(place: &Place<'_>) -> Result<Shell> {
        let mut bash = place.bash(&place.programs.script());
        bash.arg("loop").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = place.start(&mut bash)?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or_else(|| Failure::work("the shell has no output"))?;
        Ok(Shell { child, orders, answers: BufReader::new(answers) })
    }

    /// Runs a pipe to its end.
    pub fn run(&mut self, pipe: Pipe, step: u64, context: &str, program: &str) -> Result<()> {
        let order = format!("{} {step}\n", pipe.name);
        let told = self.orders.as_mut().map(|orders| orders.write_all(order.as_bytes()));
        if matches!(told, Some(Err(_))) {
            self.orders = None; // it would wait for the order, and we for its answer
        }
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let codes = numbers(&line);
        if told.is_none_or(|told| told.is_err()) || read.is_err() || codes.len() != pipe.parts.len() {
            processes::wait_if_stopping();
            return Err(Failure::work(format!("{context}: the shell that runs the stages ended"))
                .hint("the same command goes on from there"));
        }
        let outcome = pipe.outcome(&codes, context, program);
        if outcome.is_err() {
            processes::wait_if_stopping();
        }
        outcome
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.orders = None; // closes its input
        // The shell exits at the end of its input.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_that_failed_is_named_and_not_those_that_lost_their_reader() {
        let failed = |codes: &[u8]| STEP.outcome(codes, "step 1", "envs").err().map(|f| (f.code, f.message));
        let named = |part: &str, code| Some((code, format!("step 1: {part} failed with exit code {code}")));
        assert_eq!(failed(&[0; 7]), None);
        assert_eq!(failed(&[0, 0, 0, 0, 0, 141, 2]), named("update", 2));
        assert_eq!(failed(&[0, 0, 65, 65, 65, 0, 65]), named("rollout", 65));
        assert_eq!(failed(&[0, 0, 0, 0, 1, 141, 65]), named("update", 65), "a program without a reader");
        assert_eq!(failed(&[0, 0, 0, 0, 1, 0, 65]), named("advantage", 1));
        assert_eq!(failed(&[1, 141, 65, 65, 65, 0, 65]), named("rollout", 65));
        assert_eq!(failed(&[141, 141, 0, 0, 0, 0, 0]), named("tasks", 141));
        let refused = STEP.outcome(&[0, 0, 0, 0, 1, 141, 65], "step 1", "envs").unwrap_err();
        assert_eq!(refused.hint.as_deref(), Some("it read what advantage wrote: see its message above"));
        let full = Some((74, "step 1: samples.jsonl cannot be written".to_owned()));
        assert_eq!(failed(&[0, 0, 0, 0, 0, 1, 65]), full);
        let evaluation = EVALUATION.outcome(&[3, 65], "evaluation after step 0", "envs").unwrap_err();
        assert_eq!(evaluation.message, "evaluation after step 0: envs tasks failed with exit code 3");
    }
}
