//! Finds Python functions in answers, line by line: a `def` line, the lines indented below it, and the
//! definitions that it uses.

use crate::fences;

/// The first function called `name` in `text`, without fences; it begins with `def`.
pub fn function(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("```"));
    let first = lines.find(|line| defined(line) == Some(name))?;
    let indent = indentation(first);
    let inside = |line: &&str| line.trim().is_empty() || indentation(line) > indent || line.starts_with('\t');
    let found: Vec<&str> = std::iter::once(first).chain(lines.take_while(inside)).collect();
    Some(found.join("\n").trim().to_owned())
}

/// The name of the function whose definition begins at `line`.
pub fn defined(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("def").filter(|rest| rest.starts_with([' ', '\t']))?;
    let (name, _) = rest.split_once('(')?;
    let name = name.trim();
    (!name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')).then_some(name)
}

/// Definitions in `text` that the function `name` uses, directly or indirectly: functions, classes, constants
/// and imports, in order. Excludes `partner`, which another agent writes.
pub fn used(text: &str, name: &str, partner: &str) -> String {
    let Some(function) = function(text, name) else { return String::new() };
    let segments = segments(text, name);
    let mut taken = vec![false; segments.len()];
    let mut all = function;
    // Each round adds the definitions that the previous ones need.
    for _ in 0..segments.len() {
        let next = segments.iter().zip(&taken).position(|(segment, taken)| {
            let others = || definitions(segment).filter(|other| *other != name);
            !taken && others().all(|other| other != partner) && others().any(|other| mentions(&all, other))
        });
        let Some(next) = next else { break };
        taken[next] = true;
        all.push('\n');
        all.push_str(&segments[next]);
    }
    segments.iter().zip(taken).filter(|(_, taken)| *taken).map(|(segment, _)| segment.as_str()).collect()
}

/// The line of `text` that assigns a function to `name` without a `def`.
pub fn lambda<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find(|line| {
        let value = line.strip_prefix(name).and_then(|rest| rest.trim_start().strip_prefix('='));
        value.is_some_and(|value| value.trim_start().starts_with("lambda"))
    })
}

/// The statements of the block that defines `name`, each with the lines indented below it
/// and its closing brackets.
fn segments(text: &str, name: &str) -> Vec<String> {
    let fences = fences::fences(text);
    let defines = |source: &str| source.lines().any(|line| defined(line) == Some(name));
    let block = fences.iter().find(|fence| defines(&fence.content)).map_or(text, |fence| &fence.content);
    let mut segments: Vec<String> = Vec::new();
    let mut decorated = false;
    for line in block.lines() {
        let begins =
            line.starts_with(|sign: char| !sign.is_whitespace() && !matches!(sign, ')' | ']' | '}' | '#'));
        if begins && !decorated || segments.is_empty() {
            segments.push(String::new());
        }
        decorated = line.starts_with('@');
        if let Some(segment) = segments.last_mut() {
            segment.push_str(line);
            segment.push('\n');
        }
    }
    segments
}

/// The names that a program defines or imports at the top level.
pub fn definitions(source: &str) -> impl Iterator<Item = &str> {
    source.lines().flat_map(|line| {
        let imported = line
            .strip_prefix("import ")
            .or_else(|| line.strip_prefix("from ")?.split_once(" import ").map(|(_, names)| names));
        let imported =
            imported.unwrap_or_default().split(',').filter_map(|name| name.split_whitespace().last());
        let class = line.strip_prefix("class ").map(name);
        let function = line.strip_prefix("async ").unwrap_or(line);
        let function = (!function.starts_with([' ', '\t'])).then(|| defined(function)).flatten();
        let assigned = Some(name(line)).filter(|found| {
            let rest = line[found.len()..].trim_start();
            rest.starts_with(':') && rest.contains('=') || rest.starts_with('=') && !rest.starts_with("==")
        });
        imported.chain(class).chain(function).chain(assigned).filter(|name| !name.is_empty())
    })
}

/// Returns true if a program imports this name.
pub fn is_import(source: &str, wanted: &str) -> bool {
    let imports = source.lines().filter(|line| line.starts_with("import ") || line.starts_with("from "));
    imports.into_iter().any(|line| mentions(line, wanted))
}

/// The name at the start of `text`.
fn name(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    &text[..end]
}

/// Returns true if a program contains this name.
pub fn mentions(source: &str, wanted: &str) -> bool {
    source.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == wanted)
}

/// Number of spaces before a line.
fn indentation(line: &str) -> usize {
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
        for text in ["", "aux(x)", "def auxiliary(x):\n    return x", "define aux(x)", "def aux", "def (x):"]
        {
            assert_eq!(function(text, "aux"), None, "{text}");
        }
    }

    #[test]
    fn helpers_stay_with_the_function_that_calls_them() {
        let aux = "def aux(x):\n    return helper(x) + LIMIT\n";
        for (beside, want) in [
            ("def helper(x):\n    return x\nLIMIT = 3\n", "def helper(x):\n    return x\nLIMIT = 3\n"),
            (
                "import math\nhelper = lambda x: math.floor(x)\nprint(1)\n",
                "import math\nhelper = lambda x: math.floor(x)\n",
            ),
            ("@cache\ndef helper(x):\n    return x\n", "@cache\ndef helper(x):\n    return x\n"),
            ("LIMIT = {\n    1: 2,\n}[1]\nOTHER = 1\n", "LIMIT = {\n    1: 2,\n}[1]\n"),
            ("other = 1\nprint(aux(1))\n", ""),
        ] {
            assert_eq!(used(&format!("{beside}{aux}"), "aux", "main"), want);
            assert_eq!(used(&format!("x = 1\n```python\n{beside}{aux}```\nLIMIT = 5"), "aux", "main"), want);
        }
        let both = "def aux(x):\n    return x\ndef main(x):\n    return aux(x)\n";
        assert_eq!(used(both, "main", "aux"), "");
        assert_eq!(lambda("x = 1\naux = lambda x: x\n", "aux"), Some("aux = lambda x: x"));
        assert_eq!(lambda("aux = 1\nauxiliary = lambda x: x", "aux"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(def |aux|\\(|\\)|x|:|\n|    |\t|return |```|é|\u{0}){0,40}") {
            let _ = (function(&text, "aux"), defined(&text), used(&text, "aux", "x"), lambda(&text, "aux"));
        }
    }
}
