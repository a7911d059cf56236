//! Math in prose, for pretrained language models.
//!
//! A tool writes one Python program that prints the answer. The others write one line with the calculation and its
//! result (`brief`, for small models: with room they ramble), or think aloud (`steps`) and put the answer into `\boxed{}`. Whoever is shown
//! solutions sees the last ones of all; long ones lose their middle.
//!
//! A brief prompt begins with what all problems have in common, so that it is computed once.

use super::spec::Reasoning;
use super::state::{AgentMessage, Role};
use super::story::Chain;

/// Characters that are shown of the beginning and of the end of a solution.
const SHOWN: usize = 500;

/// A prompt. `said` is what each agent said last, with its name.
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
        let answer = said.answer.as_deref().map_or_else(|| "none that can be read".to_owned(), shorten);
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

/// A solution as others are shown it: its beginning and its end.
pub fn shorten(text: &str) -> String {
    let count = text.chars().count();
    if count <= 2 * SHOWN {
        return text.to_owned();
    }
    let begin: String = text.chars().take(SHOWN).collect();
    let end: String = text.chars().skip(count - SHOWN).collect();
    format!("{begin}\n[…]\n{end}")
}

/// A solution that gives `answer` and nothing else.
pub fn write_solution(answer: &str) -> String {
    format!("\\boxed{{{answer}}}")
}

/// A program that prints `answer` and nothing else.
pub fn write_program(answer: &str) -> String {
    // A JSON text is a Python text.
    write_python(&format!("print({})", serde_json::Value::from(answer)))
}

/// A program as a tool writes it.
pub fn write_python(source: &str) -> String {
    format!("```python\n{source}\n```")
}

/// A brief solution: the calculation of `chain` with these totals: `7 + 5 = 12, 12 - 3 = 9`.
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

    #[test]
    fn long_solutions_lose_their_middle() {
        assert_eq!(shorten("short"), "short");
        let long = format!("{}{}", "a".repeat(3000), "é".repeat(500));
        let shown = shorten(&long);
        assert!(shown.starts_with("aaa") && shown.ends_with("é") && shown.chars().count() == 2 * SHOWN + 5);
    }
}
