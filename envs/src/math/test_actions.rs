//! Answers that `envs check` tries: right, wrong in ways that a reward could be fooled by, and malformed.

use serde_json::{Value, json};

use super::spec::Encoding;
use super::state::{MathState, Role};
use crate::environment::ExtractionCase;

/// Answers worth trying in `state`.
pub fn all(state: &MathState, agent: &str) -> Vec<String> {
    let problem = state.problem();
    let reference = problem.reference.as_str();
    let mut answers = Vec::new();
    match (&problem.chain, problem.encoding) {
        (Some(chain), Encoding::Compact) => {
            let totals = chain.totals().unwrap_or_default();
            let value = totals.last().copied().unwrap_or(chain.start);
            for near in [value + 1, value.saturating_sub(1), chain.start, 0] {
                answers.push(state.write(agent, &near.to_string()));
            }
            if Role::of(agent) == Role::Tool {
                answers.push(chain.write());
                answers.push(format!("{} + 0", chain.write()));
                answers.extend([" 7 - 8", " 7 / 0", " 7 +", " + 7"].map(str::to_owned));
            } else {
                answers.push(super::compact::write_totals(&totals));
                answers.push(format!("{} = 0", super::compact::write_totals(&totals)));
                answers.extend([" =", " 9", " = 9 =", " = x"].map(str::to_owned));
            }
        }
        _ => {
            answers.push(state.write(agent, &format!("{reference} + 1")));
            answers.push(state.write(agent, "0"));
            answers.push(format!("The answer is surely {reference}, or not"));
            answers.push("\\boxed{}".to_owned());
            if Role::of(agent) == Role::Tool {
                answers.push("```python\nraise ValueError('no')\n```".to_owned());
                answers.push("```python\nprint('a long way to say nothing')\n```".to_owned());
            }
        }
    }
    answers.extend(["", " ", "\u{0}", "ask"].map(str::to_owned));
    answers
}

const SOLUTIONS: [(&str, &str, bool); 15] = [
    ("boxed", "So it is \\boxed{42}.", true),
    ("heading before", "#### Step 1\nMultiply.\n#### 42", true),
    ("words after", "\\boxed{42}\nDone. I checked 6 and 7.", true),
    ("code fence", "####\n```\n42\n```", true),
    ("no space after ####", "####42", true),
    ("nested braces", "\\boxed{\\frac{84}{2}}", true),
    ("last answer wins", "\\boxed{41}? No: \\boxed{42}", true),
    ("decimal", "\\boxed{42.0}", true),
    ("said in words", "The final answer is 42. Good.", true),
    ("dollar signs", "$$\\boxed{42}$$", true),
    ("equation", "\\boxed{x = 42}", true),
    ("empty", "", false),
    ("empty box", "\\boxed{}", false),
    ("box that never closes", "\\boxed{42", false),
    ("a number in prose", "I thought of 42 apples and of 7 pears.", false),
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
    // A solution is shown to the others as it was written, so one that means the same is not the same state: what is
    // compared is whether the answer was found, by its reward.
    let solutions = SOLUTIONS
        .iter()
        .filter(|(.., readable)| !readable)
        .map(|(name, text, _)| ExtractionCase::new(&full, "reasoner", (name, text, None)));
    let chains = CHAINS
        .iter()
        .map(|(name, agent, text, means)| ExtractionCase::new(&compact, agent, (name, text, *means)));
    solutions.chain(chains).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment as _;
    use crate::math::Math;

    #[test]
    fn solutions_in_every_style_earn_what_their_answer_earns() {
        let spec =
            json!({"problem": "What is six times seven?", "answer": "42", "encoding": "full", "turns": 4});
        for (name, text, readable) in SOLUTIONS {
            let mut state = Math.reset(&spec, "team").unwrap();
            let local = state.apply("reasoner", text).unwrap().rewards.local;
            assert_eq!(local, if readable { 1.0 } else { 0.0 }, "{name}: {text:?}");
        }
    }
}
