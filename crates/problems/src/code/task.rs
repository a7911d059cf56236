//! Where code problems come from: generated tasks and files; and how programs are checked.

use std::sync::Arc;

use record::failure::Result;
use record::line::Task;
use record::philox::Stream;
use serde_json::Value;

use super::spec::{CodeProblem, Encoding, Instance, Reasoning, Rules, Style, TaskSettings, Test};
use super::{full, generate, judge, test_actions};
use crate::workflow_file::Checker;
use crate::{Problem, fences};
use environment::settings::{Settings, ranged};
use environment::spec::{fail, read};
use environment::workflow::Workflow;
use environment::{ExtractionCase, Split};

impl Problem for Instance {
    const SHIPPED: &'static str = include_str!("../../data/code.jsonl");
    fn checker(self: Arc<Self>) -> Option<Arc<dyn Checker>> {
        (self.rules.encoding == Encoding::Full).then_some(self as Arc<dyn Checker>)
    }

    type Rules = TaskSettings;

    fn rules(settings: &Settings) -> Result<TaskSettings> {
        let encoding = Encoding::of_problems(settings)?;
        let level = settings.whole("level", 1, 1, 4)?;
        let lists = encoding == Encoding::Full && level > 1;
        let least = settings.whole("least", if lists { level - 1 } else { 2 }, 1, 4)?;
        Ok(TaskSettings {
            rules: Rules {
                encoding,
                reasoning: Reasoning::from_settings(settings, encoding)?,
                turns: settings.whole("turns", 4, 1, 99)?,
                cpu: settings.number("cpu", 4.0, 0.1, 60.0)?,
                wall: settings
                    .value("wall", "a number")?
                    .map(|wall| ranged("wall", wall, 0.1, 600.0))
                    .transpose()?,
                memory: settings.whole("memory", 256, 16, 4096)?,
            },
            tests: settings.whole("tests", if settings.text("data").is_some() { 200 } else { 8 }, 3, 200)?,
            examples: settings.whole("examples", 2, 1, 3)?,
            level,
            least,
            most: settings.whole("most", least.max(if lists { level } else { 3 }), least, 4)?,
        })
    }

    fn draw(rules: &TaskSettings, split: Split, stream: Stream) -> Result<Task> {
        generate::draw(rules, split, stream)
    }

    fn from_file(rules: &TaskSettings, raw: &Value, name: &str) -> Result<Value> {
        let mut problem: CodeProblem = read(raw)?;
        problem.check().map_err(fail)?;
        problem.name = name.to_owned();
        problem.tests.truncate(rules.tests.max(problem.examples));
        Ok(rules.rules.spec(&problem))
    }

    fn question(rules: &TaskSettings, text: &str) -> Option<Value> {
        // A test that is not shown and that no program passes.
        let tests = vec![Test { output: "\u{0}".to_owned(), ..Test::default() }];
        let (name, statement, style) = (String::new(), text.to_owned(), Style::Stdin);
        let (function, examples, solution, wrong) = (None, 0, None, Vec::new());
        let problem = CodeProblem { name, statement, style, function, tests, examples, solution, wrong };
        (rules.rules.encoding == Encoding::Full).then(|| rules.rules.spec(&problem))
    }

    fn parse(_name: &str, spec: &Value) -> Result<Self> {
        Instance::parse(spec)
    }

    fn turns(&self, workflow: &Workflow) -> u32 {
        if workflow.name() == "one-shot" { 1 } else { self.rules.turns }
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        test_actions::extraction_cases()
    }
}

impl Checker for Instance {
    fn problem(&self) -> String {
        full::request(&self.problem, self.rules.reasoning)
    }

    fn form(&self) -> &'static str {
        "Give the whole program in one ```python block."
    }

    fn is_brief(&self) -> bool {
        self.rules.reasoning == Reasoning::Brief
    }

    fn answer(&self, text: &str) -> Option<String> {
        fences::program(text, self.wanted())
    }

    fn grade(&self, answer: &str) -> Result<f64> {
        Ok(match judge::compiles(self, answer)? {
            true => judge::golden(self, answer)?.fraction(),
            false => 0.0,
        })
    }

    /// Programs that differ may do the same; votes count equal texts.
    fn same(&self, left: &str, right: &str) -> bool {
        left == right
    }

    fn solution(&self) -> Option<String> {
        self.problem.solution.as_ref().map(|solution| full::write_program(solution))
    }
}
