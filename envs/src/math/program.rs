//! The tool's program, and what it prints.
//!
//! In the full encoding it is Python, and it runs in the sandbox or not at all. In the compact one it is a chain of
//! arithmetic ([`super::story::Chain`]), which a tiny policy can write and which is worked out here.
//!
//! What the last few thousand programs printed is remembered, so that a candidate is applied with the result that it was
//! scored with and not run again, whatever clocks or random numbers it asked for.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use record::failure::Result;

use super::answer::Answer;
use sandbox::{Entry, Limits, Program, Sandbox};

/// Programs whose runs are remembered.
const REMEMBERED: usize = 4096;
/// Characters of output that others are shown and answers are read from.
const LONGEST_OUTPUT: usize = 1000;
/// Processor time of a program in seconds.
const CPU_SECONDS: f64 = 5.0;

/// What came of a program.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// It ran to its end, without an error.
    pub ran: bool,
    /// The end of what it printed; otherwise the last line of the error.
    pub output: String,
}

impl Run {
    /// The last line of the output that something is on, if it is an answer.
    pub fn answer(&self) -> Option<String> {
        let line = self.output.lines().map(str::trim).rfind(|line| !line.is_empty()).filter(|_| self.ran)?;
        let is_answer = match Answer::read(line)? {
            // One word can be an answer; more of them are a message.
            Answer::Word(_) => line.chars().all(char::is_alphabetic),
            _ => true,
        };
        is_answer.then(|| line.to_owned())
    }
}

/// The program in a tool's reply: the last fence marked as Python, else the last fence, else one that was not closed,
/// else the whole reply.
pub fn extract(text: &str) -> Option<&str> {
    let parts: Vec<&str> = text.split("```").collect();
    // Odd parts are inside fences; the last one was not closed if their number is even.
    let inside: Vec<&str> = parts.iter().skip(1).step_by(2).copied().collect();
    let is_python = |block: &&&str| {
        let first = block.lines().next().unwrap_or_default().trim().to_lowercase();
        matches!(first.as_str(), "python" | "py" | "python3")
    };
    let block = match inside.iter().rfind(is_python).or(inside.last()) {
        Some(block) => {
            let (first, rest) = block.split_once('\n').unwrap_or(("", block));
            let is_label = first.trim().chars().all(char::is_alphanumeric);
            if is_label { rest } else { block }
        }
        None => text,
    };
    Some(block).filter(|block| !block.trim().is_empty())
}

/// Runs a Python program in the sandbox.
///
/// # Errors
/// The sandbox is not there: unavailable. Whatever the program does is a [`Run`].
pub fn python(source: &str) -> Result<Arc<Run>> {
    type Runs = HashMap<String, Arc<Run>>;
    static RUNS: LazyLock<Mutex<Runs>> = LazyLock::new(Mutex::default);
    let runs = || RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(run) = runs().get(source) {
        return Ok(Arc::clone(run));
    }
    let limits = Limits { cpu_seconds: CPU_SECONDS, ..Limits::default() };
    let program = Program { source, entry: Entry::Script, stdin: "", limits };
    let execution = Sandbox::shared()?.run(&program)?;
    let ran = execution.is_success();
    let said = match ran {
        true => execution.stdout.trim_end(),
        false => execution.stderr.trim_end().lines().last().unwrap_or("no output"),
    };
    let run = Arc::new(Run { ran, output: end(said, LONGEST_OUTPUT).to_owned() });
    let mut runs = runs();
    if runs.len() >= REMEMBERED {
        runs.clear();
    }
    // Two threads may have run it at the same time: the first result stays.
    Ok(Arc::clone(runs.entry(source.to_owned()).or_insert(run)))
}

/// The last `most` characters.
fn end(text: &str, most: usize) -> &str {
    let from = text.char_indices().rev().nth(most - 1).map_or(0, |(at, _)| at);
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_reader_finds_them() {
        for (text, expected) in [
            ("```python\nprint(1)\n```", "print(1)\n"),
            ("First:\n```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```\nDone.", "print(2)\n"),
            ("```\nprint(1)\n```", "print(1)\n"),
            ("```python\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)\n"),
            ("```py\nprint(1)", "print(1)"),
            ("print(1)", "print(1)"),
        ] {
            assert_eq!(extract(text), Some(expected), "{text:?}");
        }
        assert_eq!(extract(" \n"), None);
        assert_eq!(extract("```python\n```"), None);
    }

    #[test]
    fn the_last_line_is_the_answer() {
        let answer = |ran, output: &str| Run { ran, output: output.to_owned() }.answer();
        assert_eq!(answer(true, "working\n42\n\n").as_deref(), Some("42"));
        assert_eq!(answer(true, "[1, 2]").as_deref(), Some("[1, 2]"));
        assert_eq!(answer(false, "42"), None);
        assert_eq!(answer(true, "no solution found here"), None);
        assert_eq!(answer(true, ""), None);
        assert_eq!(answer(true, "Tuesday").as_deref(), Some("Tuesday"));
    }
}
