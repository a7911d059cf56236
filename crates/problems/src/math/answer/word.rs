//! Answers that are not computed, as normalized text: words, choices, matrices, inequalities.
//!
//! Prose is compared without case and punctuation. In a text with mathematics every sign counts, so that `x < 5` is not
//! `x > 5` and a matrix keeps its signs; decoration, spaces and the spelling of a sign do not count. An inequality may be
//! written from either side. Left out: what any of it means.

use super::token::{LAYOUT, is_among};

/// Characters that are looked at.
const LONGEST: usize = 4096;
/// Commands dropped besides [`LAYOUT`]; the content of their braces stays.
const DECORATION: &str = "text textbf textit textrm mathrm mathsf mathcal mbox dots";
/// Signs, and the commands and letters that spell them.
const SPELLINGS: [(&str, &str); 9] = [
    ("<=", "leq le leqslant ≤"),
    (">=", "geq ge geqslant ≥"),
    ("<", "lt"),
    (">", "gt"),
    ("!=", "neq ne ≠"),
    ("*", "cdot times · ×"),
    ("\\frac", "dfrac tfrac"),
    ("-", "\u{2212} –"),
    ("∞", "infty"),
];

/// `text` normalized for comparison; `None` if nothing is left.
pub fn word(text: &str) -> Option<String> {
    let letters: Vec<char> = text.chars().take(LONGEST).collect();
    let mut pieces: Vec<String> = Vec::new();
    let mut at = 0;
    while let Some(&letter) = letters.get(at) {
        at += 1;
        let spelled = |name: &str| {
            SPELLINGS.iter().find(|(_, names)| is_among(names, name)).map(|(sign, _)| (*sign).to_owned())
        };
        if letter == '\\' {
            let name: String =
                letters[at..].iter().take_while(|letter| letter.is_ascii_alphabetic()).collect();
            at += name.len().max(1);
            if name.is_empty() {
                match letters.get(at - 1) {
                    // The end of a row.
                    Some('\\') => pieces.push(";".to_owned()),
                    Some(sign @ ('{' | '}' | '%' | '|')) => pieces.push(sign.to_string()),
                    _ => {}
                }
            } else if !is_among(LAYOUT, &name) && !is_among(DECORATION, &name) {
                pieces.push(spelled(&name).unwrap_or(format!("\\{name}")));
            }
        } else if letter.is_alphanumeric() {
            let mut run: String = letter.to_lowercase().collect();
            while let Some(more) = letters.get(at).filter(|more| more.is_alphanumeric()) {
                run.extend(more.to_lowercase());
                at += 1;
            }
            pieces.push(run);
        } else if let Some(sign) = spelled(&letter.to_string()) {
            pieces.push(sign);
        } else if !letter.is_whitespace() && !matches!(letter, '$' | '{' | '}' | '~' | '"' | '`' | '\'') {
            pieces.push(letter.to_string());
        }
    }
    let number = |piece: &String| piece.starts_with(|letter: char| letter.is_ascii_digit());
    let is_mathematics = pieces.iter().enumerate().any(|(at, piece)| match piece.as_str() {
        "!=" => true,
        "-" => pieces.get(at + 1).is_some_and(number),
        piece => piece.starts_with(['<', '>', '=', '+', '^', '&', ';', '\\', '|', '∞']),
    });
    let is_word = |piece: &String| piece.starts_with(char::is_alphanumeric);
    let text = match is_mathematics {
        false => pieces.into_iter().filter(is_word).collect::<Vec<_>>().join(" "),
        true => from_below(&pieces.concat()),
    };
    (!text.is_empty()).then_some(text)
}

/// `5 > x` as `x < 5`.
fn from_below(text: &str) -> String {
    if text.contains('<') {
        return text.to_owned();
    }
    let sides: Vec<&str> = text.split('>').collect();
    let mut turned = String::new();
    for (number, side) in sides.iter().enumerate().rev() {
        // The sign before a side ends at its `=`, if it has one; before the first side it says nothing.
        let bare = side.strip_prefix('=');
        turned.push_str(bare.unwrap_or(side));
        if number > 0 {
            turned.push_str(if bare.is_some() { "<=" } else { "<" });
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::word;

    #[test]
    fn prose_is_compared_by_words_and_mathematics_by_signs() {
        for (text, expected) in [
            ("\\text{Tuesday}.", "tuesday"),
            ("Twenty-one", "twenty one"),
            ("(B)", "b"),
            ("x \\leq 5", "x<=5"),
            ("5 ≥ x", "x<=5"),
            ("7 > y > 3", "3<y<7"),
            ("= 7 > y", "y<7"),
            ("y \\ge 50\\%", "50%<=y"),
            ("a < b > c", "a<b>c"),
            ("x^2 &", "x^2&"),
            ("below -5", "below-5"),
            ("-1 < x \\le 2", "-1<x<=2"),
            ("\\begin{pmatrix} 1 & -2 \\\\ 3 & 4 \\end{pmatrix}", "\\beginpmatrix1&-2;3&4\\endpmatrix"),
        ] {
            assert_eq!(word(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(word(" $ . "), None);
    }
}
