//! Python's methods of texts, where minijinja has other white space, ends of lines or letters.

use minijinja::State;
use minijinja::value::{Value as Jinja, from_args};
use minijinja_contrib::pycompat;

use super::{Result, invalid, text};

/// Returns true for the characters that Python's `str.strip` and `str.split` remove.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Python's methods of values, with Python's white space and ends of lines.
pub(super) fn method(state: &mut State, value: &Jinja, method: &str, arguments: &[Jinja]) -> Result<Jinja> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, arguments);
    };
    let trimmed = match (method, arguments) {
        ("strip", []) => text.trim_matches(is_space),
        ("lstrip", []) => text.trim_start_matches(is_space),
        ("rstrip", []) => text.trim_end_matches(is_space),
        ("isspace", []) => return Ok(Jinja::from(!text.is_empty() && text.chars().all(is_space))),
        ("isalnum" | "isalpha" | "isdecimal" | "isdigit" | "isnumeric", []) => {
            return text::is(method, text).map(Jinja::from).map_err(invalid);
        }
        ("title", []) => return text::titled(text).map(Jinja::from).map_err(invalid),
        ("capitalize", []) => return text::capitalized(text).map(Jinja::from).map_err(invalid),
        ("join", [items]) => {
            let mut texts = Vec::new();
            for item in items.try_iter()? {
                let kind = item.kind();
                let own = item.as_str().map(str::to_owned);
                texts.push(
                    own.ok_or_else(|| invalid(format!("str.join of a value that is no text, but {kind}")))?,
                );
            }
            return Ok(Jinja::from(texts.join(text)));
        }
        ("split", []) => return Ok(text.split(is_space).filter(|part| !part.is_empty()).collect()),
        ("splitlines", _) => {
            let (keep,): (Option<bool>,) = from_args(arguments)?;
            return Ok(lines(text, keep.unwrap_or(false)).collect());
        }
        _ => return pycompat::unknown_method_callback(state, value, method, arguments),
    };
    Ok(Jinja::from(trimmed))
}

/// Python's `str.splitlines`.
fn lines(text: &str, keep: bool) -> impl Iterator<Item = &str> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut rest = text;
    std::iter::from_fn(move || {
        let at = rest.find(ends).unwrap_or(rest.len());
        let end = match rest[at..].chars().next() {
            Some('\r') if rest[at..].starts_with("\r\n") => at + 2,
            Some(c) => at + c.len_utf8(),
            None if rest.is_empty() => return None,
            None => at,
        };
        let line = &rest[..if keep { end } else { at }];
        rest = &rest[end..];
        Some(line)
    })
}
