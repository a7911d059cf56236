//! What can be read off the text of functions: whether they return, call the helper, or add nothing to it; and the parts of a
//! problem in HumanEval's layout. Read as in the published reward.

use crate::functions::defined;

/// Returns true if a value is returned, as far as the word says it.
pub fn returns(function: &str) -> bool {
    function
        .match_indices("return")
        .any(|(at, word)| function[at + word.len()..].starts_with(char::is_whitespace))
}

/// Returns true if `aux` is called.
pub fn calls_aux(function: &str) -> bool {
    function.match_indices("aux").any(|(at, word)| {
        let (before, after) = (&function[..at], &function[at + word.len()..]);
        !before.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_')
            && after.trim_start().starts_with('(')
    })
}

/// Returns true if a function only returns the result of `aux`: nothing but `return …aux…`, or `x = aux(…)`
/// and `return x`.
pub fn is_wrapper(function: &str) -> bool {
    let mut quote: Option<&str> = None;
    let mut lines = Vec::new();
    for line in function.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if quote.is_some() {
            if line.contains("\"\"\"") || line.contains("'''") {
                quote = None;
            }
            continue;
        }
        if let Some(mark) = ["\"\"\"", "'''"].into_iter().find(|mark| line.starts_with(mark)) {
            quote = (!line.ends_with(mark) || line.len() <= 3).then_some(mark);
        } else if !line.starts_with('#') && !line.starts_with("def ") {
            lines.push(line);
        }
    }
    match lines[..] {
        [] => true,
        [only] => only.starts_with("return ") && only.contains("aux"),
        [first, second] => first.split_once('=').is_some_and(|(name, value)| {
            let value = value.trim_start().strip_prefix("aux").map(str::trim_start);
            value.is_some_and(|value| value.starts_with('(')) && second == format!("return {}", name.trim())
        }),
        _ => false,
    }
}

/// Returns true if a line calls `aux` and drops the value. The published rule only sees calls with one blank
/// and one letter, and so does this one.
pub fn ignores_aux(function: &str) -> bool {
    function.lines().any(|line| {
        let rest = line.trim().strip_prefix("aux").map(|rest| rest.chars().collect::<Vec<char>>());
        matches!(rest.as_deref(), Some([blank, '(', letter, ')']) if blank.is_whitespace() && *letter != ')')
    })
}

/// The lines of a prompt that import something, each once.
pub fn imports(prompt: &str) -> String {
    let mut found: Vec<&str> = Vec::new();
    for line in prompt.lines().map(str::trim) {
        let is_import =
            line.starts_with("import ") || (line.starts_with("from ") && line.contains(" import "));
        if is_import && !found.contains(&line) {
            found.push(line);
        }
    }
    found.join("\n")
}

/// The signature of the function called `name` in a prompt, from `def` to the colon.
pub fn signature<'a>(prompt: &'a str, name: &str) -> Option<&'a str> {
    prompt.lines().map(str::trim).find(|line| defined(line) == Some(name) && line.ends_with(':'))
}

/// The parameters of a signature, as it declares them, and the arguments of a call that passes them on.
pub fn parameters(signature: &str) -> (&str, String) {
    let declared = signature.split_once('(').map_or("", |(_, rest)| rest);
    let (mut depth, mut begin, mut end, mut names) = (0, 0, declared.len(), Vec::new());
    for (at, letter) in declared.char_indices() {
        match letter {
            ')' if depth == 0 => {
                end = at;
                break;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(&declared[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    names.push(&declared[begin..end]);
    let named = names.iter().map(|text| text.split([':', '=']).next().unwrap_or_default().trim());
    let arguments: Vec<&str> = named.filter(|name| !name.is_empty()).collect();
    (&declared[..end], arguments.join(", "))
}

/// The assertions of a test in HumanEval's layout: lines of `check(candidate)` that assert something about it, each once.
pub fn assertions(test: &str) -> Vec<String> {
    let Some((_, body)) = test.split_once("def check(candidate):") else { return Vec::new() };
    let body = body.split("\n\ndef").next().unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    for line in body.lines().map(str::trim) {
        let asserts = line.strip_prefix("assert").is_some_and(|rest| rest.starts_with(char::is_whitespace));
        if asserts && line.contains("candidate") && found.iter().all(|other| other != line) {
            found.push(line.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers() {
        for text in [
            "def f(x):\n    return aux(x)",
            "def f(x):\n    \"\"\"Text.\"\"\"\n    # a comment\n    y = aux(x)\n    return y",
            "def f(x):\n    '''Text\n    of two lines.\n    '''\n    return aux(x) + 1",
            "def f(x):",
        ] {
            assert!(is_wrapper(text), "{text}");
        }
        for text in [
            "def f(x):\n    return x",
            "def f(x):\n    y = aux(x)\n    return y + 1",
            "def f(x):\n    y = aux(x)\n    y += 1\n    return y",
        ] {
            assert!(!is_wrapper(text), "{text}");
        }
        assert!(calls_aux("y = aux (x)") && !calls_aux("y = my_aux(x)") && !calls_aux("aux = 1"));
        assert!(
            ignores_aux("def f(x):\n    aux (x)") && !ignores_aux("aux(x)") && !ignores_aux("y = aux (x)")
        );
        assert!(returns("return x") && !returns("returned = 1") && !returns("return"));
    }

    #[test]
    fn parts_of_humaneval() {
        let prompt = "from typing import List\nimport math\nimport math\n\ndef f(x: List[int]) -> int:\n    \"\"\"Text.\"\"\"\n";
        assert_eq!(imports(prompt), "from typing import List\nimport math");
        assert_eq!(signature(prompt, "f"), Some("def f(x: List[int]) -> int:"));
        for (signature, expected) in [
            (
                "def f(x: List[int], y=(1, 2), *more) -> int:",
                ("x: List[int], y=(1, 2), *more", "x, y, *more"),
            ),
            ("def f():", ("", "")),
            ("def f(...):", ("...", "...")),
            ("def f(x: Dict[str, int]", ("x: Dict[str, int]", "x")),
        ] {
            let (declared, arguments) = parameters(signature);
            assert_eq!((declared, arguments.as_str()), expected, "{signature}");
        }
        let test = "META = {}\n\ndef check(candidate):\n    assert candidate(1) == 2\n    assert True\n    x = 3\n    \
                    assert candidate(1) == 2\n    assert abs(candidate(2) - 1) < 1e-6, 'no'\n\ndef more(candidate):\n    assert candidate\n";
        assert_eq!(
            assertions(test),
            ["assert candidate(1) == 2", "assert abs(candidate(2) - 1) < 1e-6, 'no'"]
        );
        assert_eq!(assertions("assert candidate(1)"), Vec::<String>::new());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(def |aux|f|\\(|\\)|x|:|\n|    |\t|return |=|```|\"\"\"|'''|é|\u{0}){0,40}") {
            let _ = (returns(&text), calls_aux(&text), is_wrapper(&text), ignores_aux(&text), imports(&text), assertions(&text));
            let _ = (signature(&text, "f"), parameters(&text));
        }
    }
}
