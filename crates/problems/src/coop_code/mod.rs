//! `coop-code`: one agent writes a helper function, another the main function that may call it.
//!
//! From MAGRPO (arXiv 2508.04652): within a turn neither sees the other's code; after it, each is told the
//! results of both. Problems have HumanEval's layout, a signature with a docstring and a test
//! `check(candidate)`. [`judge`] has the reward, [`functions`] reads answers, [`need`] tests whether the
//! helper is needed, [`feedback`] describes results.
//!
//! Workflows: `team`; `pipeline`, in which the main function's author sees the helper; `discussion`, in
//! which both see both after the first turn; `single`, in which one agent writes both. Left out:
//! feedback by another model.

pub mod feedback;
pub mod functions;
pub mod judge;
pub mod need;

use std::sync::{Arc, LazyLock};

use record::failure::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::gates::{GATES, Gates};
use crate::joint::{Grade, JointTask, Shown, TURNS, turns, workflows};
use crate::{Problem, problem};
use environment::settings::{Setting, Settings, choice};
use environment::spec::{checked, fail, read, write_both};
use environment::workflow::Workflow;
use environment::{ExtractionCase, Metadata};
use feedback::Feedback;
use judge::{MOST, Question, Report};

/// The environment's name.
pub const NAME: &str = "coop-code";
/// The environment.
pub static COOP_CODE: problem::ProblemEnvironment<Pair> = problem::ProblemEnvironment::new(
    NAME,
    Metadata {
        summary: "write a helper function and the main function that calls it",
        workflows: &WORKFLOWS,
        settings: &[
            Setting::new(
                "data",
                "shipped",
                "FILE of problems, as `envs import` writes it; shipped: 28 of our own",
            ),
            TURNS,
            GATES,
            Setting::new(
                "feedback",
                "level-feedback",
                "what is told after a turn: plain (nothing), passed, level-passed or level-feedback (every finding)",
            ),
            Setting::new(
                "shown",
                "1",
                "assertions that feedback is about, the first ones, 0 to 1000; 0: all",
            ),
            Setting::new("cpu", "4", "processor seconds of an assertion, 0.1 to 60"),
            Setting::new(
                "success",
                "0.9",
                "share of the greatest reward, 4, that a success takes beside passing every test",
            ),
        ],
        demonstrators: &[],
        max_tokens: |settings| problem::max_tokens(settings, 256, 256),
    },
);

static WORKFLOWS: LazyLock<Vec<Arc<Workflow>>> = LazyLock::new(|| workflows(["aux", "main"], "coder"));

/// The rules of an episode.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    turns: u32,
    gates: Gates,
    feedback: Feedback,
    /// How many assertions, from the first on, feedback covers; 0 for all.
    shown: usize,
    cpu: f64,
    success: f64,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            turns: 2,
            gates: Gates::default(),
            feedback: Feedback::default(),
            shown: 1,
            cpu: 4.0,
            success: 0.9,
        }
    }
}

/// The fields of a `spec` without the rules; other fields are kept and ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Imports, signature and description.
    problem: String,
    entry_point: String,
    test: String,
    /// Functions with the largest reward.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    aux: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    main: String,
}

impl Spec {
    pub fn check(&self) -> std::result::Result<(), &'static str> {
        let name = self.entry_point.as_str();
        let letters = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        match () {
            () if self.problem.trim().is_empty() => Err("problem: there is no text"),
            () if name.is_empty() || !name.chars().all(letters) || name == "aux" => {
                Err("entry_point: no name of a main function")
            }
            () if functions::assertions(&self.test).is_empty() => {
                Err("test: check(candidate) asserts nothing")
            }
            () => Ok(()),
        }
    }
}

/// A problem for two agents.
#[derive(Clone, Debug)]
pub struct Pair {
    spec: Spec,
    rules: Rules,
}

impl Pair {
    fn judge(&self, texts: &[&str]) -> Result<Report> {
        let Spec { problem, entry_point, test, .. } = &self.spec;
        let Rules { cpu, gates, .. } = self.rules;
        let question = Question { prompt: problem, entry: entry_point, test, cpu, gates };
        let pair = match texts {
            [helper, main, ..] => [*helper, *main],
            both => [both.first().copied().unwrap_or_default(); 2],
        };
        judge::judge(&question, pair)
    }

    /// The answer of `agent` that contains these functions.
    fn answer(workflow: &Workflow, agent: &str, aux: &str, main: &str) -> String {
        let code = match agent {
            _ if workflow.name() == "single" => format!("{aux}\n\n{main}"),
            "aux" => aux.to_owned(),
            _ => main.to_owned(),
        };
        format!("```python\n{code}\n```")
    }
}

impl Problem for Pair {
    const SHIPPED: &'static str = include_str!("../../data/coop-code.jsonl");
    const DATA: Option<&'static str> = Some("shipped");

    type Rules = Rules;

    fn rules(settings: &Settings) -> Result<Rules> {
        let feedback = settings.text("feedback").map_or(Ok(Feedback::default()), |name| {
            Feedback::named(name).ok_or_else(|| choice("feedback", name, Feedback::NAMES))
        })?;
        Ok(Rules {
            turns: settings.whole("turns", 2, 1, 99)?,
            gates: Gates::of(settings)?,
            feedback,
            shown: settings.whole("shown", 1, 0, 1000)?,
            cpu: settings.number("cpu", 4.0, 0.1, 60.0)?,
            success: settings.number("success", 0.9, 0.0, 1.0)?,
        })
    }

    fn from_file(rules: &Rules, raw: &Value, _name: &str) -> Result<Value> {
        let spec: Spec = read(raw)?;
        spec.check().map_err(fail)?;
        Ok(write_both(&spec, rules))
    }

    fn parse(_name: &str, spec: &Value) -> Result<Self> {
        let (spec, rules): (Spec, Rules) = (read(spec)?, read(spec)?);
        spec.check().map_err(fail)?;
        checked("turns", rules.turns, 1, 99)?;
        checked("cpu", rules.cpu, 0.1, 60.0)?;
        checked("success", rules.success, 0.0, 1.0)?;
        Ok(Pair { spec, rules })
    }

    fn turns(&self, workflow: &Workflow) -> u32 {
        turns(self.rules.turns, workflow)
    }

    fn reward_range(&self) -> (f64, f64) {
        (0.0, MOST)
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        let spec = json!({
            "problem": "def double(x):\n    \"\"\"Twice x.\"\"\"\n", "entry_point": "double",
            "test": "def check(candidate):\n    assert candidate(2) == 4\n",
        });
        [("empty", "", None), ("prose", "I would call aux.", None)]
            .map(|case| ExtractionCase::new(&spec, "main", case))
            .to_vec()
    }
}

impl JointTask for Pair {
    fn prompt(&self, workflow: &Workflow, agent: &str, shown: &Shown<'_>) -> String {
        let Spec { problem, entry_point: entry, .. } = &self.spec;
        let signature =
            functions::signature(problem, entry).map_or_else(|| format!("def {entry}(...):"), str::to_owned);
        let problem = problem.trim();
        let (parameters, arguments) = functions::parameters(&signature);
        let helper = format!("def aux({parameters}):\n    ...\n    return ...");
        let main = format!("{signature}\n    part = aux({arguments})\n    ...\n    return ...");
        let (place, form) = match agent {
            _ if workflow.name() == "single" => (
                format!(
                    "Write a helper function aux, which computes something that {entry} needs, and {entry}, which calls it."
                ),
                format!("{helper}\n\n{main}"),
            ),
            "aux" => (
                format!(
                    "Your partner writes {entry}. You do not write {entry}: you write a helper function aux with the same parameters, which computes something that {entry} needs."
                ),
                helper,
            ),
            _ => (
                format!(
                    "Your partner writes a helper function aux({arguments}), which computes something that you need. You write {entry}, which calls it, and do not define aux."
                ),
                main,
            ),
        };
        // Small models follow an example of the form better than a description.
        let mut text = format!(
            "Solve this problem with two functions:\n\n{problem}\n\n{place} Answer with one ```python block in this form and nothing else: no docstring, no comments, no tests.\n\n```python\n{form}\n```"
        );
        for (position, said) in &shown.texts {
            let own = workflow.agents()[*position] == agent;
            let who = if own {
                "You wrote before".to_owned()
            } else {
                format!("Your partner wrote, as {}", workflow.agents()[*position])
            };
            text.push_str(&format!("\n\n{who}:\n\n{}", said.trim()));
        }
        if let Some(feedback) = shown.feedback {
            text.push_str(&format!("\n\n{feedback}\n\nWrite your function again, and mend what is wrong."));
        }
        text
    }

    fn grade(&self, workflow: &Workflow, texts: &[&str]) -> Result<Grade> {
        let report = self.judge(texts)?;
        let levels = report.levels();
        let told = self.rules.feedback.told(&report, self.rules.shown);
        Ok(Grade {
            team: report.total(),
            components: levels.map(|(name, points, most)| (name, (points / most).max(0.0))).to_vec(),
            success: report.runs() && report.share() == 1.0 && report.total() >= self.rules.success * MOST,
            feedback: vec![told; workflow.agents().len()],
        })
    }

    fn best(&self, workflow: &Workflow, agent: &str) -> Option<String> {
        let Spec { aux, main, .. } = &self.spec;
        (!aux.is_empty() && !main.is_empty()).then(|| Pair::answer(workflow, agent, aux, main))
    }

    fn test_actions(&self, workflow: &Workflow, agent: &str) -> Vec<String> {
        let Spec { aux, main, entry_point: entry, .. } = &self.spec;
        let answer = |aux: &str, main: &str| Pair::answer(workflow, agent, aux, main);
        vec![
            answer(aux, &format!("def {entry}(*x):\n    return aux(*x)")),
            answer("def aux(*x):\n    raise SystemExit", main),
            answer(
                "import os\nos._exit(0)\ndef aux(*x):\n    import os\n    os._exit(0)\n    return 1",
                main,
            ),
            answer("def aux(:\n    return 1", &format!("def {entry}(:\n    return 1")),
            format!("I would write aux and {entry}."),
        ]
    }

    fn picture(&self) -> String {
        self.spec.problem.clone()
    }
}
