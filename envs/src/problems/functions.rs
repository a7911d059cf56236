//! Python functions in answers, read by their lines: a `def` line and what is indented below it.

/// The function called `name` in `text`: its indentation, and its lines without those of fences; the first of this name.
pub fn lines<'a>(text: &'a str, name: &str) -> Option<(usize, Vec<&'a str>)> {
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("```"));
    let first = lines.find(|line| defined(line) == Some(name))?;
    let indent = indentation(first);
    let inside = |line: &&str| line.trim().is_empty() || indentation(line) > indent || line.starts_with('\t');
    let mut found: Vec<&str> = std::iter::once(first).chain(lines.take_while(inside)).collect();
    found.truncate(found.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |last| last + 1));
    Some((indent, found))
}

/// The same as a text that begins with `def`.
pub fn function(text: &str, name: &str) -> Option<String> {
    Some(lines(text, name)?.1.join("\n").trim().to_owned())
}

/// The name of the function that `line` begins to define.
pub fn defined(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("def").filter(|rest| rest.starts_with([' ', '\t']))?;
    let (name, _) = rest.split_once('(')?;
    let name = name.trim();
    (!name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')).then_some(name)
}

/// Spaces before a line.
pub fn indentation(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_in_prose_and_fences() {
        let want = Some("def aux(x):\n    return x".to_owned());
        for text in [
            "def aux(x):\n    return x",
            "Here it is:\n```python\ndef aux(x):\n    return x\n```\nDone.",
            "import math\ndef other():\n    return 1\n\ndef aux(x):\n    return x\n\n\nprint(aux(1))",
        ] {
            assert_eq!(function(text, "aux"), want, "{text}");
        }
        let method = "class A:\n  def aux (x):\n      return x\n  y = 1";
        assert_eq!(function(method, "aux").unwrap(), "def aux (x):\n      return x");
        assert_eq!(lines(method, "aux").unwrap().0, 2);
        for text in ["", "aux(x)", "def auxiliary(x):\n    return x", "define aux(x)", "def aux", "def (x):"]
        {
            assert_eq!(function(text, "aux"), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(def |aux|\\(|\\)|x|:|\n|    |\t|return |```|é|\u{0}){0,40}") {
            let _ = (lines(&text, "aux"), defined(&text));
        }
    }
}
