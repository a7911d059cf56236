//! Records of public data sets become tasks: `envs import` and `envs fetch`.
//!
//! `layouts.py` and `records.py` are one program that `python3` runs: it fetches, reads files and converts records. [`judge`]
//! keeps those that the environments can judge, and [`Importer`] each problem once. A problem's name and split depend only on
//! a hash of its text, so they are the same wherever it comes from.

pub mod judge;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, ErrorKind, Lines, Write};
use std::process::{Child, ChildStdout, Stdio};

use record::failure::{Failure, Result};
use record::line::Task;
use record::stage;
use serde::Deserialize;
use serde_json::Value;

use environment::{Split, streams};
use judge::{Draft, Refusal};
use problems::file::{identity, split_of};

const PROGRAM: &str = concat!(include_str!("layouts.py"), include_str!("records.py"));

/// A line of the program, for a record or about its work.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Line {
    /// Why the record is left out.
    left_out: Option<String>,
    /// The converted record, if it can be judged.
    #[serde(flatten)]
    pub draft: Draft,
    /// Its split, where the data set says it.
    split: Option<String>,
    /// Where it stands.
    pub place: String,
    /// For people, on stderr.
    note: Option<String>,
    /// The kind of an error.
    failure: Option<String>,
    /// The message of an error, or a line of the list of layouts.
    pub message: String,
    hint: Option<String>,
    /// Names to choose from.
    names: Vec<String>,
}

/// The lines of a running program; notes are printed.
pub struct Records {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Records {
    /// Starts the program on the bytes of a file.
    ///
    /// # Errors
    /// There is no `python3`: 69.
    pub fn read(arguments: &[&str], input: &[u8]) -> Result<Records> {
        let failure = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => Failure::unavailable("python3 was not found")
                .hint("data sets are read by Python 3.9 or newer: install it as `python3` on the path"),
            _ => Failure::work(format!("python3: {error}")),
        };
        let mut command = stage::python();
        command.args(["-c", PROGRAM]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failure)?;
        // It reads everything before it answers; if it ended before, its status says so.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input));
        let stdout = child.stdout.take().ok_or_else(|| Failure::work("python3 has no stdout"))?;
        Ok(Records { child, lines: BufReader::new(stdout).lines() })
    }
}

impl Iterator for Records {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Result<Line>> {
        loop {
            let Some(text) = self.lines.next() else {
                return match self.child.wait() {
                    Ok(status) if status.success() => None,
                    Ok(status) => Some(Err(Failure::work(format!("python3 ended with {status}")))),
                    Err(error) => Some(Err(Failure::work(error))),
                };
            };
            let line = text.map_err(Failure::work);
            match line.and_then(|text| serde_json::from_str::<Line>(&text).map_err(Failure::work)) {
                Ok(Line { note: Some(note), .. }) => stage::note("envs", note),
                Ok(line @ Line { failure: Some(_), .. }) => return Some(Err(line.failure())),
                line => return Some(line),
            }
        }
    }
}

impl Line {
    fn failure(self) -> Failure {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let failure = match self.failure.as_deref() {
            Some("usage") => Failure::usage(self.message),
            Some("unavailable") => Failure::unavailable(self.message),
            _ => Failure::data(self.message),
        };
        match (self.hint, names.as_slice()) {
            (Some(hint), []) => failure.hint(hint),
            (Some(name), names) => failure.hint(environment::settings::suggest(&name, names)),
            (None, _) => failure,
        }
    }

    /// The `spec` of its task.
    pub fn judged(&self) -> std::result::Result<Value, Refusal> {
        match &self.left_out {
            Some(reason) => Err(Refusal::LeftOut(reason.clone())),
            None => self.draft.spec(),
        }
    }
}

/// Makes tasks of problems, each problem once.
#[derive(Default)]
pub struct Importer {
    /// The split of all problems; `None` to hash each.
    pub split: Option<Split>,
    /// The share of problems that the hash puts into the test split; `None` for one in eight.
    pub test_share: Option<f64>,
    /// The tasks' `source`.
    pub source: Option<String>,
    /// Hashes of problems to leave out.
    pub without: HashSet<u64>,
    /// Number of records left out, by reason.
    pub left_out: BTreeMap<String, u64>,
    /// Hashes of problems seen so far, with their splits.
    pub seen: HashMap<u64, Split>,
}

impl Importer {
    /// The task of a record; `None` if it is left out.
    ///
    /// # Errors
    /// A solution must be tried, but there is no sandbox: 69. The problem stands in the other split: 65.
    pub fn task(
        &mut self,
        line: &Line,
        judged: std::result::Result<Value, Refusal>,
    ) -> Result<Option<(Split, Task)>> {
        let mut leave_out = |reason: String| {
            *self.left_out.entry(reason).or_insert(0) += 1;
            Ok(None)
        };
        let mut spec = match judged {
            Ok(spec) => spec,
            Err(Refusal::LeftOut(reason)) => return leave_out(reason),
            Err(Refusal::Failed(failure)) => return Err(failure.at(&line.place)),
        };
        let text = spec["problem"].as_str().unwrap_or_default();
        let (identity, name) = (identity(text), format!("{:016x}", identity(text)));
        if self.without.contains(&identity) {
            return leave_out("among the problems of --without".to_owned());
        }
        let split = match line.split.as_deref() {
            Some("test") => Split::Test,
            Some(_) => Split::Train,
            None => self.split.unwrap_or_else(|| split_of(text, self.test_share)),
        };
        match self.seen.insert(identity, split) {
            None => {}
            Some(before) if before == split => return leave_out("there before".to_owned()),
            Some(before) => {
                let before = before.name();
                return Err(Failure::data(format!(
                    "{}: this {} problem stands in the {before} split",
                    line.place,
                    split.name()
                ))
                .hint("train on what is never tested: remove the record from one of the files"));
            }
        }
        if let (Some(source), Some(spec)) = (&self.source, spec.as_object_mut()) {
            spec.insert("source".to_owned(), source.as_str().into());
        }
        Ok(Some((split, streams::task(&line.draft.env, split, &name, spec))))
    }

    /// Leaves out the problem of a line of `problems`.
    pub fn exclude(&mut self, line: &Line) {
        self.without.extend(line.draft.spec["problem"].as_str().map(identity));
    }
}
