//! Answers that `envs check` tries: the solution and wrong programs, right and wrong cases, programs that fail in other
//! ways or pretend, and what cannot be read. Left out: programs that use up their time, which the sandbox's own tests
//! have, because trying them in every situation would take hours.

use serde_json::json;

use super::spec::{Encoding, Test};
use super::state::CodeState;
use crate::environment::ExtractionCase;

/// Answers worth trying.
pub fn all(state: &CodeState, agent: &str) -> Vec<String> {
    let problem = &state.instance().problem;
    let compact = state.instance().rules.encoding == Encoding::Compact;
    let mut answers = Vec::new();
    if agent == "tester" {
        answers.extend(problem.tests.iter().take(2).map(|test| state.write_case(test)));
        let last = &problem.tests[problem.tests.len() - 1];
        // The output of another test, which is right only by chance.
        answers.push(state.write_case(&Test { output: last.output.clone(), ..problem.tests[0].clone() }));
        let malformed: &[&str] = if compact {
            &[" 3", " x : 3", " : ", ""]
        } else {
            &[
                "**Test Input:**\n```\n[\"nonsense\n```\n**Test Output:**\n```\n?\n```",
                "I would test an empty list.",
                "",
            ]
        };
        answers.extend(malformed.iter().map(|&text| text.to_owned()));
        return answers;
    }
    answers.extend(
        problem
            .solution
            .iter()
            .chain(problem.wrong.iter().take(2))
            .map(|program| state.write_program(program)),
    );
    let others: &[&str] = if compact {
        &[" x", " ( x", " x y", ""]
    } else {
        &[
            "```python\nimport os\nos.write(1, b'verdict: passed')\nos._exit(0)\n```",
            "```python\ndef solve(x):\n    return x\nprint(0)\n```",
            "```python\ndef solve(:\n```",
            "Sorry, I do not know how to do this.",
            "",
        ]
    };
    answers.extend(others.iter().map(|&text| text.to_owned()));
    answers
}

const PLAIN: &str = "```python\nprint(sum(map(int, input().split())))\n```";
/// Styles of the coder's answers: those of the first group mean [`PLAIN`] and those of the second nothing.
const PROGRAMS: [(&str, &str); 8] = [
    (
        "draft before",
        "First:\n```python\nprint(0)\n```\nBetter:\n\n```python\nprint(sum(map(int, input().split())))\n```",
    ),
    ("words after", "```python\nprint(sum(map(int, input().split())))\n```\nThis adds them up."),
    ("fence without language", "```\nprint(sum(map(int, input().split())))\n```"),
    ("fence not closed", "Here it is:\n```python\nprint(sum(map(int, input().split())))\n"),
    (
        "sample output after",
        "```python\nprint(sum(map(int, input().split())))\n```\nFor `1 2` it prints\n```\n3\n```\n",
    ),
    ("other names of the language", "~~~py\nprint(sum(map(int, input().split())))\n~~~"),
    (
        "thoughts before",
        "<think>```python\nprint(1)\n```</think>\n```Python\nprint(sum(map(int, input().split())))\n```",
    ),
    ("in a list", "1. The program:\n   ```python\n   print(sum(map(int, input().split())))\n   ```\n"),
];
const NO_PROGRAMS: [(&str, &str); 3] =
    [("empty", ""), ("prose", "I would add them up."), ("empty fence", "```python\n```")];

const CASE: &str = "**Test Input:**\n```\n1 2\n```\n**Test Output:**\n```\n3\n```";
const CASES: [(&str, &str); 6] = [
    ("headings", "### Test Input\n```\n1 2\n```\n### Test Output\n```\n3\n```\n"),
    (
        "colon outside of bold",
        "**Test Input**:\n```text\n1 2\n```\n\n**Test Output**:\n```text\n3\n```\nDone.",
    ),
    ("no fences", "Test Input: 1 2\n\nTest Output: 3"),
    ("short headings", "Input:\n```\n1 2\n```\nExpected Output:\n```\n3\n```"),
    (
        "last case wins",
        "**Test Input:**\n```\n9\n```\n**Test Output:**\n```\n8\n```\nNo.\n**Test Input:**\n```\n1 2\n```\n\
         **Test Output:**\n```\n3\n```",
    ),
    ("fence not closed", "**Test Input:**\n```\n1 2\n```\n**Test Output:**\n```\n3\n"),
];
const NO_CASES: [(&str, &str); 3] =
    [("empty", ""), ("prose", "I would test two numbers."), ("no output", "**Test Input:**\n```\n1 2\n```")];

const COMPACT: [(&str, &str, &str, Option<&str>); 6] = [
    ("compact", "coder", "(x+3)*2", Some(" ( x + 3 ) * 2")),
    ("compact, a foreign word", "coder", " x + y", None),
    ("compact, empty", "coder", "", None),
    ("compact case", "tester", "4:14", Some(" 4 : 14")),
    ("compact case, no number", "tester", " x : 14", None),
    ("compact case, no output", "tester", " 4", None),
];

/// How answers in every style have to be read.
pub fn extraction_cases() -> Vec<ExtractionCase> {
    let rules = |encoding: &str| json!({"encoding": encoding, "turns": 4, "cpu": 4.0, "memory": 256});
    let with = |mut rules: serde_json::Value, problem: serde_json::Value| {
        if let (Some(rules), serde_json::Value::Object(problem)) = (rules.as_object_mut(), problem) {
            rules.extend(problem);
        }
        rules
    };
    let full = with(
        rules("full"),
        json!({
            "name": "sum", "problem": "Print the sum of the numbers on the line.", "style": "stdin",
            "tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "5\n", "output": "5\n"}], "examples": 1,
            "solution": "print(sum(map(int, input().split())))\n",
        }),
    );
    let compact = with(
        rules("compact"),
        json!({
            "name": "chain", "problem": "x + 3 * 2", "style": "function", "function": "f",
            "tests": [{"input": "[4]", "output": "14"}, {"input": "[0]", "output": "6"}], "examples": 1,
            "solution": "def f(x):\n    return ( ( x + 3 ) * 2 )\n",
        }),
    );
    let coder = PROGRAMS.iter().map(|(name, text)| ("coder", *name, *text, Some(PLAIN)));
    let coder = coder.chain(NO_PROGRAMS.iter().map(|(name, text)| ("coder", *name, *text, None)));
    let tester = CASES.iter().map(|(name, text)| ("tester", *name, *text, Some(CASE)));
    let tester = tester.chain(NO_CASES.iter().map(|(name, text)| ("tester", *name, *text, None)));
    let full = coder.chain(tester).map(|case| (&full, case));
    let small = COMPACT.iter().map(|(name, agent, text, means)| (&compact, (*agent, *name, *text, *means)));
    full.chain(small)
        .map(|(spec, (agent, name, text, means))| ExtractionCase::new(spec, agent, (name, text, means)))
        .collect()
}
