//! A Code episode: the program and the test case of the last turn, and the rewards of answers.
//!
//! A turn ends when the coder has answered, or in the team, when coder and tester have. The episode ends when
//! they agree: the program's result on the tester's input equals the tester's expected output. (Without a
//! tester, the program must pass the examples in the statement.) It also ends after the last turn, with the
//! last program. It is a success if the program passes every golden test. Agreement alone is not a success.
//!
//! A coder earns `.1 compiles + .1 smoke + .8 golden`, a tester `.1 valid + .1 agrees + .8 finds`, where
//! `finds` is the share of wrong programs that its case detects. The paper pays as much for a case that the
//! statement already shows.
//!
//! Team reward: the increase over the best share of golden tests passed so far. The paper pays the share
//! itself at every turn (Stronger-MAS, arXiv 2510.11062, appendix A.1), so that a team with a right
//! program gains by not agreeing.
//!
//! Demonstrators: `opt` gives the reference solution and a right test case. `careless` gives a program for a
//! similar task (an expression without its brackets) and the output of another test. Mostly careless answers
//! make a policy weak in a way that RL can correct.

use record::failure::{Failure, Result};
use record::philox::Draws;
use serde::{Deserialize, Serialize};

use super::judge::{self, Disagreement, Quality, TestResults};
use super::spec::{Encoding, Instance, Style, Test};
use super::{compact, expression, extract, full, test_actions};
use crate::{Episode, Playable, Problem, fences, outcome};
use environment::Outcome;
use environment::demonstration::Demonstration;
use environment::workflow::Workflow;

/// Tests whose inputs the program must accept without failing, for the component `smoke`.
const SMOKE: usize = 2;

/// The part of the state that turns change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Situation {
    /// Turns that have ended.
    turn: u32,
    /// The coder's last program.
    program: Option<String>,
    /// The tester's last case.
    case: Option<Test>,
    /// The first difference between program and case, or program and examples, in the last turn.
    disagreement: Option<Disagreement>,
    /// Largest number of golden tests that a program has passed.
    best: usize,
    /// The episode has ended.
    over: bool,
}

impl Episode<Instance> {
    fn has_tester(&self) -> bool {
        self.workflow.position("tester").is_some()
    }

    fn is_compact(&self) -> bool {
        self.problem.rules.encoding == Encoding::Compact
    }

    /// An answer with this program.
    pub fn write_program(&self, program: &str) -> String {
        if self.is_compact() { compact::write_program(program) } else { full::write_program(program) }
    }

    /// An answer with this case.
    pub fn write_case(&self, case: &Test) -> String {
        if self.is_compact() { compact::write_case(case) } else { full::write_case(case) }
    }

    /// The golden test that detects most wrong programs.
    fn best_case(&self) -> Result<&Test> {
        let tests = &self.problem.problem.tests;
        let mut best = (&tests[0], -1.0);
        for test in tests {
            let finds = judge::quality(&self.problem, test)?.finds;
            if finds > best.1 {
                best = (test, finds);
            }
        }
        Ok(best.0)
    }

    /// Applies the coder's answer and returns its reward.
    fn code(&mut self, text: &str) -> Result<Outcome> {
        let asked = self.problem.wanted();
        let program = if self.is_compact() { compact::program(text) } else { fences::program(text, asked) };
        let tests = &self.problem.problem.tests;
        let (mut compiles, mut smoke) = (false, false);
        let mut results = TestResults { passed: 0, total: tests.len() };
        if let Some(source) = &program
            && judge::compiles(&self.problem, source)?
        {
            compiles = true;
            smoke = true;
            for test in tests.iter().take(SMOKE) {
                smoke = smoke && judge::run(&self.problem, source, &test.input)?.output.is_some();
            }
            results = judge::golden(&self.problem, source)?;
        }
        let Situation { best, program: last, .. } = &mut self.situation;
        let team = results.passed.saturating_sub(*best) as f64 / results.total as f64;
        *best = results.passed.max(*best);
        *last = program;
        let golden = ("golden", 8.0, results.fraction());
        Ok(outcome(team, &[("compiles", 1.0, f64::from(compiles)), ("smoke", 1.0, f64::from(smoke)), golden]))
    }

    /// Applies the tester's answer and returns its reward, most of which is for detecting wrong programs. An
    /// example copied from the statement detects none.
    fn test(&mut self, text: &str) -> Result<Outcome> {
        let case = if self.is_compact() {
            compact::test_case(text)
        } else {
            // Lines that a program reads or prints end with a line feed.
            let end = if self.problem.problem.style == Style::Stdin { "\n" } else { "" };
            extract::test_case(text).map(|(input, output)| Test {
                input: input + end,
                output: output + end,
                ..Test::default()
            })
        };
        let Quality { valid, agrees, finds } = match &case {
            Some(case) => judge::quality(&self.problem, case)?,
            None => Quality::NOTHING,
        };
        self.situation.case = case;
        Ok(outcome(
            0.0,
            &[("valid", 1.0, f64::from(valid)), ("agrees", 1.0, f64::from(agrees)), ("finds", 8.0, finds)],
        ))
    }

    /// Ends the turn: checks for agreement, the end of the episode, and success.
    fn end_turn(&mut self, outcome: &mut Outcome) -> Result<()> {
        self.situation.turn += 1;
        self.situation.disagreement = None;
        let mut agreed = false;
        if let Some(program) = &self.situation.program {
            let cases: Vec<&Test> = match self.has_tester() {
                true => self.situation.case.iter().collect(),
                false => self.problem.problem.shown().iter().collect(),
            };
            agreed = !cases.is_empty();
            for case in cases {
                let run = judge::run(&self.problem, program, &case.input)?;
                if !judge::gives(&self.problem, &run, case) {
                    agreed = false;
                    let (case, got, fault) = (case.clone(), run.output, run.fault);
                    self.situation.disagreement = Some(Disagreement { case, got, fault });
                    break;
                }
            }
        }
        self.situation.over = agreed || self.situation.turn >= self.problem.turns(&self.workflow);
        outcome.terminated = self.situation.over;
        outcome.components.insert("agreement".to_owned(), f64::from(agreed));
        if let Some(program) = self.situation.program.as_ref().filter(|_| outcome.terminated) {
            outcome.success = judge::golden(&self.problem, program)?.all();
        }
        Ok(())
    }
}

impl Instance {
    /// What to look for in an answer.
    pub fn wanted(&self) -> fences::Wanted<'_> {
        match &self.problem.function {
            Some(name) => fences::Wanted::Function(name),
            None => fences::Wanted::Input,
        }
    }
}

impl Playable for Instance {
    /// The reference judges program and test case separately.
    const JOINT: bool = false;

    type Situation = Situation;

    fn start(&self, _workflow: &Workflow) -> Situation {
        Situation::default()
    }

    fn check(episode: &Episode<Self>) -> Result<()> {
        let (best, total) = (episode.situation.best, episode.problem.problem.tests.len());
        match best <= total {
            true => Ok(()),
            false => Err(Failure::data(format!("state: best: {best} of {total} tests"))),
        }
    }

    fn ending(episode: &Episode<Self>) -> Option<&'static str> {
        episode.situation.over.then_some("the program was handed in")
    }

    fn prompt(episode: &Episode<Self>, agent: &str) -> String {
        let Situation { program, disagreement, .. } = &episode.situation;
        let (program, last) = (program.as_deref(), disagreement.as_ref());
        let problem = &episode.problem.problem;
        match episode.is_compact() {
            true => compact::prompt(&problem.statement, agent, program, last),
            false => {
                let reasoning = episode.problem.rules.reasoning;
                full::prompt(problem, reasoning, agent, !episode.has_tester(), program, last)
            }
        }
    }

    /// In the team a turn ends when both have answered. An answer alone is scored, and ends nothing.
    fn play(
        episode: &mut Episode<Self>,
        actions: &[(&str, &str)],
        credited: Option<&str>,
    ) -> Result<Outcome> {
        let mut parts = Vec::new();
        for (agent, text) in actions {
            parts.push((*agent, if *agent == "tester" { episode.test(text)? } else { episode.code(text)? }));
        }
        let team = parts.iter().map(|(_, own)| own.rewards.team).sum();
        let mut outcome = match (credited, parts.pop()) {
            (Some(_), Some((_, own))) => own,
            (_, last) => {
                parts.extend(last);
                Outcome::together(team, &parts)
            }
        };
        if credited.is_none() || !episode.has_tester() {
            episode.end_turn(&mut outcome)?;
        }
        Ok(outcome)
    }

    fn oracle(episode: &Episode<Self>, agent: &str) -> Option<String> {
        if agent == "tester" {
            // Without a sandbox there is no oracle; the first `apply` reports why.
            return episode.best_case().ok().map(|case| episode.write_case(case));
        }
        episode.problem.problem.solution.as_ref().map(|solution| episode.write_program(solution))
    }

    /// Compares the program with the reference solution, ignoring the tests' expected outputs.
    fn is_solved(episode: &Episode<Self>) -> bool {
        let Situation { program: Some(program), over: true, .. } = &episode.situation else { return false };
        let instance = &*episode.problem;
        let right = |test: &Test| -> Result<bool> {
            let expected = match &instance.problem.solution {
                Some(solution) => judge::run(instance, solution, &test.input)?.output,
                None => Some(test.output.clone()),
            };
            let run = judge::run(instance, program, &test.input)?;
            Ok(expected.is_some_and(|output| judge::gives(instance, &run, &Test { output, ..test.clone() })))
        };
        instance.problem.tests.iter().all(|test| right(test).unwrap_or(false))
    }

    fn test_actions(episode: &Episode<Self>, agent: &str) -> Vec<String> {
        test_actions::all(episode, agent)
    }

    fn picture(episode: &Episode<Self>) -> String {
        let Situation { turn, program, case, .. } = &episode.situation;
        let mut text = format!("{}\nturn {turn}\n", episode.problem.problem.statement.trim_end());
        if let Some(program) = program {
            text.push_str(&format!("program:\n{}\n", program.trim_end()));
        }
        if let Some(case) = case {
            let (input, output) = (case.input.trim_end(), case.output.trim_end());
            text.push_str(&match input.contains('\n') || output.contains('\n') {
                true => format!("case, input:\n{input}\ncase, output:\n{output}\n"),
                false => format!("case: {input} -> {output}\n"),
            });
        }
        text
    }

    fn demonstrate(
        episode: &Episode<Self>,
        agent: &str,
        demonstration: &Demonstration,
        draws: &mut Draws,
    ) -> String {
        let problem = &episode.problem.problem;
        let careless = demonstration.kind(draws) == "careless";
        if agent == "tester" {
            let case = problem.tests[draws.below(problem.tests.len() as u32) as usize].clone();
            return match draws.choose(&problem.tests) {
                Some(other) if careless => episode.write_case(&Test { output: other.output.clone(), ..case }),
                _ => episode.write_case(&case),
            };
        }
        let mut program = problem.solution.clone().unwrap_or_default();
        if careless && episode.is_compact() {
            program = expression::program(&format!(" {}", problem.statement));
        } else if careless {
            program = draws.choose(&problem.wrong).cloned().unwrap_or(program);
        }
        episode.write_program(&program)
    }
}
