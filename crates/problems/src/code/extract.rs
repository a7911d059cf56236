//! Finds test cases in answers, as a person would read them.
//!
//! A test case is the text under the headings "Test Input" and "Test Output", in fences or not. The last pair
//! counts, and the decoration of the headings does not matter.

use crate::fences::{self, Fence, LONGEST};

/// The input and the output of the test case in `text`, if there is one, without line feeds around them.
pub fn test_case(text: &str) -> Option<(String, String)> {
    let fences = fences::fences(text);
    let headings = headings(text, &fences);
    // The last output heading, and the last input heading before it.
    let output = headings.iter().rposition(|heading| heading.output)?;
    let input = headings[..output].iter().rposition(|heading| !heading.output)?;
    let content = |place: usize| {
        let heading = &headings[place];
        let end = headings.get(place + 1).map_or(text.len(), |next| next.begin);
        let inside = fences.iter().find(|fence| (heading.end..end).contains(&fence.begin));
        let content = match inside {
            // Text on the heading's line wins over a fence that belongs to later words.
            Some(fence) if text[heading.end..fence.begin].trim().is_empty() => fence.content.clone(),
            _ => first_paragraph(&text[heading.end..end]),
        };
        (content.len() <= LONGEST).then(|| content.trim_end().trim_start_matches('\n').to_owned())
    };
    Some((content(input)?, content(output)?))
}

struct Heading {
    output: bool,
    begin: usize,
    /// After the heading and its colon.
    end: usize,
}

/// Lines outside of fences that begin with "Test Input", "Input", "Test Output", "Expected Output" or "Output".
fn headings(text: &str, fences: &[Fence]) -> Vec<Heading> {
    let mut found = Vec::new();
    let mut position = 0;
    for line in text.split_inclusive('\n') {
        let fenced = fences.iter().any(|fence| (fence.begin..fence.end).contains(&position));
        if let Some((output, length)) = heading(line).filter(|_| !fenced) {
            found.push(Heading { output, begin: position, end: position + length });
        }
        position += line.len();
    }
    found
}

/// Returns true if `line` begins with a heading: whether of an output, and how long it is.
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

/// Up to the first blank line, without backquotes.
fn first_paragraph(text: &str) -> String {
    let text = text.trim_start_matches(['\n', ' ']);
    let end = text.find("\n\n").unwrap_or(text.len());
    text[..end].trim().trim_matches('`').to_owned()
}

#[cfg(test)]
mod tests {
    use super::test_case;

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
            "Test Input:\n2\n1 2\n\nTest Output: 3\n\nas from\n```\nprint(3)\n```",
            "1. Input:\n~~~\n2\n1 2\n~~~\n2. Output:\n~~~\n3",
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

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(```|~~~|\n|Test Input|Test Output|Input|Expected output|:|\\*\\*|#| |1|é){0,24}") {
            let _ = test_case(&text);
        }
    }
}
