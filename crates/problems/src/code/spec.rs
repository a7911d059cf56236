//! The `spec` of a Code task: a problem, its golden tests, its reference solution, and the rules of the episode.
//!
//! `spec` alone rebuilds the task. It contains the golden tests and the solution for the judge. Prompts
//! contain only the examples, and the sandbox sees only inputs.

use record::failure::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compare::is_json;
use crate::reasoning::REASONING;
pub use crate::reasoning::Reasoning;
pub use environment::settings::Encoding;
use environment::settings::Setting;
use environment::spec::{checked, fail, read, write_both};
use sandbox::Limits;

/// What `--set` understands.
pub const SETTINGS: &[Setting] = &[
    Setting::new(
        "data",
        "none",
        "FILE of problems, as `envs import` writes it, instead of generated tasks; shipped: 14 of our own",
    ),
    Setting::new(
        "encoding",
        "compact; full with data",
        "compact (an expression, for tiny policies) or full (prose and programs)",
    ),
    Setting::new(
        "level",
        "1",
        "of generated tasks if full: 1 arithmetic on a number, 2 to 4 lists of numbers in more and more steps",
    ),
    REASONING,
    Setting::new("turns", "4", "turns in an episode, 1 to 99; give rollout the same number"),
    Setting::new("least", "2; level - 1 from level 2 on", "fewest steps of a generated task, 1 to 4"),
    Setting::new("most", "3; level from level 2 on", "most steps of a generated task, least to 4"),
    Setting::new("tests", "8; with data all that a problem has", "golden tests of a task, at most; 3 to 200"),
    Setting::new("examples", "2", "how many of a generated task's tests its text shows, 1 to 3"),
    Setting::new("cpu", "4", "processor seconds of a program and test, 0.1 to 60"),
    Setting::new(
        "wall",
        "10 + 5 x cpu",
        "elapsed seconds of a program and test, for programs that sleep; 0.1 to 600",
    ),
    Setting::new("memory", "256", "MiB of a program, 16 to 4096"),
];

/// How a program receives its input and returns its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// Standard input and output.
    Stdin,
    /// A function's arguments, a JSON array, and its value, JSON.
    Function,
}

impl Style {
    /// # Errors
    /// The field of `test` that does not fit this style.
    pub fn check(self, test: &Test) -> std::result::Result<(), &'static str> {
        match self {
            Style::Function if !test.input.trim_start().starts_with('[') || !is_json(&test.input) => {
                Err("input: not a JSON array of arguments")
            }
            Style::Function if !is_json(&test.output) => Err("output: not a JSON value"),
            _ => Ok(()),
        }
    }
}

/// A test: an input and the expected output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Test {
    /// Text, or for functions a JSON array of arguments.
    pub input: String,
    /// Text, or for functions a JSON value.
    pub output: String,
    /// True if the value is a list whose order does not matter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_order: bool,
}

/// A problem, as a line of a data file and as a part of `spec`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodeProblem {
    /// A name; equal problems have equal names.
    #[serde(default)]
    pub name: String,
    /// The problem in words.
    #[serde(rename = "problem")]
    pub statement: String,
    /// How programs take input.
    pub style: Style,
    /// The function's name, if `style` is `function`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The golden tests; the first `examples` of them are shown.
    pub tests: Vec<Test>,
    /// How many tests the statement shows.
    #[serde(default)]
    pub examples: usize,
    /// A program that passes all tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solution: Option<String>,
    /// Programs that fail some test, which a good test case detects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<String>,
}

/// A task: a problem and the rules.
#[derive(Clone, Debug)]
pub struct Instance {
    pub problem: CodeProblem,
    pub rules: Rules,
}

/// The rules of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// The encoding of prompts.
    pub encoding: Encoding,
    /// How much reasoning prompts in prose ask for.
    #[serde(default, skip_serializing_if = "Reasoning::is_default")]
    pub reasoning: Reasoning,
    /// Turns in an episode.
    pub turns: u32,
    /// Processor seconds per program and test.
    pub cpu: f64,
    /// Elapsed seconds per program and test; `None` derives them from `cpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<f64>,
    /// Memory per program, in MiB.
    pub memory: u64,
}

/// How tasks are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSettings {
    pub rules: Rules,
    /// Most golden tests.
    pub tests: usize,
    /// Number of tests shown in a generated task.
    pub examples: usize,
    /// Difficulty of a generated task in prose.
    pub level: usize,
    /// Fewest steps of a generated task.
    pub least: usize,
    /// Most steps of a generated task.
    pub most: usize,
}

impl Rules {
    /// The `spec` of `problem` under these rules.
    pub fn spec(&self, problem: &CodeProblem) -> Value {
        write_both(self, problem)
    }
}

impl Instance {
    /// Parses `spec`.
    pub fn parse(spec: &Value) -> Result<Instance> {
        let (rules, problem): (Rules, CodeProblem) = (read(spec)?, read(spec)?);
        checked("turns", rules.turns, 1, 99)?;
        checked("cpu", rules.cpu, 0.1, 60.0)?;
        checked("wall", rules.wall.unwrap_or(1.0), 0.1, 600.0)?;
        checked("memory", rules.memory, 16, 4096)?;
        problem.check().map_err(fail)?;
        Ok(Instance { problem, rules })
    }

    /// The limits for a program.
    pub fn limits(&self) -> Limits {
        let cpu_seconds = self.rules.cpu;
        let wall_seconds = self.rules.wall.unwrap_or(10.0 + 5.0 * cpu_seconds);
        Limits { cpu_seconds, wall_seconds, memory_bytes: self.rules.memory << 20, ..Limits::default() }
    }
}

impl CodeProblem {
    /// Checks the problem.
    pub fn check(&self) -> std::result::Result<(), String> {
        if self.statement.trim().is_empty() {
            return Err("problem: it is empty".to_owned());
        }
        if self.tests.is_empty() {
            return Err("tests: there are none".to_owned());
        }
        if self.examples > self.tests.len() {
            return Err(format!("examples: {} of {} tests", self.examples, self.tests.len()));
        }
        if self.style == Style::Function && self.function.as_ref().is_none_or(String::is_empty) {
            return Err("function: it has no name".to_owned());
        }
        let check =
            |(number, test)| self.style.check(test).map_err(|cause| format!("tests[{number}].{cause}"));
        self.tests.iter().enumerate().try_for_each(check)
    }

    /// The tests that the statement shows.
    pub fn shown(&self) -> &[Test] {
        &self.tests[..self.examples.min(self.tests.len())]
    }
}
