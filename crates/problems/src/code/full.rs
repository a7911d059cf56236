//! Code tasks in prose, for pretrained language models.
//!
//! The coder answers with a program in a fence, the tester with a test case under two headings, as in
//! Stronger-MAS (arXiv 2510.11062). After a turn without agreement both see the last program, the
//! case and the program's result on it, and are asked which side is wrong, since it may be the
//! tester. Left out: earlier turns.

use std::fmt::Write;

use super::judge::Disagreement;
use super::spec::{CodeProblem, Reasoning, Style, Test};

/// Longest excerpt of an input, an output or a program in a prompt, in characters.
const LONGEST: usize = 2000;

/// A prompt for `agent`; `alone` if the team has no tester.
pub fn prompt(
    problem: &CodeProblem,
    reasoning: Reasoning,
    agent: &str,
    alone: bool,
    program: Option<&str>,
    last: Option<&Disagreement>,
) -> String {
    let (brief, tester) = (reasoning == Reasoning::Brief, agent == "tester");
    let mut text = if brief { brief_task(problem, tester) } else { task(problem, tester) };
    push_history(&mut text, tester, alone, program, last);
    text.push_str(match (tester, problem.style) {
        _ if brief => "",
        (false, _) => "\nThink briefly, then give the whole program in one ```python block.",
        (true, Style::Stdin) => {
            "\nThink briefly, then end with the test case in this form:\n**Test Input:**\n```\n...\n```\n\
             **Test Output:**\n```\n...\n```"
        }
        (true, Style::Function) => {
            "\nThink briefly, then end with the test case in this form, the input being a JSON array of the arguments and \
             the output a JSON value:\n**Test Input:**\n```\n[...]\n```\n**Test Output:**\n```\n...\n```"
        }
    });
    text
}

/// The request and the task for a coder.
pub fn request(problem: &CodeProblem, reasoning: Reasoning) -> String {
    match reasoning {
        Reasoning::Brief => brief_task(problem, false),
        Reasoning::Steps => task(problem, false),
    }
}

/// The request and the task. The text that all tasks share comes first, so that it is computed once. An
/// example shows the form if it has to be learned; for functions there is none, because a small model would
/// only vary it.
fn brief_task(problem: &CodeProblem, tester: bool) -> String {
    let name = problem.function.as_deref().unwrap_or("solve");
    let mut text = match (tester, problem.style) {
        (false, Style::Function) => format!("Write a Python function {name}.\n"),
        (false, Style::Stdin) => {
            "Write a Python program for the task, which reads standard input. Answer with the program alone, for example:\n\
             ```python\ninput()\nx = list(map(int, input().split()))\nprint(sum(x))\n```\n"
                .to_owned()
        }
        (true, Style::Function) => {
            "Write a test for the task: a list of the arguments, and the result. Answer like this:\n\
             Test Input: [3]\nTest Output: 5\n"
                .to_owned()
        }
        (true, Style::Stdin) => {
            "Write a test for the task: the input, and the output. Answer like this:\n\
             Test Input:\n```\n2\n3 5\n```\nTest Output: 8\n"
                .to_owned()
        }
    };
    let head = if !tester && problem.style == Style::Function { "" } else { "Task: " };
    text.push_str(&format!("{head}{}\n", problem.statement.trim_end()));
    for test in problem.shown() {
        let (input, output) = (clip(test.input.trim_end()), clip(test.output.trim_end()));
        let input = input.strip_prefix('[').and_then(|input| input.strip_suffix(']')).unwrap_or(&input);
        text.push_str(&match (&problem.function, problem.style) {
            (Some(name), Style::Function) => format!("{name}({input}) is {output}\n"),
            _ => format!("Input:\n```\n{input}\n```\nOutput: {output}\n"),
        });
    }
    text
}

/// The task, and the role of each agent.
fn task(problem: &CodeProblem, tester: bool) -> String {
    let mut text = format!("{}\n", problem.statement.trim_end());
    for (test, number) in problem.shown().iter().zip(1..) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\nExample {number}\n{}", shown_case("Input", "Output", test));
    }
    text.push('\n');
    match (tester, problem.style, problem.function.as_deref()) {
        (false, Style::Function, Some(name)) => {
            let _ = writeln!(text, "You are the coder: write a Python 3 function named {name} that solves the problem.");
        }
        (false, ..) => text.push_str(
            "You are the coder: write a Python 3 program that solves the problem. It reads from standard input and \
             prints to standard output.\n",
        ),
        (true, ..) => text.push_str(
            "You are the tester: write one test case for programs that solve the problem, one that finds out programs \
             that are wrong. Work out the expected output with care.\n",
        ),
    }
    text
}

/// Appends the last program and its result, if there is one.
fn push_history(
    text: &mut String,
    tester: bool,
    alone: bool,
    program: Option<&str>,
    last: Option<&Disagreement>,
) {
    if let Some(program) = program {
        let _ = write!(text, "\nThe last program was\n```python\n{}\n```\n", clip(program.trim_end()));
    }
    if let Some(Disagreement { case, got, fault }) = last {
        let what = if alone { "On an example" } else { "On the last test case" };
        let _ = write!(
            text,
            "\n{what} it did not do what was expected.\n{}",
            shown_case("Input", "Expected", case)
        );
        let _ = match got {
            Some(got) if got.trim().is_empty() => writeln!(text, "The program printed nothing."),
            Some(got) => writeln!(text, "Output of the program:\n```\n{}\n```", clip(got.trim_end())),
            None => writeln!(text, "The program failed: {}", clip(fault)),
        };
        text.push_str(match (tester, alone) {
            (_, true) => "Correct the program.\n",
            (false, _) => "Decide which of the two is wrong. Correct the program, or keep it if the test case is wrong.\n",
            (true, _) => "Decide which of the two is wrong. Correct the test case, or keep it if the program is wrong.\n",
        });
    } else if program.is_some() && !alone {
        text.push_str("\nThere was no test case that could be read.\n");
    }
}

fn shown_case(input: &str, output: &str, test: &Test) -> String {
    format!(
        "{input}:\n```\n{}\n```\n{output}:\n```\n{}\n```\n",
        clip(test.input.trim_end()),
        clip(test.output.trim_end())
    )
}

/// The beginning of a long text.
fn clip(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An answer with this program.
pub fn write_program(program: &str) -> String {
    format!("```python\n{}\n```", program.trim_end())
}

/// An answer with `case`.
pub fn write_case(case: &Test) -> String {
    format!(
        "**Test Input:**\n```\n{}\n```\n**Test Output:**\n```\n{}\n```",
        case.input.trim_end(),
        case.output.trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(input: &str, output: &str) -> Test {
        Test { input: input.to_owned(), output: output.to_owned(), ..Test::default() }
    }

    /// One problem for programs that read, one for functions.
    fn problem(style: Style) -> CodeProblem {
        let (function, tests) = match style {
            Style::Stdin => (None, vec![test("1 2\n", "3\n"), test("5\n", "5\n")]),
            Style::Function => (Some("add".to_owned()), vec![test("[[1, 2]]", "3"), test("[[5]]", "5")]),
        };
        CodeProblem {
            name: "sum".to_owned(),
            statement: "Add up the numbers.\n".to_owned(),
            style,
            function,
            tests,
            examples: 1,
            solution: None,
            wrong: Vec::new(),
        }
    }

    /// One prompt of every kind, compared with tests/prompts/code.txt.
    #[test]
    fn prompts_are_what_they_were() {
        let fails = |got: Option<&str>| Disagreement {
            case: test("1 2\n", "3\n"),
            got: got.map(str::to_owned),
            fault: "NameError: x".to_owned(),
        };
        let (wrong, silent, failed) = (fails(Some("4\n")), fails(Some(" \n")), fails(None));
        let histories = [
            ("after no test case", "print(4)\n", None),
            ("after a wrong result", "print(4)\n", Some(&wrong)),
            ("after nothing printed", "pass\n", Some(&silent)),
            ("after a failure", "print(x)\n", Some(&failed)),
        ];
        let mut all = String::new();
        for (style, what) in [(Style::Stdin, "program"), (Style::Function, "function")] {
            for (reasoning, how) in [(Reasoning::Brief, "brief"), (Reasoning::Steps, "with room")] {
                for (agent, alone, who) in
                    [("coder", false, "coder"), ("coder", true, "coder alone"), ("tester", false, "tester")]
                {
                    let text =
                        |program, last| prompt(&problem(style), reasoning, agent, alone, program, last);
                    let fresh = text(None, None);
                    let _ = write!(all, "=== {what}, {how}: {who}\n{fresh}\n");
                    // Remarks about earlier turns come after the task and do not depend on it.
                    for (when, program, last) in
                        histories.iter().filter(|_| (style, reasoning) == (Style::Stdin, Reasoning::Brief))
                    {
                        let text = text(Some(*program), *last);
                        let _ = write!(all, "=== {who}, {when}\n{}\n", text.strip_prefix(&fresh).unwrap());
                    }
                }
            }
        }
        assert_eq!(all, include_str!("../../tests/prompts/code.txt"));
    }

    #[test]
    fn long_texts_are_cut_at_2000_characters() {
        let [fits, long] = [2000, 2001].map(|length| "é".repeat(length));
        assert_eq!((clip(&fits), clip(&long)), (fits.clone(), format!("{fits}…")));
    }
}
