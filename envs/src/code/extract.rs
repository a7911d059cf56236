//! Programs and test cases in answers, read as a person would read them.
//!
//! Of several programs the last counts, and a fence that is marked as Python before one that is not; words before and
//! after do no harm, nor does a fence that is never closed. A test case is what stands under the headings "Test Input" and
//! "Test Output", in fences or not, the last pair of an answer; the exact decoration of the headings does not matter.
//! What was thought aloud between `<think>` and `</think>` is not the answer.

/// Longest program or test that is looked at, in bytes.
const LONGEST: usize = 1 << 16;

/// A fenced block.
struct Fence {
    /// The first word after the fence's signs, in lower case.
    language: String,
    content: String,
    /// Where in the text the block begins.
    begin: usize,
}

/// The program in `text`, if there is one.
pub fn program(text: &str) -> Option<String> {
    let text = answer(text);
    let fences = fences(text);
    let python = |fence: &&Fence| matches!(fence.language.as_str(), "python" | "python3" | "py" | "py3");
    let chosen = fences.iter().rev().find(python).or(fences.last());
    let program = match chosen {
        Some(fence) => fence.content.clone(),
        None => text.trim_matches('\n').trim_end().to_owned(),
    };
    (!program.trim().is_empty() && program.len() <= LONGEST).then_some(program)
}

/// The input and the output of the test case in `text`, if there is one, without line feeds around them.
pub fn test_case(text: &str) -> Option<(String, String)> {
    let text = answer(text);
    let fences = fences(text);
    let headings = headings(text, &fences);
    // The last output heading, and the last input heading before it.
    let output = headings.iter().rposition(|heading| heading.output)?;
    let input = headings[..output].iter().rposition(|heading| !heading.output)?;
    let content = |place: usize| {
        let heading = &headings[place];
        let end = headings.get(place + 1).map_or(text.len(), |next| next.begin);
        let inside = fences.iter().find(|fence| (heading.end..end).contains(&fence.begin));
        let content = match inside {
            // Something on the heading's own line comes before a fence that belongs to later words.
            Some(fence) if text[heading.end..fence.begin].trim().is_empty() => fence.content.clone(),
            _ => first_paragraph(&text[heading.end..end]),
        };
        (content.len() <= LONGEST).then(|| content.trim_end().trim_start_matches('\n').to_owned())
    };
    Some((content(input)?, content(output)?))
}

/// `text` behind what was thought aloud.
fn answer(text: &str) -> &str {
    text.rsplit_once("</think>").map_or(text, |(_, answer)| answer)
}

/// All fenced blocks in order. A fence that is not closed reaches to the end of the text.
fn fences(text: &str) -> Vec<Fence> {
    let mut found = Vec::new();
    let mut open: Option<(&str, usize, Fence)> = None;
    let mut position = 0;
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end();
        let indent = bare.len() - bare.trim_start().len();
        let mark = marker(bare.trim_start());
        match &mut open {
            None => {
                if let Some((mark, rest)) = mark {
                    let language = rest.split_whitespace().next().unwrap_or("").to_lowercase();
                    let language = language.trim_matches(['{', '}', '.']).to_owned();
                    open = Some((mark, indent, Fence { language, content: String::new(), begin: position }));
                }
            }
            Some((opened, _, _))
                if mark.is_some_and(|(mark, rest)| rest.trim().is_empty() && mark.starts_with(*opened)) =>
            {
                found.extend(open.take().map(|(_, _, fence)| fence));
            }
            Some((_, indent, fence)) => {
                // A block inside a list is indented as a whole.
                let shift = line.len() - line.trim_start_matches(' ').len();
                fence.content.push_str(&line[shift.min(*indent)..]);
            }
        }
        position += line.len();
    }
    found.extend(open.map(|(_, _, fence)| fence));
    found
}

/// The signs of a fence and what follows them on the line.
fn marker(line: &str) -> Option<(&str, &str)> {
    let sign = line.chars().next().filter(|sign| matches!(sign, '`' | '~'))?;
    let length = line.len() - line.trim_start_matches(sign).len();
    (length >= 3 && !line[length..].contains('`')).then(|| line.split_at(length))
}

struct Heading {
    output: bool,
    begin: usize,
    /// Behind the heading and its colon.
    end: usize,
}

/// Lines outside of fences that begin with "Test Input", "Input", "Test Output", "Expected Output" or "Output".
fn headings(text: &str, fences: &[Fence]) -> Vec<Heading> {
    let mut found = Vec::new();
    let mut position = 0;
    let mut inside: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        let fenced = fences.iter().position(|fence| fence.begin == position);
        if fenced.is_some() {
            inside = fenced;
        } else if let Some(index) = inside {
            if marker(line.trim()).is_some_and(|(_, rest)| rest.is_empty()) && fences[index].begin < position
            {
                inside = None;
            }
        } else if let Some((output, length)) = heading(line) {
            found.push(Heading { output, begin: position, end: position + length });
        }
        position += line.len();
    }
    found
}

/// Whether `line` begins with a heading: of an output or not, and how long it is.
fn heading(line: &str) -> Option<(bool, usize)> {
    let decoration = |sign: char| {
        matches!(sign, '#' | '*' | '_' | '-' | '>' | ' ') || sign.is_ascii_digit() || sign == '.'
    };
    let rest = line.trim_start_matches(decoration);
    let lower = rest.to_ascii_lowercase();
    for (words, output) in [
        ("test input", false),
        ("test output", true),
        ("expected output", true),
        ("input", false),
        ("output", true),
    ] {
        let Some(after) = lower.strip_prefix(words) else { continue };
        let signs = after.len() - after.trim_start_matches(['*', '_', ' ', ':', '#']).len();
        let separated = after[..signs].contains(':') || after[signs..].trim().is_empty();
        if separated {
            return Some((output, line.len() - after.len() + signs));
        }
    }
    None
}

/// Up to the first blank line, without quotation marks of code.
fn first_paragraph(text: &str) -> String {
    let text = text.trim_start_matches(['\n', ' ']);
    let end = text.find("\n\n").unwrap_or(text.len());
    text[..end].trim().trim_matches('`').to_owned()
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
            "<think>```python\nprint(0)\n```</think>\n```{.python}\nprint(1)\n```",
            "1. Like this:\n   ```python\n   print(1)\n   ```\n",
            "````python\nprint(1)\n````",
        ] {
            assert_eq!(program(text), want, "{text}");
        }
        assert_eq!(program("print(1)\n").as_deref(), Some("print(1)"));
        assert_eq!(program("```python\nprint('```')\n```").as_deref(), Some("print('```')\n"));
        for text in ["", " \n", "```python\n```", "<think>print(1)</think>"] {
            assert_eq!(program(text), None, "{text}");
        }
    }

    #[test]
    fn test_cases() {
        let want = Some(("2\n1 2".to_owned(), "3".to_owned()));
        for text in [
            "**Test Input:**\n```\n2\n1 2\n```\n**Test Output:**\n```\n3\n```",
            "**Test Input:**\n\n```text\n2\n1 2\n```\n\nAdded up:\n\n**Test Output:**\n\n```text\n3\n```\nDone.",
            "### Test Input\n```\n2\n1 2\n```\n### Test Output\n```\n3\n```",
            "Test Input:\n2\n1 2\n\nTest Output:\n3\n\nThat is the sum.",
            "**Test Input**:\n```\n9\n```\n**Test Output**:\n```\n9\n```\nNo:\n**Test Input**:\n```\n2\n1 2\n```\n\
             **Test Output**:\n```\n3\n```",
            "Input:\n```\n2\n1 2\n```\nExpected output: `3`",
            "<think>Test Input: 1\nTest Output: 1</think>1. Input:\n~~~\n2\n1 2\n~~~\n2. Output:\n~~~\n3",
        ] {
            let found =
                test_case(text).map(|(input, output)| (input.trim().to_owned(), output.trim().to_owned()));
            assert_eq!(found, want, "{text}");
        }
        for text in [
            "",
            "The input: none",
            "**Test Input:** 1",
            "**Test Output:** 1\n**Test Input:** 1",
            "I would test 1.",
        ] {
            assert_eq!(test_case(text), None, "{text}");
        }
    }
}
