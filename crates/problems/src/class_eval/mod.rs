//! `class-eval`: two agents complete one class, each writing some of its methods.
//!
//! From CoMLRL's environments, after the benchmark ClassEval. The published reward only depends on the choice
//! of methods ([`score`]), so that bodies of `pass` earn all of it. By default (`--set gates=earned`) it is
//! multiplied by the share of tests that the class passes, and a method without a body does not count as
//! written. [`class`] reads skeletons.
//!
//! `--set jobs=take`: agents choose their methods themselves; `partition`: each is told its half, drawn from
//! the problem's name. Left out: more than two agents.

pub mod class;
pub mod score;

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use record::failure::Result;
use record::philox::{Draws, Part, Stream};
use sandbox::{Entry, Limits, Program};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::functions::lines;
use crate::gates::{GATES, Gates};
use crate::joint::{Grade, JointTask, Shown, TURNS, turns, workflows};
use crate::{Problem, problem, run};
use environment::settings::{Setting, Settings, choice};
use environment::spec::{checked, fail, read, write_both};
use environment::workflow::Workflow;
use environment::{BuiltIn, ExtractionCase};
use score::Score;

/// The environment's name.
pub const NAME: &str = "class-eval";
/// The environment.
pub static CLASS_EVAL: BuiltIn = BuiltIn {
    name: NAME,
    summary: "complete a class together, each some of its methods",
    workflows: &WORKFLOWS,
    settings: &[
        Setting::new(
            "data",
            "shipped",
            "FILE of classes, as `envs import` writes it; shipped: 10 of our own",
        ),
        TURNS,
        GATES,
        Setting::new(
            "jobs",
            "take",
            "take (agents choose their methods) or partition (each is told its half)",
        ),
        Setting::new(
            "overlap",
            "published",
            "published (pays for overlap in classes of 7 methods and more) or capped",
        ),
        Setting::new("cpu", "10", "processor seconds of the tests, 0.1 to 60"),
        Setting::new(
            "success",
            "0.9",
            "share of the reward 7 that a success takes beside passing every test",
        ),
    ],
    demonstrators: &[],
    max_tokens: |settings| problem::max_tokens(settings, 512, 512),
    functions: problem::functions::<Class>(),
};

static WORKFLOWS: LazyLock<Vec<Arc<Workflow>>> = LazyLock::new(|| workflows(["coder-1", "coder-2"], "coder"));

/// Appended to a test module: runs its tests and prints their number and the number of failures.
const RUN_TESTS: &str = "
import io as _io, json as _json, sys as _sys, unittest as _unittest
_suite = _unittest.defaultTestLoader.loadTestsFromModule(_sys.modules['__main__'])
_result = _unittest.TextTestRunner(stream=_io.StringIO()).run(_suite)
print()
print(_json.dumps([_result.testsRun, len(_result.failures) + len(_result.errors)]))
";

/// The rules of an episode.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    turns: u32,
    gates: Gates,
    /// Agents are told which methods to write.
    partition: bool,
    /// The points for overlap are capped at 2.
    capped: bool,
    cpu: f64,
    success: f64,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { turns: 2, gates: Gates::default(), partition: false, capped: false, cpu: 10.0, success: 0.9 }
    }
}

/// The fields of a `spec` without the rules; other fields are kept and ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The skeleton.
    problem: String,
    /// Test cases of `unittest`.
    test: String,
    /// The class, complete.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    solution: String,
    /// The methods of each agent, if they are told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    jobs: Vec<Vec<String>>,
}

impl Spec {
    pub fn check(&self) -> std::result::Result<(), &'static str> {
        match class::missing(&self.problem).len() {
            0 => Err("problem: no class with a method to be written"),
            1..=64 if !self.test.trim().is_empty() => Ok(()),
            1..=64 => Err("test: there is none"),
            _ => Err("problem: more than 64 methods"),
        }
    }
}

/// A class to complete.
#[derive(Clone, Debug)]
pub struct Class {
    spec: Spec,
    rules: Rules,
    missing: Vec<String>,
}

impl Class {
    /// The missing methods that a text contains.
    fn written(&self, text: &str) -> HashSet<&str> {
        let is_written = |name: &&str| {
            lines(text, name)
                .is_some_and(|(_, method)| !self.rules.gates.earned() || !class::is_stub(&method))
        };
        self.missing.iter().map(String::as_str).filter(is_written).collect()
    }

    /// Share of the tests that the class passes with the agents' methods.
    fn tests(&self, texts: &[&str]) -> Result<f64> {
        let class = class::merged(&self.spec.problem, texts, self.rules.gates.earned());
        let source = format!("{class}\n\n{}\n{RUN_TESTS}", self.spec.test);
        let limits = Limits { cpu_seconds: self.rules.cpu, ..Limits::default() };
        let execution = run::run(&Program { source: &source, entry: Entry::Script, stdin: "", limits })?;
        let last = execution.stdout.lines().last().filter(|_| execution.is_success());
        let counts = last.and_then(|line| serde_json::from_str::<[u32; 2]>(line).ok());
        Ok(counts.map_or(0.0, |[all, bad]| f64::from(all.saturating_sub(bad)) / f64::from(all.max(1))))
    }

    /// The methods that each of `agents` writes for the oracle: as told, or in turns.
    fn shares(&self, agents: usize) -> Vec<Vec<String>> {
        if agents == 2 && self.spec.jobs.len() == 2 {
            return self.spec.jobs.clone();
        }
        let each = self.missing.len().div_ceil(agents);
        let mut shares: Vec<Vec<String>> = self.missing.chunks(each).map(<[String]>::to_vec).collect();
        shares.resize(agents, Vec::new());
        shares
    }

    /// The solution's text of the methods `names`.
    fn solved(&self, names: &[String]) -> String {
        let method = |name: &String| Some(lines(&self.spec.solution, name)?.1.join("\n"));
        let methods: Vec<String> = names.iter().filter_map(method).collect();
        format!("```python\n{}\n```", methods.join("\n\n"))
    }
}

impl Problem for Class {
    const SHIPPED: &'static str = include_str!("../../data/class-eval.jsonl");
    const DATA: Option<&'static str> = Some("shipped");

    type Rules = Rules;

    fn rules(settings: &Settings) -> Result<Rules> {
        let either = |name, first: &str, second: &str| match settings.text(name) {
            Some(value) if value == second => Ok(true),
            Some(value) if value != first => Err(choice(name, value, &format!("{first} or {second}"))),
            _ => Ok(false),
        };
        Ok(Rules {
            turns: settings.whole("turns", 2, 1, 99)?,
            gates: Gates::of(settings)?,
            partition: either("jobs", "take", "partition")?,
            capped: either("overlap", "published", "capped")?,
            cpu: settings.number("cpu", 10.0, 0.1, 60.0)?,
            success: settings.number("success", 0.9, 0.0, 1.0)?,
        })
    }

    fn from_file(rules: &Rules, raw: &Value, name: &str) -> Result<Value> {
        let mut spec: Spec = read(raw)?;
        spec.check().map_err(fail)?;
        spec.jobs.clear();
        if rules.partition {
            let mut methods = class::missing(&spec.problem);
            Draws::new(Stream::named(0, &[Part::Text(NAME), Part::Text(name)])).shuffle(&mut methods);
            let second = methods.split_off(methods.len().div_ceil(2));
            spec.jobs = vec![methods, second];
        }
        Ok(write_both(&spec, rules))
    }

    fn parse(_name: &str, spec: &Value) -> Result<Self> {
        let (spec, rules): (Spec, Rules) = (read(spec)?, read(spec)?);
        spec.check().map_err(fail)?;
        checked("turns", rules.turns, 1, 99)?;
        checked("cpu", rules.cpu, 0.1, 60.0)?;
        checked("success", rules.success, 0.0, 1.0)?;
        let missing = class::missing(&spec.problem);
        let known = spec.jobs.iter().flatten().all(|name| missing.contains(name));
        match known && (spec.jobs.len() == 2) == rules.partition && (rules.partition || spec.jobs.is_empty())
        {
            true => Ok(Class { spec, rules, missing }),
            false => Err(fail("jobs: not methods for each of two agents, where partition is set")),
        }
    }

    fn turns(&self, workflow: &Workflow) -> u32 {
        turns(self.rules.turns, workflow)
    }

    fn reward_range(&self) -> (f64, f64) {
        (-2.0, Score::most(self.missing.len(), 2, self.rules.capped))
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        let spec =
            json!({"problem": "class A:\n    def one(self):\n        pass\n", "test": "import unittest\n"});
        vec![ExtractionCase::new(&spec, "coder-1", ("empty", "", None))]
    }
}

impl JointTask for Class {
    fn prompt(&self, workflow: &Workflow, agent: &str, shown: &Shown<'_>) -> String {
        let mut text = format!("Complete this class:\n\n```python\n{}\n```\n\n", self.spec.problem.trim());
        let position = workflow.position(agent).unwrap_or_default();
        let names = self.missing.join(", ");
        match self.spec.jobs.get(position) {
            _ if workflow.agents().len() == 1 => text.push_str(&format!("Write the methods {names}. ")),
            Some(jobs) => text.push_str(&format!("Your partner writes the other methods. Write {}. ", jobs.join(", "))),
            None => text.push_str(&format!(
                "You are coder {} of {}. The methods {names} are missing: write your share of them, as many as your partner and \
                 none that your partner writes. ",
                position + 1,
                workflow.agents().len()
            )),
        }
        text.push_str("Put the methods alone, without the class, into one ```python block.");
        text.extend(shown.told(workflow, agent).flat_map(|told| ["\n\n".to_owned(), told]));
        if let Some(feedback) = shown.feedback {
            text.push_str(&format!("\n\n{feedback}\n\nWrite your methods again."));
        }
        text
    }

    fn grade(&self, workflow: &Workflow, texts: &[&str]) -> Result<Grade> {
        let written: Vec<HashSet<&str>> = texts.iter().map(|text| self.written(text)).collect();
        let union: HashSet<&str> = written.iter().flatten().copied().collect();
        let counts: Vec<usize> = written.iter().map(HashSet::len).collect();
        let score = Score::of(self.missing.len(), &counts, union.len(), self.rules.capped);
        let tests = if union.is_empty() { 0.0 } else { self.tests(texts)? };
        let team = if self.rules.gates.earned() { score.earned(tests) } else { score.total() };
        let twice = counts.iter().sum::<usize>() - union.len();
        let told = format!(
            "Written: {} of {} methods, {twice} of them twice. Tests passed: {:.0}%.",
            union.len(),
            self.missing.len(),
            100.0 * tests
        );
        Ok(Grade {
            team,
            components: vec![
                ("coverage", union.len() as f64 / self.missing.len() as f64),
                ("overlap", (score.overlap / 2.0).clamp(0.0, 1.0)),
                ("balance", ((score.balance + 0.5) / 3.5).clamp(0.0, 1.0)),
                ("tests", tests),
            ],
            success: tests == 1.0 && score.total() >= self.rules.success * 7.0,
            feedback: vec![told; workflow.agents().len()],
        })
    }

    fn best(&self, workflow: &Workflow, agent: &str) -> Option<String> {
        // For one method, or seven and more, the published rule's optimum is not the best work.
        let plain = (2..=6).contains(&self.missing.len()) || (self.rules.capped && self.missing.len() > 1);
        let share = self.shares(workflow.agents().len()).into_iter().nth(workflow.position(agent)?)?;
        (plain && !self.spec.solution.is_empty()).then(|| self.solved(&share))
    }

    fn test_actions(&self, workflow: &Workflow, agent: &str) -> Vec<String> {
        let best = self.best(workflow, agent).unwrap_or_default();
        let name = &self.missing[0];
        vec![
            self.solved(&self.missing),
            self.solved(&self.missing[..1]),
            format!("{best}\n\n{}", self.solved(&self.missing)),
            format!("def {name}(self:\n    return"),
            format!("def {name}(self, *more):\n    import os\n    os._exit(0)\n"),
            "I would write the first methods.".to_owned(),
        ]
    }

    fn picture(&self) -> String {
        self.spec.problem.clone()
    }
}
