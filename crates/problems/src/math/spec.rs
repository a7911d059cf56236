//! Settings and the `spec` of a math task, as JSON and as values.

use std::sync::Arc;

use record::failure::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::Answer;
use super::answer::finished::Question;
use super::story::{Chain, DIGIT};
use crate::reasoning::REASONING;
pub use crate::reasoning::Reasoning;
pub use environment::settings::Encoding;
use environment::settings::{REWARD, RewardMode, Setting, Settings, TURNS, choice, ranged};
use environment::spec::{checked, fail, read, write};
use environment::workflow::Workflow;

/// The settings of `--set`.
pub const SETTINGS: &[Setting] = &[
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
    Setting::new(
        "level",
        "3; 1 if full",
        "most steps of a problem, 1 to 8; full: 1 asks for a sum or difference, and from 2 on level - 1 is the most steps of a story",
    ),
    Setting::new("largest", "20; 100 if full", "greatest total of a word problem, 9 to 9999"),
    Setting::new("operand", "9; 50 if full", "greatest number to begin with, add or subtract, 9 to 9999"),
    REASONING,
    TURNS,
    REWARD,
    Setting::new(
        "pay",
        "proposals",
        "who is paid before a judge or checker decides: proposals (as if they were adopted) or final (its word alone)",
    ),
    Setting::new("reasoners", "2", "reasoners of --workflow ensemble, 1 to 16"),
    Setting::new("tools", "1", "tools of --workflow ensemble, 0 to 16"),
    Setting::new("wall", "30", "elapsed seconds of a tool's program, for programs that sleep; 0.1 to 600"),
];

/// The rules of an episode, and how word problems are drawn.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Difficulty of word problems, from 1 on.
    pub level: u32,
    /// Largest running total of a word problem.
    pub largest: u32,
    /// Largest start, and largest operand of a sum or difference.
    pub operand: u32,
    /// The `spec` of every task, without a problem.
    pub spec: Spec,
}

/// The rewarded actions, if a judge or checker decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pay {
    /// A proposal earns what it would if it were adopted. Returns over an episode then
    /// count a right one twice.
    #[default]
    Proposals,
    /// Only the final decision is rewarded.
    Final,
}

impl Pay {
    fn from_settings(settings: &Settings) -> Result<Pay> {
        match settings.text("pay") {
            None | Some("proposals") => Ok(Pay::Proposals),
            Some("final") => Ok(Pay::Final),
            Some(other) => Err(choice("pay", other, "proposals or final")),
        }
    }

    fn is_default(&self) -> bool {
        *self == Pay::Proposals
    }
}

/// The fields of a `spec`; others are kept and ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    /// The text.
    pub problem: String,
    /// The reference answer as written.
    pub answer: String,
    pub encoding: Encoding,
    pub turns: u32,
    #[serde(skip_serializing_if = "RewardMode::is_default")]
    pub reward: RewardMode,
    #[serde(skip_serializing_if = "Pay::is_default")]
    pub pay: Pay,
    /// Number of reasoners in an ensemble.
    pub reasoners: u32,
    /// Number of tools in an ensemble.
    pub tools: u32,
    /// Elapsed seconds of a tool's program; `None` for the sandbox's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall: Option<f64>,
    #[serde(skip_serializing_if = "Reasoning::is_default")]
    pub reasoning: Reasoning,
    /// The arithmetic of a generated problem in prose, as written by [`Chain::write`], for demonstrations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
}

impl Default for Spec {
    fn default() -> Spec {
        let (problem, answer) = (String::new(), String::new());
        let (reasoning, chain) = (Reasoning::default(), None);
        Spec {
            problem,
            answer,
            encoding: Encoding::Full,
            turns: 4,
            reward: RewardMode::default(),
            pay: Pay::default(),
            reasoners: 2,
            tools: 1,
            wall: None,
            reasoning,
            chain,
        }
    }
}

impl Rules {
    pub fn is_compact(&self) -> bool {
        self.spec.encoding == Encoding::Compact
    }

    /// Most steps of a word problem.
    pub fn most_steps(&self) -> u32 {
        if self.is_compact() { self.level } else { self.level.max(2) - 1 }
    }

    /// The rules from settings.
    ///
    /// # Errors
    /// Values are out of range or contradict each other: usage.
    pub fn from_settings(settings: &Settings) -> Result<Rules> {
        let encoding = Encoding::of_problems(settings)?;
        let [level, largest, operand] = match encoding {
            Encoding::Compact => [3, 20, DIGIT],
            Encoding::Full => [1, 100, 50],
        };
        Ok(Rules {
            level: settings.whole("level", level, 1, 8)?,
            largest: settings.whole("largest", largest, 9, 9999)?,
            operand: settings.whole("operand", operand, 9, 9999)?,
            spec: Spec {
                encoding,
                turns: settings.whole("turns", 4, 1, 99)?,
                reward: RewardMode::from_settings(settings)?,
                pay: Pay::from_settings(settings)?,
                reasoners: settings.whole("reasoners", 2, 1, 16)?,
                tools: settings.whole("tools", 1, 0, 16)?,
                wall: settings
                    .value("wall", "a number")?
                    .map(|wall| ranged("wall", wall, 0.1, 600.0))
                    .transpose()?,
                reasoning: Reasoning::from_settings(settings, encoding)?,
                ..Spec::default()
            },
        })
    }

    /// The `spec` of a problem under these rules.
    pub fn spec(&self, problem: String, answer: String) -> Value {
        write(&Spec { problem, answer, ..self.spec.clone() })
    }
}

/// A problem, constant during its episodes.
#[derive(Clone, Debug)]
pub struct MathProblem {
    pub spec: Spec,
    /// What the reference answer means.
    pub answer: Answer,
    /// The arithmetic of a generated problem.
    pub chain: Option<Chain>,
}

impl MathProblem {
    /// Parses a problem.
    ///
    /// # Errors
    /// `json` is not a math problem: data.
    pub fn parse(json: &Value) -> Result<MathProblem> {
        let spec: Spec = read(json)?;
        let (text, reference) = (&spec.problem, &spec.answer);
        if text.trim().is_empty() {
            return Err(fail("problem: there is no text"));
        }
        let answer = Answer::read(reference).ok_or_else(|| fail("answer: there is none"))?;
        checked("turns", spec.turns, 1, 99)?;
        checked("reasoners", spec.reasoners, 1, 16)?;
        checked("tools", spec.tools, 0, 16)?;
        checked("wall", spec.wall.unwrap_or(1.0), 0.1, 600.0)?;
        let chain = match (spec.encoding, &spec.chain) {
            (Encoding::Full, None) => None,
            (Encoding::Full, Some(chain)) => {
                Some(Chain::read(chain).ok_or_else(|| fail(format!("chain: '{chain}' is no arithmetic")))?)
            }
            (Encoding::Compact, _) => Some(Chain::read_shortly(text).ok_or_else(|| {
                fail(format!("problem: '{text}' is no short story")).hint("for example: has 7 gets 5 loses 3")
            })?),
        };
        if chain
            .as_ref()
            .is_some_and(|chain| chain.value().map(|value| value.to_string()).as_ref() != Some(reference))
        {
            return Err(fail(format!("answer: {reference} is not the result of '{text}'")));
        }
        Ok(MathProblem { spec, answer, chain })
    }

    /// Returns true if `said` is the answer, worked out as far as the reference.
    pub fn is_answered_by(&self, said: &str) -> bool {
        let question = Question { problem: &self.spec.problem, reference: &self.spec.answer };
        [said, question.asked(said)].iter().any(|said| {
            Answer::read(said).is_some_and(|answer| {
                answer.same(&self.answer) && question.is_finished(said, (&answer, &self.answer))
            })
        })
    }

    /// The workflow of its ensemble: reasoners and tools in parallel, then a judge.
    pub fn ensemble(spec: &Spec) -> Result<Arc<Workflow>> {
        let named =
            |role: &'static str, count: u32| (1..=count).map(move |number| format!("{role}-{number}"));
        let proposers = named("reasoner", spec.reasoners).chain(named("tool", spec.tools)).collect();
        Workflow::staged("ensemble", vec![proposers, vec!["judge".to_owned()]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_setting_reaches_the_rules() {
        let read = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            let rules = Rules::from_settings(&Settings::parse(&texts, "math", SETTINGS).unwrap()).unwrap();
            let spec = serde_json::to_value(&rules.spec).unwrap();
            json!([rules.level, rules.largest, rules.operand, rules.most_steps(), spec])
        };
        let spec = |change: Value| {
            let mut spec = serde_json::to_value(Spec::default()).unwrap();
            spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            spec
        };
        assert_eq!(read(&[]), json!([3, 20, 9, 3, spec(json!({"encoding": "compact"}))]));
        let brief = spec(json!({"encoding": "full", "reasoning": "brief"}));
        assert_eq!(read(&["encoding=full"]), json!([1, 100, 50, 1, brief]));
        let settings = [
            "encoding=full",
            "level=4",
            "largest=200",
            "operand=77",
            "turns=7",
            "reward=success",
            "pay=final",
            "reasoners=5",
            "tools=0",
            "wall=2.5",
            "reasoning=steps",
        ];
        // Without the key, a task means reasoning in steps.
        let expected = json!({"encoding": "full", "turns": 7, "reward": "success", "pay": "final", "reasoners": 5, "tools": 0, "wall": 2.5});
        assert_eq!(read(&settings), json!([4, 200, 77, 3, spec(expected)]));
    }

    #[test]
    fn a_task_out_of_range_is_refused() {
        let task = json!({"problem": "has 7 gets 5", "answer": "12", "encoding": "compact"});
        assert!(MathProblem::parse(&task).is_ok());
        for (key, value) in [
            ("turns", json!(0)),
            ("turns", json!(100)),
            ("reasoners", json!(0)),
            ("reasoners", json!(17)),
            ("tools", json!(17)),
            ("wall", json!(0.05)),
            ("wall", json!(601)),
            ("answer", json!("13")),
            ("problem", json!(" ")),
        ] {
            let mut wrong = task.clone();
            wrong[key] = value;
            let message = MathProblem::parse(&wrong).unwrap_err().message;
            assert!(message.contains(key), "{message}");
        }
    }
}
