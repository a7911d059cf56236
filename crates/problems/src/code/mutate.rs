//! Mutants: a program with one sign changed, as a stand-in for mistakes that people make.
//!
//! Texts in quotation marks and comments are left alone. Only tests can tell if a mutant is wrong.

/// Signs and words with their replacements; longer ones first, so that `<=` is not read as `<`.
const CHANGES: &[(&str, &str)] = &[
    ("<=", "<"),
    (">=", ">"),
    ("==", "!="),
    ("!=", "=="),
    (" < ", " <= "),
    (" > ", " >= "),
    (" + 1", ""),
    (" - 1", ""),
    ("+1", ""),
    ("-1", "-2"),
    (" + ", " - "),
    (" - ", " + "),
    (" * ", " + "),
    (" // ", " * "),
    (" and ", " or "),
    (" or ", " and "),
    ("min(", "max("),
    ("max(", "min("),
    ("range(1,", "range(0,"),
    ("sorted(", "list("),
];

/// Every program that differs from `source` by one change, in the order of the places.
pub fn mutants(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut quote: Option<char> = None;
    let mut comment = false;
    for (place, sign) in source.char_indices() {
        match (sign, quote) {
            ('\n', _) => comment = false,
            _ if comment => continue,
            ('#', None) => comment = true,
            ('"' | '\'', None) => quote = Some(sign),
            (_, Some(open)) if sign == open => quote = None,
            _ => {}
        }
        if comment || quote.is_some() {
            continue;
        }
        let rest = &source[place..];
        let change = CHANGES.iter().copied().find(|(from, _)| rest.starts_with(from));
        if let Some((from, to)) = change.or_else(|| between(&source[..place], rest)) {
            found.push(format!("{}{to}{}", &source[..place], &rest[from.len()..]));
        }
    }
    found
}

/// The change of a sign that stands between two values without spaces: `a-b`, `f(x)*2`, but not `1e-5` or `*list`.
fn between(before: &str, rest: &str) -> Option<(&'static str, &'static str)> {
    let change = match rest.as_bytes().first()? {
        b'-' => ("-", "+"),
        b'+' => ("+", "-"),
        b'*' => ("*", "+"),
        _ => return None,
    };
    let ends = |sign: char| sign.is_alphanumeric() || matches!(sign, '_' | ')' | ']');
    let begins = |sign: char| sign.is_alphanumeric() || matches!(sign, '_' | '(');
    let fits = before.ends_with(ends) && rest[1..].starts_with(begins);
    // The exponent of a number.
    let mut signs = before.chars().rev();
    let exponent =
        matches!(signs.next(), Some('e' | 'E')) && signs.next().is_some_and(|sign| sign.is_ascii_digit());
    (fits && !exponent).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::mutants;

    #[test]
    fn one_sign_at_a_time() {
        let source = "if a <= b and c == 'x < y':  # a < b\n    print(a + 1)\n";
        let mutants = mutants(source);
        assert_eq!(mutants.len(), 4, "{mutants:#?}");
        assert_eq!(mutants[0], source.replace("<= b", "< b"));
        assert_eq!(mutants[1], source.replace(" and ", " or "));
        assert_eq!(mutants[2], source.replace("==", "!="));
        assert_eq!(mutants[3], source.replace("a + 1", "a"));
    }

    #[test]
    fn the_first_word_may_be_changed() {
        assert_eq!(mutants("max(a, b)"), ["min(a, b)"]);
    }

    #[test]
    fn an_apostrophe_in_a_comment_opens_no_text() {
        assert_eq!(mutants("# don't\nprint(a + 1)"), ["# don't\nprint(a)"]);
    }

    #[test]
    fn signs_without_spaces() {
        let source = "print(*sorted(x), a-b, f(x)*2, 1e-5, 2**k, -c, 'a-b', x+y, size-c)";
        let changes =
            [("sorted", "list"), ("a-b, f", "a+b, f"), ("*2,", "+2,"), ("x+y", "x-y"), ("size-c", "size+c")];
        assert_eq!(mutants(source), changes.map(|(from, to)| source.replacen(from, to, 1)));
    }
}
