//! Settings, and the `spec` of a math task as JSON and as values.

use std::sync::Arc;

use record::failure::Result;
use serde::Deserialize;
use serde_json::{Map as Object, Value};

use super::answer::Answer;
use super::story::Chain;
pub use crate::settings::Encoding;
use crate::settings::{Setting, Settings, TURNS};
use crate::spec::{checked, fail, read};
use crate::workflow::Workflow;

/// What `--set` understands.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new(
        "encoding",
        "compact; full with data",
        "compact (few words; the tool writes a chain of arithmetic) or full (prose; the tool writes Python)",
    ),
    Setting::new(
        "data",
        "none",
        "FILE of problems, as `envs import` writes it, instead of word problems; shipped: 42 of our own",
    ),
    Setting::new("level", "3", "most steps of a word problem, 1 to 8; each number of steps is as likely"),
    Setting::new("largest", "20; 1000 if full", "greatest total of a word problem, 9 to 9999"),
    TURNS,
    Setting::new("reasoners", "2", "reasoners of --workflow ensemble, 1 to 16"),
    Setting::new("tools", "1", "tools of --workflow ensemble, 0 to 16"),
];

/// The rules of an episode, and how word problems are drawn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rules {
    pub encoding: Encoding,
    /// A file of problems.
    pub data: Option<String>,
    /// Most steps of a word problem.
    pub level: u32,
    /// Greatest total of a word problem.
    pub largest: u32,
    turns: u32,
    pub reasoners: u32,
    pub tools: u32,
}

impl Rules {
    /// # Errors
    /// Values out of range, or that contradict each other: usage.
    pub fn from_settings(settings: &Settings) -> Result<Rules> {
        let encoding = Encoding::of_problems(settings)?;
        let largest = if encoding == Encoding::Compact { 20 } else { 1000 };
        Ok(Rules {
            encoding,
            data: settings.text("data").map(str::to_owned),
            level: settings.whole("level", 3, 1, 8)?,
            largest: settings.whole("largest", largest, 9, 9999)?,
            turns: settings.whole("turns", 4, 1, 99)?,
            reasoners: settings.whole("reasoners", 2, 1, 16)?,
            tools: settings.whole("tools", 1, 0, 16)?,
        })
    }

    /// The `spec` of a problem under these rules; what `known` holds besides (a source, a level) is kept.
    pub fn spec(&self, problem: &str, answer: &str, known: Object<String, Value>) -> Value {
        let mut spec = Object::from_iter([
            ("problem".to_owned(), problem.into()),
            ("answer".to_owned(), answer.into()),
            ("encoding".to_owned(), self.encoding.name().into()),
            ("turns".to_owned(), self.turns.into()),
            ("reasoners".to_owned(), self.reasoners.into()),
            ("tools".to_owned(), self.tools.into()),
        ]);
        for (key, value) in known {
            spec.entry(key).or_insert(value);
        }
        Value::Object(spec)
    }
}

/// What a source says besides is accepted and ignored.
#[derive(Deserialize)]
struct RawSpec {
    problem: String,
    answer: String,
    encoding: Option<Encoding>,
    turns: Option<u32>,
    reasoners: Option<u32>,
    tools: Option<u32>,
}

/// A problem with everything that stays the same during its episodes.
#[derive(Debug)]
pub struct Problem {
    /// The text.
    pub text: String,
    /// The reference answer as it was written.
    pub reference: String,
    /// What it means.
    pub answer: Answer,
    /// How it is put into words.
    pub encoding: Encoding,
    /// What is to be worked out, where the problem is a short story.
    pub chain: Option<Chain>,
    /// Turns in an episode.
    pub turns: u32,
    /// Reasoners of an ensemble.
    pub reasoners: u32,
    /// Tools of an ensemble.
    pub tools: u32,
    /// The `spec` that this was read from.
    pub spec: Value,
}

impl Problem {
    /// The problem that `spec` describes.
    ///
    /// # Errors
    /// A `spec` that is no math problem: data.
    pub fn parse(spec: &Value) -> Result<Problem> {
        let raw: RawSpec = read(spec)?;
        let (text, reference) = (raw.problem, raw.answer);
        if text.trim().is_empty() {
            return Err(fail("problem: there is no text"));
        }
        let answer = Answer::read(&reference).ok_or_else(|| fail("answer: there is none"))?;
        let encoding = raw.encoding.unwrap_or(Encoding::Full);
        let (turns, reasoners, tools) =
            (raw.turns.unwrap_or(4), raw.reasoners.unwrap_or(2), raw.tools.unwrap_or(1));
        checked("turns", turns, 1, 99)?;
        checked("reasoners", reasoners, 1, 16)?;
        checked("tools", tools, 0, 16)?;
        let chain = match encoding {
            Encoding::Full => None,
            Encoding::Compact => {
                let chain = Chain::read_shortly(&text).ok_or_else(|| {
                    fail(format!("problem: '{text}' is no short story"))
                        .hint("for example: has 7 gets 5 loses 3")
                })?;
                let value = chain.value().map(|value| value.to_string());
                if value.as_deref() != Some(&reference) {
                    return Err(fail(format!("answer: {reference} is not what comes out of '{text}'")));
                }
                Some(chain)
            }
        };
        Ok(Problem { text, reference, answer, encoding, chain, turns, reasoners, tools, spec: spec.clone() })
    }

    /// The ensemble that the problem asks for.
    ///
    /// # Errors
    /// None that the bounds of [`Problem::parse`] leave.
    pub fn ensemble(&self) -> Result<Arc<Workflow>> {
        ensemble(self.reasoners, self.tools)
    }
}

/// Reasoners and tools at once, then a judge.
///
/// # Errors
/// No reasoner and no tool: data.
pub fn ensemble(reasoners: u32, tools: u32) -> Result<Arc<Workflow>> {
    let named = |role: &'static str, count: u32| (1..=count).map(move |number| format!("{role}-{number}"));
    let proposers = named("reasoner", reasoners).chain(named("tool", tools)).collect();
    Workflow::staged("ensemble", vec![proposers, vec!["judge".to_owned()]])
}
