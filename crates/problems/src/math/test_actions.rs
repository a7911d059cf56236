//! Answers that `envs check` tries: right, wrong in ways that a reward could be fooled by, and malformed.

use serde_json::{Value, json};

use super::compact::write_totals;
use super::message::Role;
use super::spec::{Encoding, MathProblem};
use crate::Episode;
use environment::ExtractionCase;

/// Answers worth trying in the situation of `episode`.
pub fn all(episode: &Episode<MathProblem>, agent: &str) -> Vec<String> {
    let reference = &episode.problem.spec.answer;
    let is_tool = Role::of(agent) == Role::Tool;
    let write = |value: &str| episode.write(agent, value);
    let chain = episode.problem.chain.as_ref().filter(|_| episode.problem.spec.encoding == Encoding::Compact);
    let (mut answers, others): (Vec<String>, &[&str]) = match chain {
        Some(chain) => {
            let totals = chain.totals().unwrap_or_default();
            let value = totals.last().copied().unwrap_or(chain.start);
            let near = [value + 1, value.saturating_sub(1), chain.start, 0];
            let solution = if is_tool { chain.write() } else { write_totals(&totals) };
            let goes_on = format!("{solution} {} 0", if is_tool { "+" } else { "=" });
            let answers = near.map(|near| write(&near.to_string())).into_iter().chain([solution, goes_on]);
            (
                answers.collect(),
                if is_tool { &[" 7 - 8", " 7 / 0", " 7 +", " + 7"] } else { &[" =", " 9", " = 9 =", " = x"] },
            )
        }
        None => {
            let unsure = format!("The answer is surely {reference}, or not");
            let answers = vec![write(&format!("{reference} + 1")), write("0"), unsure];
            (
                answers,
                &[
                    "\\boxed{}",
                    "```python\nraise ValueError('no')\n```",
                    "```python\nprint('a long way to say nothing')\n```",
                ],
            )
        }
    };
    answers.extend(others.iter().chain(&["", " ", "\u{0}", "ask"]).map(|text| (*text).to_owned()));
    answers
}

const NO_SOLUTIONS: [(&str, &str); 4] = [
    ("empty", ""),
    ("empty box", "\\boxed{}"),
    ("box that never closes", "\\boxed{42"),
    ("a number in prose", "I thought of 42 apples and of 7 pears."),
];
const CHAINS: [(&str, &str, &str, Option<&str>); 8] = [
    ("compact", "reasoner", "= 1 2", Some(" = 1 2")),
    ("compact, more spaces", "reasoner", "  =  1  2", Some(" = 1 2")),
    ("compact, no sign", "reasoner", " 1 2", None),
    ("compact, unfinished", "reasoner", " = 1 2 =", None),
    ("compact, a foreign word", "reasoner", " = 1 2 tool", None),
    ("compact", "tool", "7 + 5", Some(" 7 + 5")),
    ("compact, no operand", "tool", " 7 +", None),
    ("compact, a foreign word", "tool", " 7 + walls", None),
];

/// How answers in every style have to be read.
pub fn extraction_cases() -> Vec<ExtractionCase> {
    let full: Value =
        json!({"problem": "What is six times seven?", "answer": "42", "encoding": "full", "turns": 4});
    let compact: Value =
        json!({"problem": "has 7 gets 5", "answer": "12", "encoding": "compact", "turns": 4});
    let solutions =
        NO_SOLUTIONS.iter().map(|(name, text)| ExtractionCase::new(&full, "reasoner", (name, text, None)));
    let chains = CHAINS
        .iter()
        .map(|(name, agent, text, means)| ExtractionCase::new(&compact, agent, (name, text, *means)));
    solutions.chain(chains).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::MATH;
    use environment::Environment as _;

    const SOLUTIONS: [(&str, &str); 11] = [
        ("boxed", "So it is \\boxed{42}."),
        ("heading before", "#### Step 1\nMultiply.\n#### 42"),
        ("words after", "\\boxed{42}\nDone. I checked 6 and 7."),
        ("code fence", "####\n```\n42\n```"),
        ("no space after ####", "####42"),
        ("nested braces", "\\boxed{{{42}}}"),
        ("last answer wins", "\\boxed{41}? No: \\boxed{42}"),
        ("decimal", "\\boxed{42.0}"),
        ("said in words", "The final answer is 42. Good."),
        ("dollar signs", "$$\\boxed{42}$$"),
        ("equation", "\\boxed{x = 42}"),
    ];

    /// Solutions are shown as they were written, so two that mean the same lead to different states; only
    /// their rewards are compared.
    #[test]
    fn solutions_in_every_style_earn_what_their_answer_earns() {
        let spec =
            json!({"problem": "What is six times seven?", "answer": "42", "encoding": "full", "turns": 4});
        let earned =
            |text: &str| MATH.reset(&spec, "team").unwrap().apply("reasoner", text).unwrap().rewards.local;
        for (name, text) in SOLUTIONS {
            assert_eq!(earned(text), 1.0, "{name}: {text:?}");
        }
        for (name, text) in NO_SOLUTIONS {
            assert_eq!(earned(text), 0.0, "{name}: {text:?}");
        }
    }
}
