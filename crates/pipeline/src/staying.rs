//! `--resident`: one pipe receives the tasks of all steps in turn, and the output of `update`
//! tells which steps are done.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};

use record::failure::{Failure, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use crate::disk;
use crate::keep::{PartFile, StreamSplitter};
use crate::processes;
use crate::programs::code_of;
use crate::shell::{Place, RESIDENT};

/// The pipe of resident stages.
#[derive(Debug)]
pub struct StayingStages {
    shell: Child,
    tasks: Option<ChildStdin>,
    /// The output of `update`, a named pipe. The shell holds no end of it, so it closes when `update` ends.
    updates: File,
    /// The path of that named pipe, until `update` has opened it.
    fifo: PathBuf,
    parts: StreamSplitter,
    metrics: PartFile,
    /// Blocks that arrived together with the end of a step.
    early: std::collections::VecDeque<(Vec<u8>, bool)>,
}

impl StayingStages {
    /// Starts the stages; `step` is the first step they will receive.
    pub fn start(place: &Place<'_>, step: u64) -> Result<StayingStages> {
        disk::remove(&place.stages.join("codes"))?;
        let fifo = place.stages.join("updates");
        disk::remove(&fifo)?;
        let updates = open_fifo(&fifo).map_err(|error| disk::failed("make", &fifo, &error))?;
        let mut bash = place.one_pipe(RESIDENT, step);
        let mut shell = place.start(bash.stdin(Stdio::piped()).stdout(Stdio::null()))?;
        let tasks = shell.stdin.take();
        Ok(StayingStages {
            shell,
            tasks,
            updates,
            fifo,
            parts: StreamSplitter::default(),
            metrics: PartFile::new(place.run, "metrics.jsonl", step),
            early: std::collections::VecDeque::new(),
        })
    }

    /// Sends tasks. If the stages are gone, the next read reports it.
    pub fn pass(&mut self, tasks: &[u8]) {
        if let Some(pipe) = &mut self.tasks {
            let _ = pipe.write_all(tasks).and_then(|()| pipe.flush());
        }
    }

    /// Waits until a step is done. Returns false if the stages ended.
    pub fn wait_for_step(&mut self) -> Result<bool> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            while let Some((block, ends)) = self.early.pop_front() {
                self.metrics.write(&block, ends)?;
                let last = block.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
                let line: Value = serde_json::from_slice(last).unwrap_or_default();
                if ends && line["ok"] == true {
                    disk::remove(&self.fifo)?;
                    return Ok(true);
                }
            }
            match self.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => self.early.extend(self.parts.push(&buffer[..count])),
                Err(error) => return Err(Failure::io(format!("reading the stages' output: {error}"))),
            }
        }
    }

    /// Reads the output of `update`; 0 once it or the shell has ended.
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let wait = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            let heard = poll(&mut [PollFd::new(&self.updates, PollFlags::IN)], Some(&wait));
            let has_ended = heard == Ok(0) && self.shell.try_wait()?.is_some();
            match self.updates.read(buffer) {
                // `update` has not opened the pipe yet.
                Ok(0) if heard == Ok(0) && !has_ended => {}
                Err(error)
                    if [std::io::ErrorKind::Interrupted, std::io::ErrorKind::WouldBlock]
                        .contains(&error.kind()) => {}
                read => return read,
            }
        }
    }

    /// Closes the stages' input and waits until they have saved their states.
    pub fn end(mut self, place: &Place<'_>, context: &str) -> Result<()> {
        self.tasks = None;
        // Output after this point reports no step.
        let _ = disk::remove(&self.fifo);
        while self.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
        let status = self.shell.wait();
        let codes = place.codes();
        let outcome = match status {
            Ok(status) if codes.is_empty() => Err(Failure::work(format!(
                "{context}: the shell that runs the stages ended with exit code {}",
                code_of(status)
            ))
            .hint("the same command goes on from there")),
            _ => RESIDENT.outcome(&codes, context, ""),
        };
        if outcome.is_err() {
            processes::wait_if_stopping();
        }
        outcome
    }
}

/// Makes a named pipe and opens it for reading without waiting for a writer.
fn open_fifo(path: &std::path::Path) -> std::io::Result<File> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name ends with a zero byte and outlives the call.
    if unsafe { libc::mkfifo(name.as_ptr(), 0o600) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Writes the tasks of a step into a file.
///
/// # Errors
/// The stage `tasks` fails; its stream does not have exactly one `end` line, the last (exit 65).
pub fn draw(place: &Place<'_>, step: u64, is_own: bool, file: &std::path::Path) -> Result<()> {
    let mut bash = place.bash(&place.stages.join("tasks"));
    let output = File::create(file).map_err(|error| disk::failed("write", file, &error))?;
    bash.env("STEP", step.to_string()).stdin(Stdio::null()).stdout(output);
    let status = place.start(&mut bash)?.wait();
    let code = status.map_or(1, code_of);
    if code != 0 {
        processes::wait_if_stopping();
        let mut failure = Failure::work(format!("step {step}: tasks failed with exit code {code}"));
        failure.code = code;
        return Err(failure);
    }
    // Otherwise the stages would wait for an `end`, or read later lines as the next step.
    if !is_own && !ends_once(&fs::read(file).map_err(|error| disk::failed("read", file, &error))?) {
        return Err(Failure::data(format!(
            "step {step}: the stream of tasks does not end with its only `end` line"
        ))
        .hint("mend the command of --stage tasks, or of --env-command; or leave out --resident"));
    }
    Ok(())
}

fn ends_once(tasks: &[u8]) -> bool {
    let lines: Option<Vec<Value>> = tasks
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.trim_ascii().is_empty())
        .map(|line| serde_json::from_slice(line).ok())
        .collect();
    let is_end = |line: &Value| line["type"] == "end";
    lines.is_some_and(|lines| {
        lines.iter().filter(|line| is_end(line)).count() == 1 && lines.last().is_some_and(is_end)
    })
}

/// Splits a task stream into the tasks and the `end` line.
pub fn without_end(tasks: &[u8]) -> (&[u8], &[u8]) {
    let last = tasks.trim_ascii_end().iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    tasks.split_at(last)
}

/// The file that holds the next step's tasks until it begins.
pub fn drawn(run: &std::path::Path) -> PathBuf {
    run.join("tasks.drawn")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_tasks_ends_once_and_last() {
        let (task, end) = ("{\"type\":\"task\"}\n", "{\"type\": \"end\"}\n");
        for (text, ends) in [
            (format!("{task}{end}"), true),
            (end.to_owned(), true),
            (String::new(), false),
            (task.to_owned(), false),
            (format!("{end}{task}"), false),
            (format!("{task}{end}{end}"), false),
            (format!("{task}x\n{end}"), false),
        ] {
            assert_eq!(ends_once(text.as_bytes()), ends, "{text}");
        }
        assert_eq!(without_end(b"a\nb\nc\n"), (&b"a\nb\n"[..], &b"c\n"[..]));
        assert_eq!(without_end(b"c"), (&b""[..], &b"c"[..]));
    }
}
