//! Programs in answers, read as a person would read them.
//!
//! The last program counts, and a fence that is marked as Python before one that is not. Words around it do no harm, nor
//! does a fence that is never closed. What stands between `<think>` and `</think>` is not the answer.

/// Longest program or test that is looked at, in bytes.
pub const LONGEST: usize = 1 << 16;

/// A fenced block.
pub struct Fence {
    /// The first word after the opening fence, in lower case.
    language: String,
    pub content: String,
    /// Where the opening fence begins, and where the closing one ends.
    pub begin: usize,
    pub end: usize,
}

/// The program in `text`, if there is one.
pub fn program(text: &str) -> Option<String> {
    let text = answer(text);
    let fences = fences(text);
    let python = |fence: &&Fence| matches!(fence.language.as_str(), "python" | "python3" | "py" | "py3");
    let program = match fences.iter().rfind(python).or(fences.last()) {
        Some(fence) => fence.content.clone(),
        None => text.trim_matches('\n').trim_end().to_owned(),
    };
    (!program.trim().is_empty() && program.len() <= LONGEST).then_some(program)
}

/// `text` after what was thought aloud.
pub fn answer(text: &str) -> &str {
    text.rsplit_once("</think>").map_or(text, |(_, answer)| answer)
}

/// All fenced blocks in order. A fence that is not closed reaches to the end of the text.
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

/// A fence and what follows it on the line.
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

    proptest::proptest! {
        /// Fences in any order, depth and indentation: no panic, and each block lies where it says.
        #[test]
        fn any_text_has_fences_in_order(text in "(```|~~~|````|python|py|\n| |<think>|</think>|print\\(1\\)|é){0,24}") {
            let found = fences(&text);
            proptest::prop_assert!(found.iter().all(|fence| fence.begin < fence.end && fence.end <= text.len()));
            proptest::prop_assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].begin));
            let _ = program(&text);
        }
    }
}
