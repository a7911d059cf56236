//! Converts records of public data sets to tasks: the layouts of `envs import`.
//!
//! A layout is an entry of [`LAYOUTS`]: how its records are recognized and converted. A problem's name and
//! split depend only on a hash of its text, so they are the same wherever it comes from.
//!
//! Left out: downloading, and formats other than JSON and JSON Lines. (Parquet readers are larger than all dependencies
//! of this crate together.) A file of another format is refused with the command that converts it.

pub mod asserts;
pub mod code;
pub mod collaboration;
pub mod math;

use std::collections::{HashMap, HashSet};

use record::failure::{Failure, Result};
use record::line::Task;
use serde_json::{Map, Value};

use environment::Split;
use environment::streams;
pub use problems::file::identity;
use problems::file::split_of;

/// A record of a public data set.
pub type Fields = Map<String, Value>;

/// A converted record.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The text that identifies the problem, whoever published it.
    pub text: String,
    /// The task's `spec`.
    pub spec: Value,
}

/// The layout of a data set's records.
pub struct Layout {
    /// The name for `--layout`.
    pub name: &'static str,
    /// The environment of its tasks.
    pub environment: &'static str,
    /// The data sets that use it, and the fields by which it is recognized.
    pub summary: &'static str,
    /// Returns true if a record has this layout.
    pub recognizes: fn(&Fields) -> bool,
    /// Converts a record, or says why it cannot.
    pub convert: fn(&Fields) -> std::result::Result<Problem, Refusal>,
}

/// Why a record is not converted.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// It is unusable, for this short reason.
    LeftOut(&'static str),
    /// It could not be judged, for example without a sandbox; the import fails.
    Failed(Failure),
}

impl From<&'static str> for Refusal {
    fn from(reason: &'static str) -> Refusal {
        Refusal::LeftOut(reason)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal::Failed(failure)
    }
}

/// All layouts; the first that recognizes a record is used.
pub static LAYOUTS: &[&Layout] = &[
    &code::PROBLEM,
    &code::APPS,
    &code::CODE_CONTESTS,
    &code::LIVE_CODE_BENCH,
    &asserts::MBPP,
    &asserts::HUMAN_EVAL,
    &collaboration::HUMAN_EVAL,
    &collaboration::TLDR,
    &collaboration::ARXIV,
    &math::GSM8K,
    &math::OLYMPIADBENCH,
    &math::VERL,
    &math::ANSWER,
    &math::SOLUTION,
    &math::MESSAGES,
];

/// The layout called `name`.
pub fn find(name: &str) -> Result<&'static Layout> {
    let names: Vec<&str> = LAYOUTS.iter().map(|layout| layout.name).collect();
    LAYOUTS.iter().find(|layout| layout.name == name).copied().ok_or_else(|| {
        Failure::usage(format!("there is no layout '{name}'"))
            .hint(environment::settings::suggest(name, &names))
    })
}

pub fn recognize(record: &Fields) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| (layout.recognizes)(record)).copied()
}

/// A record with a placeholder in each empty field.
fn filled(record: &Fields) -> Fields {
    let is_empty =
        |value: &Value| value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty());
    let fields = record.iter().map(|(name, value)| {
        let something = if name == "prompt" { Value::Array(Vec::new()) } else { "?".into() };
        (name.clone(), if is_empty(value) { something } else { value.clone() })
    });
    fields.collect()
}

/// The value of the first of these fields, ignoring case.
fn field<'a>(record: &'a Fields, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| {
        record.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    })
}

/// The first of these fields that is non-blank text.
fn text<'a>(record: &'a Fields, names: &[&str]) -> Option<&'a str> {
    field(record, names).and_then(Value::as_str).filter(|text| !text.trim().is_empty())
}

/// Converts records to tasks, each problem once.
#[derive(Default)]
pub struct Importer {
    /// The layout; `None` to recognize each record's.
    pub layout: Option<&'static Layout>,
    /// The split of all problems; `None` to hash each.
    pub split: Option<Split>,
    /// The share of problems that the hash puts into the test split; `None` for one in eight.
    pub test_share: Option<f64>,
    /// The tasks' `source`.
    pub source: Option<String>,
    /// Hashes of problems to leave out.
    pub without: HashSet<u64>,
    /// Hashes of problems seen so far.
    pub seen: HashSet<u64>,
    /// Number of records left out, by reason.
    pub left_out: HashMap<&'static str, u64>,
}

impl Importer {
    /// The task of a record; `None` if it is left out.
    ///
    /// # Errors
    /// No layout recognizes the record: data. A solution must be tried, but there is no sandbox: unavailable.
    pub fn task(&mut self, record: &Value) -> Result<Option<Task>> {
        let mut leave_out = |reason| {
            *self.left_out.entry(reason).or_insert(0) += 1;
            Ok(None)
        };
        let record = match record {
            Value::Object(record) => record,
            Value::Null => return leave_out("null"),
            _ => return Err(Failure::data("a record is no JSON object")),
        };
        let layout = match self.layout.or_else(|| recognize(record)) {
            Some(layout) => layout,
            None if recognize(&filled(record)).is_some() => return leave_out("a field without a value"),
            None => {
                let fields: Vec<&str> = record.keys().map(String::as_str).take(12).collect();
                return Err(Failure::data(format!("no layout has the fields {}", fields.join(", ")))
                    .hint("`envs import --layouts` says which fields each layout is recognized by"));
            }
        };
        let Problem { text, mut spec } = match (layout.convert)(record) {
            Ok(problem) => problem,
            Err(Refusal::LeftOut(reason)) => return leave_out(reason),
            Err(Refusal::Failed(failure)) => return Err(failure),
        };
        let identity = identity(&text);
        if self.without.contains(&identity) {
            return leave_out("among the problems of --without");
        }
        if !self.seen.insert(identity) {
            return leave_out("there before");
        }
        if let (Some(source), Some(spec)) = (&self.source, spec.as_object_mut()) {
            spec.insert("source".to_owned(), source.as_str().into());
        }
        let split = self.split.unwrap_or_else(|| split_of(&text, self.test_share));
        let name = format!("{identity:016x}");
        Ok(Some(streams::task(layout.environment, split, &name, spec)))
    }
}
