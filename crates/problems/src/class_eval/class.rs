//! Class skeletons: the missing methods, and the class with the agents' methods filled in.

use crate::functions::{defined, indentation, lines};

/// A method of a skeleton: its name, and its lines as a range of the skeleton's.
struct Method<'a> {
    name: &'a str,
    begin: usize,
    end: usize,
    missing: bool,
}

/// The methods of all classes in `skeleton`. A method is missing if its body is a docstring, `pass` or empty.
fn methods(skeleton: &str) -> Vec<Method<'_>> {
    let all: Vec<&str> = skeleton.lines().collect();
    let mut found = Vec::new();
    for (begin, line) in all.iter().enumerate().filter(|(_, line)| indentation(line) > 0) {
        let Some(name) = defined(line) else { continue };
        let inside = |line: &&&str| line.trim().is_empty() || indentation(line) > indentation(all[begin]);
        let end = begin + 1 + all[begin + 1..].iter().take_while(inside).count();
        if found.last().is_some_and(|last: &Method<'_>| begin < last.end) {
            continue; // a function inside a method
        }
        found.push(Method { name, begin, end, missing: is_missing(&all[begin + 1..end]) });
    }
    found
}

/// Returns true if a method does nothing: only a docstring, `pass`, `...`, `return None` or
/// `raise NotImplementedError`.
pub fn is_stub(method: &[&str]) -> bool {
    let does_nothing = |line: &str| {
        let line = line.trim().trim_end_matches(';').trim_end();
        matches!(line, "..." | "return" | "return None" | "return(None)")
            || line.starts_with("raise NotImplementedError")
    };
    let [first, body @ ..] = method else { return true };
    // The body of `def name(self): pass` follows the last colon.
    let own = first.rsplit_once(':').map_or("", |(_, own)| own);
    let all: Vec<&str> =
        [own].into_iter().chain(body.iter().copied()).filter(|line| !does_nothing(line)).collect();
    is_missing(&all)
}

/// Returns true if a body is a docstring, `pass` or empty.
fn is_missing(body: &[&str]) -> bool {
    let mut quote = None;
    body.iter().map(|line| line.trim()).all(|line| match quote {
        Some(mark) => {
            if line.ends_with(mark) {
                quote = None;
            }
            true
        }
        None => {
            let Some(mark) = ["\"\"\"", "'''"].into_iter().find(|mark| line.starts_with(mark)) else {
                return line.is_empty() || line == "pass" || line.starts_with('#');
            };
            quote = (!line.ends_with(mark) || line.len() < 6).then_some(mark);
            true
        }
    })
}

/// The names of the methods to write, each once, in order.
pub fn missing(skeleton: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for method in methods(skeleton).iter().filter(|method| method.missing && method.name != "__init__") {
        if names.iter().all(|name| name != method.name) {
            names.push(method.name.to_owned());
        }
    }
    names
}

/// Fills in the missing methods of `skeleton` from `texts`. Each comes from the first text that has it; with
/// `written`, from the first where it is not a stub.
pub fn merged(skeleton: &str, texts: &[&str], written: bool) -> String {
    let all: Vec<&str> = skeleton.lines().collect();
    let mut class = String::new();
    let mut at = 0;
    for method in methods(skeleton).iter().filter(|method| method.missing) {
        let mut held = texts.iter().filter_map(|text| lines(text, method.name));
        let Some((indent, body)) = held.find(|(_, body)| !written || !is_stub(body)) else { continue };
        all[at..method.begin].iter().for_each(|line| class.extend([line, "\n"]));
        let wanted = indentation(all[method.begin]);
        for line in body {
            let line = line.get(indent.min(indentation(line))..).unwrap_or_default();
            class.push_str(&format!("{}{line}\n", " ".repeat(wanted)));
        }
        class.push('\n');
        at = method.end;
    }
    all[at..].iter().for_each(|line| class.extend([line, "\n"]));
    class
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKELETON: &str = "import math\n\nclass Box:\n    \"\"\"A box.\"\"\"\n\n    def __init__(self, a):\n        self.a = a\n\n    @property\n    \
                            def area(self):\n        \"\"\"\n        The area.\n        >>> Box(2).area\n        \"\"\"\n\n    def grow(self, by):\n        pass\n";

    #[test]
    fn a_skeleton_is_filled_in() {
        assert_eq!(missing(SKELETON), ["area", "grow"]);
        let area = "```python\ndef area(self):\n    def inner():\n        return 2\n\n    return self.a ** inner()\n```";
        let both = "class Box:\n    def area(self):\n        return 0\n    def grow(self, by):\n        self.a += by\n";
        let want = "import math\n\nclass Box:\n    \"\"\"A box.\"\"\"\n\n    def __init__(self, a):\n        self.a = a\n\n    @property\n    \
                    def area(self):\n        def inner():\n            return 2\n    \n        return self.a ** inner()\n\n    def grow(self, by):\n        \
                    self.a += by\n\n";
        assert_eq!(merged(SKELETON, &[area, both], false), want);
        // One agent may write what the other left open.
        let open = "def area(self):\n    pass";
        assert_eq!(merged(SKELETON, &[open, area, both], true), want);
        assert_ne!(merged(SKELETON, &[open, area, both], false), want);
        assert_eq!(missing(want), Vec::<String>::new());
        assert_eq!(merged(SKELETON, &["", "no"], true).trim(), SKELETON.trim());
        assert_eq!(missing("def alone():\n    pass\n"), Vec::<String>::new());
    }

    #[test]
    fn stubs() {
        let is_stub = |text: &str| super::is_stub(&text.lines().collect::<Vec<_>>());
        for text in [
            "def m(self):\n    pass",
            "def m(self): pass",
            "def m(self):\n    \"\"\"Text\n    of two lines.\"\"\"\n    # more\n    ...",
            "def m(self) -> None:\n    return None",
            "def m(self):\n    raise NotImplementedError(\"later\")",
            "def m(self):",
        ] {
            assert!(is_stub(text), "{text}");
        }
        for text in [
            "def m(self):\n    return 1",
            "def m(self): return self.a[1:]",
            "def m(self):\n    pass\n    self.a = 1",
        ] {
            assert!(!is_stub(text), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(
            skeleton in "(class A:\n|    |def f\\(self\\):|pass|\"\"\"|'''|\n|é|\t|return 1){0,30}",
            text in "(class A:\n|    |def f\\(self\\):|pass|\"\"\"|\n|é|\t|return 1|```){0,30}",
        ) {
            let _ = (missing(&skeleton), merged(&skeleton, &[&text, &skeleton], true));
            let _ = is_stub(&text.lines().collect::<Vec<_>>());
        }
    }
}
