//! Math in prose, for pretrained language models.
//!
//! A tool writes one Python program that prints the answer. The others write one line with the calculation and its
//! result (`brief`, for small models: with room they ramble), or think aloud (`steps`) and put the answer into `\boxed{}`. Whoever is shown
//! solutions sees the last ones of all; long ones lose their middle.
//!
//! A brief prompt begins with what all problems have in common, so that it is computed once.

use super::message::{AgentMessage, Role};
use super::spec::Reasoning;
use super::story::Chain;
use crate::shorten;

/// A prompt. `said` is each agent's last message, with its name.
pub fn prompt<'a>(
    problem: &str,
    said: impl Iterator<Item = (&'a str, &'a AgentMessage)>,
    role: Role,
    reasoning: Reasoning,
) -> String {
    match reasoning {
        Reasoning::Brief => brief(problem, &said.collect::<Vec<_>>(), role),
        Reasoning::Steps => steps(problem, said, role),
    }
}

fn brief(problem: &str, said: &[(&str, &AgentMessage)], role: Role) -> String {
    let mut text = String::from(match (role, said) {
        (Role::Tool, _) => "Answer with one line of Python that prints the result.\n",
        (Role::Reasoner, []) => "Answer in one line, as an equation.\n",
        _ => "Check the solution. Answer in one line, with the right equation.\n",
    });
    text.push_str(problem.trim());
    for (name, said) in said {
        text.push_str(&format!("\n{name}: {}", said.shown.trim()));
    }
    text
}

fn steps<'a>(problem: &str, said: impl Iterator<Item = (&'a str, &'a AgentMessage)>, role: Role) -> String {
    let shown = |(name, said): (&str, &AgentMessage)| {
        let answer = said
            .answer
            .as_deref()
            .map_or_else(|| "none that can be read".to_owned(), shorten)
            .replace('\n', " ");
        format!("\n{name} wrote:\n{}\nAnswer of {name}: {answer}\n", said.shown.trim())
    };
    let history: Vec<String> = said.map(shown).collect();
    let mut text = format!("Problem:\n{}\n", problem.trim());
    text.push_str(match history.len() {
        0 => "",
        1 => "\nSolution so far:\n",
        _ => "\nSolutions so far:\n",
    });
    text.push_str(&history.concat());
    text.push('\n');
    text.push_str(match (role, history.is_empty()) {
        (Role::Reasoner, true) => "Solve the problem step by step. ",
        (Role::Reasoner | Role::Checker, false) if history.len() == 1 => {
            "Check the solution, mend it where it is wrong, and solve the problem step by step. "
        }
        (Role::Reasoner | Role::Checker, _) => {
            "Compare the solutions with each other, find out which is right or mend them, and solve the problem step by step. "
        }
        (Role::Judge, _) => {
            "You are the judge: compare the solutions, find out which answer is right, and give that answer. "
        }
        (Role::Tool, true) => "Write a Python program that works out the answer of the problem. ",
        (Role::Tool, false) => {
            "Compare the solutions with each other, and write a Python program that works out the answer of the problem. "
        }
    });
    text.push_str(match role {
        Role::Tool => {
            "It is run as it stands, without input, files or network, with the standard library only, and has to print the \
             answer, and nothing else, as its last line. Put it into one block that begins with ```python and ends with ```."
        }
        Role::Reasoner | Role::Checker | Role::Judge => "Put the final answer into \\boxed{}.",
    });
    text
}

/// A solution that only gives `answer`.
pub fn write_solution(answer: &str) -> String {
    format!("\\boxed{{{answer}}}")
}

/// A program that only prints `answer`.
pub fn write_program(answer: &str) -> String {
    // A JSON string is a valid Python string.
    write_python(&format!("print({})", serde_json::Value::from(answer)))
}

/// A program in the format of a tool's answer.
pub fn write_python(source: &str) -> String {
    format!("```python\n{source}\n```")
}

/// A brief solution: the calculation of `chain` with its running totals: `7 + 5 = 12, 12 - 3 = 9`.
pub fn write_calculation(chain: &Chain, totals: &[u64]) -> String {
    let before = std::iter::once(chain.start).chain(totals.iter().copied());
    let steps = before.zip(&chain.steps).zip(totals).map(|((total, (operation, operand)), result)| {
        format!("{total} {} {operand} = {result}", operation.sign())
    });
    let steps: Vec<String> = steps.collect();
    if steps.is_empty() { format!("= {}", chain.start) } else { steps.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// The prompts of all agents, alone and after others, compared with tests/prompts/math.txt.
    #[test]
    fn prompts_are_what_they_were() {
        let said = |shown: &str, answer: Option<String>| AgentMessage {
            shown: shown.to_owned(),
            answer,
            stands: false,
        };
        let first = said("5 + 6 = 11 ", Some("11".to_owned()));
        let second = said("I do not know.", None);
        let histories = [
            ("first", vec![]),
            ("after one", vec![("solver", &first)]),
            ("after two", vec![("solver", &first), ("tool", &second)]),
        ];
        let mut all = String::new();
        for (reasoning, how) in [(Reasoning::Brief, "brief"), (Reasoning::Steps, "with room")] {
            for (role, who, may_begin) in [
                (Role::Reasoner, "reasoner", true),
                (Role::Tool, "tool", true),
                (Role::Checker, "checker", false),
                (Role::Judge, "judge", false),
            ] {
                for (when, said) in histories.iter().filter(|(_, said)| may_begin || !said.is_empty()) {
                    let text = prompt(" What is 5 plus 6?\n", said.iter().copied(), role, reasoning);
                    let _ = write!(all, "=== {who}, {how}, {when}\n{text}\n");
                }
            }
        }
        assert_eq!(all, include_str!("../../tests/prompts/math.txt"));
    }
}
