//! Settings, and the `spec` of a math task as JSON and as values.

use std::sync::Arc;

use record::failure::{Failure, Result};
use serde::Deserialize;
use serde_json::{Map as Object, Value};

use super::answer::Answer;
use super::story::Chain;
pub use crate::settings::Encoding;
use crate::settings::{Setting, Settings, ranged};
use crate::workflow::Workflow;

/// What `--set` understands.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "encoding",
        default: "compact; full with data",
        meaning: "compact (few words; the tool writes a chain of arithmetic) or full (prose; the tool writes Python)",
    },
    Setting {
        name: "data",
        default: "none",
        meaning: "FILE of problems, as `envs import` writes it, instead of word problems; shipped: 42 of our own",
    },
    Setting {
        name: "level",
        default: "3",
        meaning: "most steps of a word problem, 1 to 8; each number of steps is as likely",
    },
    Setting {
        name: "largest",
        default: "20; 1000 if full",
        meaning: "greatest total of a word problem, 9 to 9999",
    },
    Setting { name: "turns", default: "4", meaning: "turns in an episode, 1 to 99" },
    Setting { name: "reasoners", default: "2", meaning: "reasoners of --workflow ensemble, 1 to 16" },
    Setting { name: "tools", default: "1", meaning: "tools of --workflow ensemble, 0 to 16" },
];

/// The rules of an episode, and how word problems are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// How problems are put into words.
    pub encoding: Encoding,
    /// A file of problems.
    pub data: Option<String>,
    /// Most steps of a word problem.
    pub level: u32,
    /// Greatest total of a word problem.
    pub largest: u32,
    /// Turns in an episode.
    pub turns: u32,
    /// Reasoners of an ensemble.
    pub reasoners: u32,
    /// Tools of an ensemble.
    pub tools: u32,
}

impl Rules {
    /// The rules that `--set` describes.
    ///
    /// # Errors
    /// Values out of range, or that contradict each other: usage.
    pub fn from_settings(settings: &Settings) -> Result<Rules> {
        let encoding = Encoding::of_problems(settings)?;
        let number = |name: &str, default: u32, least: u32, most: u32| -> Result<u32> {
            ranged(name, settings.value(name, "a whole number")?.unwrap_or(default), least, most)
        };
        Ok(Rules {
            encoding,
            data: settings.text("data").map(str::to_owned),
            level: number("level", 3, 1, 8)?,
            largest: number("largest", if encoding == Encoding::Compact { 20 } else { 1000 }, 9, 9999)?,
            turns: number("turns", 4, 1, 99)?,
            reasoners: number("reasoners", 2, 1, 16)?,
            tools: number("tools", 1, 0, 16)?,
        })
    }

    /// The `spec` of a problem under these rules; what `known` holds besides (a source, a level) is kept.
    pub fn spec(&self, problem: &str, answer: &str, known: Object<String, Value>) -> Value {
        let mut spec = Object::new();
        spec.insert("problem".to_owned(), problem.into());
        spec.insert("answer".to_owned(), answer.into());
        spec.insert("encoding".to_owned(), self.encoding.name().into());
        spec.insert("turns".to_owned(), self.turns.into());
        spec.insert("reasoners".to_owned(), self.reasoners.into());
        spec.insert("tools".to_owned(), self.tools.into());
        for (key, value) in known {
            spec.entry(key).or_insert(value);
        }
        Value::Object(spec)
    }
}

/// `spec` as it is read. What a source says besides is accepted and not looked at.
#[derive(Deserialize)]
struct RawSpec {
    problem: String,
    answer: String,
    #[serde(default = "full")]
    encoding: Encoding,
    #[serde(default = "four")]
    turns: u32,
    #[serde(default = "two")]
    reasoners: u32,
    #[serde(default = "one")]
    tools: u32,
}

fn full() -> Encoding {
    Encoding::Full
}
fn four() -> u32 {
    4
}
fn two() -> u32 {
    2
}
fn one() -> u32 {
    1
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
        let fail = |cause: String| Failure::data(format!("spec: {cause}"));
        let RawSpec { problem, answer: reference, encoding, turns, reasoners, tools } =
            RawSpec::deserialize(spec).map_err(|error| fail(error.to_string()))?;
        if problem.trim().is_empty() {
            return Err(fail("problem: there is no text".to_owned()));
        }
        let answer = Answer::read(&reference).ok_or_else(|| fail("answer: there is none".to_owned()))?;
        if !(1..=99).contains(&turns) {
            return Err(fail(format!("turns: {turns} is not from 1 to 99")));
        }
        if !(1..=16).contains(&reasoners) || tools > 16 {
            return Err(fail(format!(
                "{reasoners} reasoners and {tools} tools: 1 to 16 and 0 to 16 can play"
            )));
        }
        let chain = match encoding {
            Encoding::Full => None,
            Encoding::Compact => {
                let chain = Chain::read_shortly(&problem).ok_or_else(|| {
                    fail(format!("problem: '{problem}' is no short story"))
                        .hint("for example: has 7 gets 5 loses 3")
                })?;
                let value = chain.value().map(|value| value.to_string());
                if value.as_deref() != Some(&reference) {
                    return Err(fail(format!("answer: {reference} is not what comes out of '{problem}'")));
                }
                Some(chain)
            }
        };
        Ok(Problem {
            text: problem,
            reference,
            answer,
            encoding,
            chain,
            turns,
            reasoners,
            tools,
            spec: spec.clone(),
        })
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
