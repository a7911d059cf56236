//! A situation in a Code episode: the program and the test case of the last turn, and whether they agree.
//!
//! A turn ends when the coder has answered, or, in the team, the coder and the tester together. The episode is over when
//! they agree, that is, when the program does on the tester's input what the tester expects (without a tester: when it
//! passes the examples that the statement shows), and after its last turn, when the last program is handed in as it is.
//! It is a success when the program then passes every golden test. Agreement alone is none.
//!
//! Team reward: what a turn adds to the best share of golden tests passed so far. The paper pays the share itself at
//! every turn (Stronger-MAS, arXiv 2510.11062, appendix A.1), which pays a team with a right program for not agreeing.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::{Message, Rewards};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::judge::{self, Quality, TestResults};
use super::spec::{Encoding, Instance, Style, Test};
use super::{NAME, compact, extract, full, test_actions};
use crate::environment::{Checks, Outcome, State};
use crate::spec::read_state;
use crate::workflow::Workflow;

/// Tests whose inputs the program has to take without failing, for the component `smoke`.
const SMOKE: usize = 2;

/// A case on which the program did not do what was expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disagreement {
    /// The case.
    pub case: Test,
    /// What the program gave, if anything.
    pub got: Option<String>,
    /// Why it gave nothing.
    pub fault: String,
}

/// A situation.
#[derive(Clone, Debug)]
pub struct CodeState {
    instance: Arc<Instance>,
    workflow: Arc<Workflow>,
    kept: Kept,
}

/// What a situation consists of, beside the task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// Turns that have ended.
    turn: u32,
    /// The coder's last program.
    program: Option<String>,
    /// The tester's last case.
    case: Option<Test>,
    /// Where program and case, or program and examples, differed at the end of the last turn.
    disagreement: Option<Disagreement>,
    /// Most golden tests that a program has passed.
    best: usize,
    /// The episode has ended.
    over: bool,
}

/// [`CodeState::to_json`], read.
#[derive(Deserialize)]
struct RawState {
    spec: Value,
    workflow: String,
    #[serde(flatten)]
    kept: Kept,
}

impl CodeState {
    /// The beginning of an episode.
    pub fn new(instance: Arc<Instance>, workflow: Arc<Workflow>) -> Self {
        CodeState { instance, workflow, kept: Kept::default() }
    }

    /// The state that `to_json` wrote; `find` looks a workflow up.
    ///
    /// # Errors
    /// Something else: data.
    pub fn restore(value: &Value, find: impl Fn(&str) -> Result<Arc<Workflow>>) -> Result<Self> {
        let raw: RawState = read_state(value)?;
        let instance = Instance::parse(&raw.spec)?;
        let (kept, total) = (raw.kept, instance.problem.tests.len());
        if kept.best > total {
            return Err(Failure::data(format!("state: best: {} of {total} tests", kept.best)));
        }
        Ok(CodeState { workflow: find(&raw.workflow)?, instance, kept })
    }

    /// The task.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    fn has_tester(&self) -> bool {
        self.workflow.position("tester").is_some()
    }

    fn is_compact(&self) -> bool {
        self.instance.rules.encoding == Encoding::Compact
    }

    /// An answer that stands for `program`.
    pub fn write_program(&self, program: &str) -> String {
        if self.is_compact() { compact::write_program(program) } else { full::write_program(program) }
    }

    /// An answer that stands for `case`.
    pub fn write_case(&self, case: &Test) -> String {
        if self.is_compact() { compact::write_case(case) } else { full::write_case(case) }
    }

    /// The golden test that finds out most wrong programs.
    pub fn best_case(&self) -> Result<&Test> {
        let tests = &self.instance.problem.tests;
        let mut best = (&tests[0], -1.0);
        for test in tests {
            let quality = judge::quality(&self.instance, test)?;
            if quality.finds > best.1 {
                best = (test, quality.finds);
            }
        }
        Ok(best.0)
    }

    /// The coder's answer: what it earns, and the program from now on.
    fn code(&mut self, text: &str) -> Result<Outcome> {
        let program = if self.is_compact() { compact::program(text) } else { extract::program(text) };
        let mut parts = BTreeMap::from([("compiles", 0.0), ("smoke", 0.0), ("golden", 0.0)]);
        let mut results =
            TestResults { passed: 0, total: self.instance.problem.tests.len(), first_failure: None };
        if let Some(source) = &program
            && judge::compiles(&self.instance, source)?
        {
            parts.insert("compiles", 1.0);
            let mut smoke = true;
            for test in self.instance.problem.tests.iter().take(SMOKE) {
                smoke = smoke && judge::run(&self.instance, source, &test.input)?.output.is_some();
            }
            parts.insert("smoke", f64::from(u8::from(smoke)));
            results = judge::golden(&self.instance, source)?;
            parts.insert("golden", results.fraction());
        }
        let local = 0.1 * parts["compiles"] + 0.1 * parts["smoke"] + 0.8 * parts["golden"];
        let team = results.passed.saturating_sub(self.kept.best) as f64 / results.total as f64;
        self.kept.best = self.kept.best.max(results.passed);
        self.kept.program = program;
        Ok(outcome(team, local, parts))
    }

    /// The tester's answer: what it earns, and the case from now on.
    fn test(&mut self, text: &str) -> Result<Outcome> {
        let case = if self.is_compact() {
            compact::test_case(text)
        } else {
            // A line that a program reads or prints ends with a line feed.
            let end = if self.instance.problem.style == Style::Stdin { "\n" } else { "" };
            extract::test_case(text).map(|(input, output)| Test { input: input + end, output: output + end })
        };
        let quality = match &case {
            Some(case) => judge::quality(&self.instance, case)?,
            None => Quality { valid: false, agrees: false, finds: 0.0 },
        };
        let flag = |flag: bool| f64::from(u8::from(flag));
        let parts = BTreeMap::from([
            ("valid", flag(quality.valid)),
            ("agrees", flag(quality.agrees)),
            ("finds", quality.finds),
        ]);
        // A case that is right is worth half of the quality, finding out wrong programs the other half.
        let local = 0.2 * parts["valid"] + 0.4 * parts["agrees"] + 0.4 * parts["finds"];
        self.kept.case = case;
        Ok(outcome(0.0, local, parts))
    }

    /// Ends the turn: whether there is agreement, whether the episode is over, whether it is a success.
    fn end_turn(&mut self, outcome: &mut Outcome) -> Result<()> {
        self.kept.turn += 1;
        self.kept.disagreement = None;
        let mut agreed = false;
        if let Some(program) = &self.kept.program {
            let cases: Vec<&Test> = if self.has_tester() {
                self.kept.case.iter().collect()
            } else {
                self.instance.problem.shown().iter().collect()
            };
            agreed = !cases.is_empty();
            for case in cases {
                let run = judge::run(&self.instance, program, &case.input)?;
                let style = self.instance.problem.style;
                if !run.output.as_ref().is_some_and(|got| judge::same(style, &case.output, got)) {
                    agreed = false;
                    let (case, got, fault) = (case.clone(), run.output, run.fault);
                    self.kept.disagreement = Some(Disagreement { case, got, fault });
                    break;
                }
            }
        }
        self.kept.over = agreed || self.kept.turn >= self.turn_limit();
        outcome.terminated = self.kept.over;
        outcome.components.insert("agreement".to_owned(), f64::from(u8::from(agreed)));
        if self.kept.over
            && let Some(program) = &self.kept.program
        {
            outcome.success = judge::golden(&self.instance, program)?.all();
        }
        Ok(())
    }

    fn begin(&self, agent: &str) -> Result<()> {
        self.workflow.check(agent)?;
        if self.kept.over {
            return Err(Failure::data("the episode is over: the program was handed in"));
        }
        Ok(())
    }

    fn answer(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.begin(agent)?;
        if agent == "tester" { self.test(text) } else { self.code(text) }
    }
}

impl State for CodeState {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        if self.workflow.name() == "one-shot" { 1 } else { self.instance.rules.turns }
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let (program, last) = (self.kept.program.as_deref(), self.kept.disagreement.as_ref());
        let problem = &self.instance.problem;
        let content = if self.is_compact() {
            compact::prompt(&problem.statement, agent, program, last)
        } else {
            full::prompt(problem, agent, !self.has_tester(), program, last)
        };
        vec![Message { role: "user".to_owned(), content }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        let mut outcome = self.answer(agent, text)?;
        // In the team a turn ends when both have answered; an answer alone is scored, and ends nothing.
        if !self.has_tester() {
            self.end_turn(&mut outcome)?;
        }
        Ok(outcome)
    }

    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        let mut joint = outcome(0.0, 0.0, BTreeMap::new());
        for (agent, text) in actions {
            let own = self.answer(agent, text)?;
            joint.rewards.team += own.rewards.team;
            joint.components.extend(own.components);
        }
        self.end_turn(&mut joint)?;
        Ok(joint)
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        json!({
            "env": NAME,
            "spec": self.instance.spec,
            "workflow": self.workflow.name(),
            "turn": self.kept.turn,
            "program": self.kept.program,
            "case": self.kept.case,
            "disagreement": self.kept.disagreement,
            "best": self.kept.best,
            "over": self.kept.over,
        })
    }

    fn checks(&self) -> Option<&dyn Checks> {
        Some(self)
    }
}

impl Checks for CodeState {
    fn oracle(&self, agent: &str) -> Option<String> {
        if agent == "tester" {
            // Without a sandbox there is no oracle; whoever asks learns why from the first `apply`.
            return self.best_case().ok().map(|case| self.write_case(case));
        }
        self.instance.problem.solution.as_ref().map(|solution| self.write_program(solution))
    }

    /// By the reference solution: the program gives what the solution gives, whatever the tests expect.
    fn is_solved(&self) -> bool {
        let (Some(program), true) = (&self.kept.program, self.kept.over) else { return false };
        let instance = &self.instance;
        let right = |test: &Test| -> Result<bool> {
            let expected = match &instance.problem.solution {
                Some(solution) => judge::run(instance, solution, &test.input)?.output,
                None => Some(test.output.clone()),
            };
            let got = judge::run(instance, program, &test.input)?.output;
            Ok(
                matches!((expected, got), (Some(expected), Some(got)) if judge::same(instance.problem.style, &expected, &got)),
            )
        };
        instance.problem.tests.iter().all(|test| right(test).unwrap_or(false))
    }

    fn test_actions(&self, agent: &str) -> Vec<String> {
        test_actions::all(self, agent)
    }

    fn draw(&self) -> String {
        let Kept { turn, program, case, .. } = &self.kept;
        let mut text = format!("{}\nturn {turn}\n", self.instance.problem.statement.trim_end());
        if let Some(program) = program {
            text.push_str(&format!("program:\n{}\n", program.trim_end()));
        }
        if let Some(case) = case {
            let (input, output) = (case.input.trim_end(), case.output.trim_end());
            // A case of one line is one line.
            text.push_str(&match input.contains('\n') || output.contains('\n') {
                true => format!("case, input:\n{input}\ncase, output:\n{output}\n"),
                false => format!("case: {input} -> {output}\n"),
            });
        }
        text
    }
}

fn outcome(team: f64, local: f64, parts: BTreeMap<&str, f64>) -> Outcome {
    Outcome {
        rewards: Rewards { team, local },
        components: parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        terminated: false,
        success: false,
    }
}
