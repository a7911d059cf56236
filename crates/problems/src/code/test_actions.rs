//! Answers that `envs check` tries: the solution and wrong programs, right and wrong cases, programs that
//! fail in other ways or pretend, and text that cannot be read. Left out: programs that use up their time.
//! Trying them in every situation would take hours; the sandbox's tests have them.

use serde_json::json;

use super::spec::{Encoding, Instance, Test};
use crate::Episode;
use environment::ExtractionCase;

/// Answers worth trying.
pub fn all(episode: &Episode<Instance>, agent: &str) -> Vec<String> {
    let Instance { problem, rules, .. } = &*episode.problem;
    let mut answers: Vec<String> = Vec::new();
    if agent == "tester" {
        answers.extend(problem.tests.iter().take(2).map(|test| episode.write_case(test)));
        // The output of another test, which is right only by chance.
        let (first, last) = (&problem.tests[0], &problem.tests[problem.tests.len() - 1]);
        answers.push(episode.write_case(&Test { output: last.output.clone(), ..first.clone() }));
    } else {
        let programs = problem.solution.iter().chain(problem.wrong.iter().take(2));
        answers.extend(programs.map(|program| episode.write_program(program)));
    }
    let others: &[&str] = match (agent, rules.encoding) {
        ("tester", Encoding::Compact) => &[" 3", " x : 3", " : "],
        ("tester", Encoding::Full) => &[
            "**Test Input:**\n```\n[\"nonsense\n```\n**Test Output:**\n```\n?\n```",
            "I would test an empty list.",
        ],
        (_, Encoding::Compact) => &[" x", " ( x", " x y"],
        (_, Encoding::Full) => &[
            "```python\nimport os\nos.write(1, b'verdict: passed')\nos._exit(0)\n```",
            "```python\ndef solve(x):\n    return x\nprint(0)\n```",
            "```python\ndef solve(:\n```",
            "Sorry, I do not know how to do this.",
        ],
    };
    answers.extend(others.iter().chain(&[""]).map(|&text| text.to_owned()));
    answers
}

const PLAIN: &str = "```python\nprint(1)\n```";
/// Styles of the coder's answers that mean [`PLAIN`].
const PROGRAMS: [(&str, &str); 7] = [
    ("draft before", "First:\n```python\nprint(0)\n```\nBetter:\n\n```python\nprint(1)\n```"),
    ("words after", "```python\nprint(1)\n```\nThis adds them up."),
    ("fence without language", "```\nprint(1)\n```"),
    ("fence not closed", "Here it is:\n```python\nprint(1)\n"),
    ("sample output after", "```python\nprint(1)\n```\nFor `1 2` it prints\n```\n3\n```\n"),
    ("other names of the language", "~~~py\nprint(1)\n~~~"),
    ("in a list", "1. The program:\n   ```python\n   print(1)\n   ```\n"),
];
const NO_PROGRAMS: [(&str, &str); 3] =
    [("empty", ""), ("prose", "I would add them up."), ("empty fence", "```python\n```")];

/// Styles of the tester's answers that mean this.
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
    let full = json!({
        "encoding": "full", "turns": 4, "cpu": 4.0, "memory": 256,
        "name": "sum", "problem": "Print the sum of the numbers on the line.", "style": "stdin",
        "tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "5\n", "output": "5\n"}], "examples": 1,
        "solution": "print(sum(map(int, input().split())))\n",
    });
    let compact = json!({
        "encoding": "compact", "turns": 4, "cpu": 4.0, "memory": 256,
        "name": "chain", "problem": "x + 3 * 2", "style": "function", "function": "f",
        "tests": [{"input": "[4]", "output": "14"}, {"input": "[0]", "output": "6"}], "examples": 1,
        "solution": "def f(x):\n    return ( ( x + 3 ) * 2 )\n",
    });
    let mut cases = Vec::new();
    let mut all = |agent, texts: &[(&'static str, &str)], means| {
        cases.extend(texts.iter().map(|(name, text)| ExtractionCase::new(&full, agent, (name, text, means))));
    };
    all("coder", &PROGRAMS, Some(PLAIN));
    all("coder", &NO_PROGRAMS, None);
    all("tester", &CASES, Some(CASE));
    all("tester", &NO_CASES, None);
    let small = COMPACT.iter();
    cases.extend(
        small.map(|(name, agent, text, means)| ExtractionCase::new(&compact, agent, (name, text, *means))),
    );
    cases
}
