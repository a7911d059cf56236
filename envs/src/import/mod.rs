//! Records of public data sets as tasks: the layouts behind `envs import`.
//!
//! A layout is a row of [`LAYOUTS`]: how its records are recognized and converted. A problem's name and split
//! are decided by a hash of its text alone, so that it has one name and one split wherever it comes from.
//!
//! Left out: downloading, and formats other than JSON and JSON Lines (readers of Parquet are larger than all of this crate's
//! dependencies together); `python3 -c "import pandas; pandas.read_parquet('FILE')
//! .to_json('FILE.jsonl', orient='records', lines=True)"` turns Parquet into the latter.

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

/// What a record becomes.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The text that the problem is known by, whoever published it.
    pub text: String,
    /// The task's `spec`.
    pub spec: Value,
}

/// The layout of a data set's records.
pub struct Layout {
    /// What `--layout` selects.
    pub name: &'static str,
    /// The environment of its tasks.
    pub environment: &'static str,
    /// The data sets that use it, and the fields that it is recognized by.
    pub summary: &'static str,
    /// True if a record has it.
    pub recognizes: fn(&Fields) -> bool,
    /// The problem of a record, or why there is none.
    pub convert: fn(&Fields) -> std::result::Result<Problem, Refusal>,
}

/// Why a record becomes no problem.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// It cannot be used; the reason in a few words.
    LeftOut(&'static str),
    /// It could not be judged, as without a sandbox: the import fails.
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

/// Every layout; the first that recognizes a record is taken.
pub static LAYOUTS: &[&Layout] = &[
    &code::PROBLEM,
    &code::APPS,
    &code::CODE_CONTESTS,
    &code::LIVE_CODE_BENCH,
    &code::MBPP,
    &collaboration::HUMAN_EVAL,
    &collaboration::CLASS_EVAL,
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
///
/// # Errors
/// No such layout: usage, with the nearest name as hint.
pub fn find(name: &str) -> Result<&'static Layout> {
    let names: Vec<&str> = LAYOUTS.iter().map(|layout| layout.name).collect();
    LAYOUTS.iter().find(|layout| layout.name == name).copied().ok_or_else(|| {
        Failure::usage(format!("there is no layout '{name}'"))
            .hint(environment::settings::suggest(name, &names))
    })
}

/// The layout that a record has.
pub fn recognize(record: &Fields) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| (layout.recognizes)(record)).copied()
}

/// A record with something in each field that has no value.
fn filled(record: &Fields) -> Fields {
    let is_empty =
        |value: &Value| value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty());
    let fields = record.iter().map(|(name, value)| {
        let something = if name == "prompt" { Value::Array(Vec::new()) } else { "?".into() };
        (name.clone(), if is_empty(value) { something } else { value.clone() })
    });
    fields.collect()
}

/// The value of the first field of these names, in any case.
fn field<'a>(record: &'a Fields, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| {
        record.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    })
}

/// The first field of `names` that is text and not blank.
fn text<'a>(record: &'a Fields, names: &[&str]) -> Option<&'a str> {
    field(record, names).and_then(Value::as_str).filter(|text| !text.trim().is_empty())
}

/// Turns records into tasks, each problem once.
#[derive(Default)]
pub struct Importer {
    /// The layout; `None`: as the fields of each record say.
    pub layout: Option<&'static Layout>,
    /// The split of all problems; `None`: by the hash of each.
    pub split: Option<Split>,
    /// The share of problems that go into the test split by their hash; `None`: one in eight.
    pub test_share: Option<f64>,
    /// The tasks' `source`.
    pub source: Option<String>,
    /// Problems to leave out.
    pub without: HashSet<u64>,
    /// Problems seen so far.
    pub seen: HashSet<u64>,
    /// How many records were left out, by reason.
    pub left_out: HashMap<&'static str, u64>,
}

impl Importer {
    /// The task of a record; `None` where it is left out.
    ///
    /// # Errors
    /// A record of no known layout: data. A solution that has to be tried, and no sandbox: unavailable.
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
