//! Where math problems come from: generated stories and files; and how answers to them are checked.

use std::sync::Arc;

use record::failure::Result;
use record::line::Task;
use record::philox::{Draws, Stream};
use serde_json::Value;

use super::answer::extract;
use super::spec::{Encoding, MathProblem, Reasoning, Rules, Spec};
use super::state::{is_once, same};
use super::story::Chain;
use super::{NAME, full, test_actions};
use crate::Problem;
use crate::workflow_file::Checker;
use environment::settings::Settings;
use environment::streams;
use environment::workflow::Workflow;
use environment::{ExtractionCase, Split};

/// One in this many word problems is for testing.
const TEST_SHARE: u64 = 8;
/// Draws after which rules are assumed to allow no task.
const ATTEMPTS: u32 = 20_000;

impl Problem for MathProblem {
    const SHIPPED: &'static str = include_str!("../../data/math.jsonl");
    fn checker(self: Arc<Self>) -> Option<Arc<dyn Checker>> {
        (self.spec.encoding == Encoding::Full).then_some(self as Arc<dyn Checker>)
    }

    type Rules = Rules;

    fn workflow(name: &str, spec: &Value) -> Result<Option<Arc<Workflow>>> {
        if name != "ensemble" {
            return Ok(None);
        }
        MathProblem::ensemble(&MathProblem::parse(spec)?.spec).map(Some)
    }

    fn rules(settings: &Settings) -> Result<Rules> {
        Rules::from_settings(settings)
    }

    /// A word problem belongs to `test` if a hash of its chain of arithmetic is divisible by 8. The hash
    /// ignores the wording, so a chain seen in training never returns in the test split, in other words
    /// or in the other encoding.
    fn draw(rules: &Rules, split: Split, stream: Stream) -> Result<Task> {
        let draw = |draws: &mut Draws| {
            let sum = !rules.is_compact() && rules.level == 1;
            let steps = 1 + draws.below(rules.most_steps());
            let chain = match sum {
                true => Chain::draw_sum(rules.largest, rules.operand, draws),
                false => Chain::draw(steps, rules.largest, rules.operand, draws),
            };
            let text = chain.write();
            if streams::split_of(text.as_bytes(), TEST_SHARE) != split || chain.steps.len() != steps as usize
            {
                return None;
            }
            let problem = match (rules.is_compact(), sum) {
                (true, _) => chain.tell_shortly(draws),
                (false, true) => chain.ask(draws),
                (false, false) => chain.tell(draws),
            };
            let mut spec = rules.spec(problem, chain.value().unwrap_or_default().to_string());
            if !rules.is_compact() {
                spec["chain"] = text.as_str().into();
            }
            spec["level"] = steps.into();
            let name = format!("{:016x}", streams::first_word(text.as_bytes()));
            Some(streams::task(NAME, split, &name, spec))
        };
        streams::first_task(ATTEMPTS, split, stream, draw, || {
            let settings =
                format!("level={} largest={} operand={}", rules.level, rules.largest, rules.operand);
            (settings, "a higher level or a greater largest leaves more room")
        })
    }

    fn from_file(rules: &Rules, raw: &Value, _name: &str) -> Result<Value> {
        let Spec { problem, answer, .. } = MathProblem::parse(raw)?.spec;
        Ok(rules.spec(problem, answer))
    }

    fn question(rules: &Rules, text: &str) -> Option<Value> {
        let text = text.trim();
        let value = Chain::read_shortly(text).filter(|_| rules.is_compact()).and_then(|chain| chain.value());
        // A word, so that any kind of answer can be found.
        let answer = value.map_or("unknown".to_owned(), |value| value.to_string());
        Some(rules.spec(text.to_owned(), answer))
    }

    fn parse(_name: &str, spec: &Value) -> Result<Self> {
        MathProblem::parse(spec)
    }

    fn turns(&self, workflow: &Workflow) -> u32 {
        if is_once(workflow) { 1 } else { self.spec.turns }
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        test_actions::extraction_cases()
    }
}

impl Checker for MathProblem {
    fn problem(&self) -> String {
        self.spec.problem.clone()
    }

    fn form(&self) -> &'static str {
        match self.spec.reasoning {
            Reasoning::Brief => "Answer in one line, as an equation.",
            Reasoning::Steps => "Put the final answer into \\boxed{}.",
        }
    }

    fn is_brief(&self) -> bool {
        self.spec.reasoning == Reasoning::Brief
    }

    fn answer(&self, text: &str) -> Option<String> {
        match self.spec.reasoning {
            // A right value out of a false equation is no answer.
            Reasoning::Brief => extract::calculation(text)
                .filter(|(answer, is_false)| !is_false || !self.is_answered_by(answer))
                .map(|(answer, _)| answer),
            Reasoning::Steps => extract::answer(text),
        }
    }

    fn grade(&self, answer: &str) -> Result<f64> {
        Ok(f64::from(self.is_answered_by(answer)))
    }

    fn same(&self, left: &str, right: &str) -> bool {
        same(left, right)
    }

    fn solution(&self) -> Option<String> {
        Some(full::write_solution(&self.spec.answer))
    }
}
