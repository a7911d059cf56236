//! Finds programs in answers, as a person would.
//!
//! The last program that does the task counts, and fences marked as Python are preferred. Earlier blocks that
//! define names which it uses are included. Words around it are ignored, and so are an unclosed fence and an
//! example of its use after it.

use crate::functions::{defined, definitions, is_import, mentions};

/// Longest program or test to read, in bytes.
pub const LONGEST: usize = 1 << 16;

/// A fenced block.
pub struct Fence {
    /// The first word after the opening fence, in lower case.
    language: String,
    pub content: String,
    /// The start of the opening fence, and the end of the closing one.
    pub begin: usize,
    pub end: usize,
}

/// The request for a program, which distinguishes it from an example of its use.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// Anything: the last block.
    Anything,
    /// It must read its input.
    Input,
    /// It must define this function, or this method of a class `Solution`.
    Function(&'a str),
}

impl Wanted<'_> {
    fn is_done_by(self, source: &str) -> bool {
        let inputs = ["input(", "stdin", "open(0", "fileinput"];
        match self {
            Wanted::Anything => true,
            Wanted::Input => inputs.iter().any(|name| source.contains(name)),
            Wanted::Function(name) => {
                let is_method = |line: &str| defined(line) == Some(name);
                definitions(source).any(|found| found == name)
                    || source.lines().any(|line| line.starts_with("class Solution"))
                        && source.lines().any(is_method)
            }
        }
    }
}

/// The program in `text`, if there is one.
pub fn program(text: &str, asked: Wanted<'_>) -> Option<String> {
    let fences = fences(text);
    let python = |fence: &&Fence| matches!(fence.language.as_str(), "python" | "python3" | "py" | "py3");
    let marked: Vec<&Fence> = fences.iter().filter(python).collect();
    let does = |fence: &&Fence| asked.is_done_by(&fence.content);
    let main = marked.iter().copied().rfind(does).or(fences.iter().rfind(does));
    let program = match main.or(marked.last().copied()).or(fences.last()) {
        Some(main) => with_used(main, &fences),
        None => text.trim_matches('\n').trim_end().to_owned(),
    };
    (!program.trim().is_empty() && program.len() <= LONGEST).then_some(program)
}

/// A block, preceded by earlier blocks of its language that define names which it uses but does not define.
fn with_used(main: &Fence, fences: &[Fence]) -> String {
    let mut program = main.content.clone();
    let before = fences.iter().filter(|fence| fence.begin < main.begin && fence.language == main.language);
    for fence in before.rev() {
        let own: Vec<&str> = definitions(&program).collect();
        let used = definitions(&fence.content).any(|name| !own.contains(&name) && mentions(&program, name));
        // A block that defines the same names again is another attempt.
        if used && !definitions(&fence.content).any(|name| own.contains(&name) && !is_import(&program, name))
        {
            program.insert_str(0, &fence.content);
        }
    }
    program
}

/// All fenced blocks in order. An unclosed fence extends to the end of the text.
pub fn fences(text: &str) -> Vec<Fence> {
    let mut found = Vec::new();
    let mut open: Option<(&str, usize, Fence)> = None;
    let mut position = 0;
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end();
        let mark = marker(bare.trim_start());
        let end = position + line.len();
        match (&mut open, mark) {
            (None, Some((mark, rest))) => {
                let indent = bare.len() - bare.trim_start().len();
                let language = rest.split_whitespace().next().unwrap_or("").to_lowercase();
                let language = language.trim_matches(['{', '}', '.']).to_owned();
                open = Some((mark, indent, Fence { language, content: String::new(), begin: position, end }));
            }
            (Some((opened, ..)), Some((mark, ""))) if mark.starts_with(*opened) => {
                found.extend(open.take().map(|(.., fence)| Fence { end, ..fence }));
            }
            (Some((_, indent, fence)), _) => {
                // A block inside a list is indented as a whole.
                let shift = line.len() - line.trim_start_matches(' ').len();
                fence.content.push_str(&line[shift.min(*indent)..]);
                fence.end = end;
            }
            (None, None) => {}
        }
        position = end;
    }
    found.extend(open.map(|(.., fence)| fence));
    found
}

/// A fence and the rest of its line.
fn marker(line: &str) -> Option<(&str, &str)> {
    let sign = line.chars().next().filter(|sign| matches!(sign, '`' | '~'))?;
    let length = line.len() - line.trim_start_matches(sign).len();
    (length >= 3 && !line[length..].contains('`')).then(|| line.split_at(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs() {
        let want = Some("print(1)\n".to_owned());
        for text in [
            "```python\nprint(1)\n```",
            "First:\n```python\nprint(0)\n```\nNo, better:\n```python\nprint(1)\n```\nDone.",
            "```py\nprint(1)\n```\nIt prints:\n```\n1\n```\n",
            "```\nprint(1)\n```",
            "```python\nprint(1)\n",
            "~~~Python3\nprint(1)\n~~~",
            "```python\nprint(0)\n```\n```{.python}\nprint(1)\n```",
            "1. Like this:\n   ```python\n   print(1)\n   ```\n",
            "````python\nprint(1)\n````",
        ] {
            assert_eq!(program(text, Wanted::Anything), want, "{text}");
        }
        let program = |text: &str| program(text, Wanted::Anything);
        assert_eq!(program("print(1)\n").as_deref(), Some("print(1)"));
        assert_eq!(program("```python\nprint('```')\n```").as_deref(), Some("print('```')\n"));
        for text in ["", " \n", "```python\n```"] {
            assert_eq!(program(text), None, "{text}");
        }
    }

    #[test]
    fn the_requested_function_counts_and_not_an_example_of_its_use() {
        let block = |source: &str| format!("```python\n{source}\n```\n");
        let (solution, helper) = ("def f(x):\n    return x + 1", "def g(x):\n    return x");
        let (calls, usage) = ("def f(x):\n    return g(x) + 1", "assert f(1) == 2");
        let function = Wanted::Function("f");
        for (blocks, asked, want) in [
            (&[solution, usage][..], function, &[solution][..]),
            (&[solution, "print(f(41))"], function, &[solution]),
            (&["def f(x):\n    return 0", solution, usage], function, &[solution]),
            (&[helper, calls, usage], function, &[helper, calls]),
            (
                &["import math", "def g(x):\n    return math.pi", calls],
                function,
                &["import math", "def g(x):\n    return math.pi", calls],
            ),
            (&["def f(x):\n    return g(x)\ndef g(x):\n    return 0", calls], function, &[calls]),
            (
                &["class Solution:\n    def f(self, x):\n        return x", "print(Solution().f(1))"],
                function,
                &["class Solution:\n    def f(self, x):\n        return x"],
            ),
            (&["f = lambda x: x", usage], function, &["f = lambda x: x"]),
            (&["n = int(input())\nprint(n)", "assert True"], Wanted::Input, &["n = int(input())\nprint(n)"]),
            (&[helper, "print(g(int(input())))"], Wanted::Input, &[helper, "print(g(int(input())))"]),
            (&[helper, "print(g(42))"], Wanted::Anything, &[helper, "print(g(42))"]),
            // No block does the task, so the last one counts.
            (&["x = 1", "y = 2"], function, &["y = 2"]),
        ] {
            let text: String = blocks.iter().map(|source| block(source)).collect();
            let want: String = want.iter().map(|source| format!("{source}\n")).collect();
            assert_eq!(program(&text, asked), Some(want), "{text}");
        }
        let text = format!("{}It prints:\n```\n2\n```\n", block(solution));
        assert_eq!(program(&text, function).unwrap(), format!("{solution}\n"));
    }

    proptest::proptest! {
        /// Fences in any order, nesting and indentation: no panic, and positions are right.
        #[test]
        fn any_text_has_fences_in_order(text in "(```|~~~|````|python|py|\n| |print\\(1\\)|é){0,24}") {
            let found = fences(&text);
            proptest::prop_assert!(found.iter().all(|fence| fence.begin < fence.end && fence.end <= text.len()));
            proptest::prop_assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].begin));
            let _ = (program(&text, Wanted::Input), program(&text, Wanted::Function("f")));
        }
    }
}
