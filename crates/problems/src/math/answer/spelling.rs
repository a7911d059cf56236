//! Normalizes notations: LaTeX's text and colors, degrees, delimiters, Markdown, and "the answer is".
//!
//! The result is mathematics for [`super::token`], or prose for [`super::word`].

use super::token::is_among;

/// Commands with text in braces: numbers in it are numbers, words stay words.
const TEXT: &str = "text textrm textbf textit textsf texttt textnormal textup emph mathrm mathsf mathit mathtt mbox hbox underline";
/// Commands whose first braces contain a color.
const COLORS: &str = "color textcolor";
/// Words before "answer is" that add nothing.
const ANNOUNCING: &str = "the a so and thus hence therefore then our my final correct right is";
/// Delimiters around an answer, in pairs or not.
const WRAPPERS: [&str; 18] = [
    "*",
    "`",
    "_",
    "\"",
    "\u{201c}",
    "\u{201d}",
    "\\(",
    "\\)",
    "\\[",
    "\\]",
    "<b>",
    "</b>",
    "<strong>",
    "</strong>",
    "<i>",
    "</i>",
    "<em>",
    "</em>",
];

/// A line without surrounding decoration.
pub fn undecorated(line: &str) -> &str {
    let mut rest = line.trim();
    loop {
        let before = rest.len();
        for wrapper in WRAPPERS {
            rest = rest.strip_prefix(wrapper).unwrap_or(rest).trim_start();
            // `\\[` and `\\(` are not brackets.
            rest = rest.strip_suffix(wrapper).unwrap_or(rest).trim_end();
        }
        rest = rest.trim_end_matches(['.', ':']).trim_end();
        if rest.len() == before {
            return rest;
        }
    }
}

/// `text` without an announcement such as "The answer is 42", also in `\text{}`.
pub fn unannounced(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let found =
        ["answer is", "answer:"].iter().filter_map(|phrase| Some((lower.find(phrase)?, phrase.len())));
    let Some((at, length)) = found.min() else { return text.to_owned() };
    let before = lower[..at].replace(['{', '*', '_', '#', ','], " ");
    let is_known = |word: &str| {
        is_among(ANNOUNCING, word) || word.strip_prefix('\\').is_some_and(|name| is_among(TEXT, name))
    };
    if !before.split_whitespace().all(is_known) {
        return text.to_owned();
    }
    let mut rest = text[at + length..].trim_start_matches([':', ' ', '*']).to_owned();
    for _ in text[..at].matches('{') {
        if let Some(close) = rest.find('}') {
            rest.remove(close);
        }
    }
    rest.trim_start_matches([':', ' ']).to_owned()
}

/// `text` with text, colors, delimiters and degrees normalized.
pub fn plain(text: &str) -> String {
    let text: String = text.chars().map(simple).collect();
    let text = FRACTIONS.iter().fold(text, |text, (sign, fraction)| text.replace(*sign, fraction));
    let mut found = String::new();
    let mut rest = &text[..];
    while let Some(letter) = rest.chars().next() {
        let after = &rest[letter.len_utf8()..];
        if letter != '\\' {
            found.push(letter);
            rest = after;
            continue;
        }
        let name =
            &after[..after.len() - after.trim_start_matches(|sign: char| sign.is_ascii_alphabetic()).len()];
        let behind = &after[name.len()..];
        if name.is_empty() {
            let next = behind.chars().next();
            match next {
                Some('(' | ')' | '[' | ']') => found.push(' '),
                _ => found.extend([letter].into_iter().chain(next)),
            }
            rest = &behind[next.map_or(0, char::len_utf8)..];
        } else if let Some((inside, behind)) = group(behind).filter(|_| is_among(TEXT, name)) {
            found.push_str(&words(inside));
            rest = behind;
        } else if let Some((_, behind)) = group(behind).filter(|_| is_among(COLORS, name)) {
            rest = behind;
        } else {
            found.extend(["\\", name]);
            rest = behind;
        }
    }
    ["^{\\circ}", "^\\circ", "^{\\degree}", "^\\degree", "^{°}", "^°", "\\degree"]
        .iter()
        .fold(found, |text, degree| text.replace(degree, "°"))
}

/// Fractions that are one character, and others that formulas write otherwise.
const FRACTIONS: [(char, &str); 8] = [
    ('½', "\\frac{1}{2}"),
    ('⅓', "\\frac{1}{3}"),
    ('⅔', "\\frac{2}{3}"),
    ('¼', "\\frac{1}{4}"),
    ('¾', "\\frac{3}{4}"),
    ('⅕', "\\frac{1}{5}"),
    ('⅛', "\\frac{1}{8}"),
    ('ℝ', "\\mathbb{R}"),
];

/// A fullwidth character as its plain form.
fn simple(letter: char) -> char {
    let code = u32::from(letter);
    let plain = (0xff01..=0xff5e).contains(&code).then(|| char::from_u32(code - 0xfee0)).flatten();
    plain.unwrap_or(letter)
}

/// The content of the braces at the start of `text`, and the rest.
pub fn group(text: &str) -> Option<(&str, &str)> {
    let inside = text.trim_start().strip_prefix('{')?;
    let (mut depth, mut escaped) = (0_u32, false);
    for (at, letter) in inside.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' if depth == 0 => return Some((&inside[..at], &inside[at + 1..])),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Text as mathematics, with words in `\text{}`: `13 apples` becomes `13 \text{apples}`.
fn words(text: &str) -> String {
    if text.trim().trim_start_matches('\\') == "," {
        return "{,}".to_owned();
    }
    if !text.contains(|sign: char| sign.is_ascii_digit() || sign == '$') {
        return format!("\\text{{{text}}}");
    }
    let (text, mut found) = (plain(text), String::new());
    let mut rest = &text[..];
    while let Some(letter) = rest.chars().next() {
        let run = rest.len() - rest.trim_start_matches(char::is_alphabetic).len();
        if run == 0 {
            found.push(letter);
            rest = &rest[letter.len_utf8()..];
            continue;
        }
        let (word, behind) = rest.split_at(run);
        // A command, or the exponent of a number.
        let exponent = word.eq_ignore_ascii_case("e")
            && found.ends_with(|sign: char| sign.is_ascii_digit())
            && behind.starts_with(|sign: char| sign.is_ascii_digit() || matches!(sign, '-' | '+'));
        match found.ends_with('\\') || exponent {
            true => found.push_str(word),
            false => found.extend([" \\text{", word, "}"]),
        }
        rest = behind;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_unwrapped_and_words_stay_words() {
        for (text, expected) in [
            ("\\text{13}", "13"),
            ("\\text{13 apples}", "13  \\text{apples}"),
            ("\\text{apples}", "\\text{apples}"),
            ("\\textbf{1\\mbox{2}}", "12"),
            ("10\\text{,}236", "10{,}236"),
            ("\\textcolor{red}{13}", "{13}"),
            ("\\(13\\)", " 13 "),
            ("\\left(13\\right]", "\\left(13\\right]"),
            ("1\\\\[4pt]2", "1\\\\[4pt]2"),
            ("30^{\\circ}+5^\\circ", "30°+5°"),
            ("\\text{1e5}", "1e5"),
            ("\\text{5", "\\text{5"),
            ("\\", "\\"),
        ] {
            assert_eq!(plain(text), expected, "{text}");
        }
    }

    #[test]
    fn decoration_is_stripped_in_any_order() {
        for text in [
            "**56**.",
            "*56*:",
            "__56__",
            "`56`.",
            "\"56\".",
            "\\(56\\).",
            "<b>56</b>.",
            "**`56`.**",
            "\\[ 56 \\]",
        ] {
            assert_eq!(undecorated(text), "56", "{text}");
        }
        assert_eq!(undecorated("**"), "");
        assert_eq!(undecorated("2 * 3"), "2 * 3");
    }

    #[test]
    fn only_an_announcement_is_left_out() {
        for (text, expected) in [
            ("The answer is 42", "42"),
            ("So the final answer is: 42", "42"),
            ("\\text{The answer is } 13", "13"),
            ("\\text{The answer is 13}", "13"),
            ("Answer: 5", "5"),
            ("No answer is 42", "No answer is 42"),
            ("below 5", "below 5"),
            ("the answer is", ""),
        ] {
            assert_eq!(unannounced(text).trim(), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_spelled(text in "(\\\\text|\\\\color|\\{|\\}|\\\\|\\(|\\[|,|1|e|é| |answer is|answer:|the|\\^|°|\\\\circ|\\*|_){0,24}") {
            let _ = (plain(&text), unannounced(&text), undecorated(&text));
        }
    }
}
