//! Adds keys to a line before its closing brace; every other byte stays.
//!
//! Unknown fields, the order of keys and the spelling of numbers survive because nothing is serialized again.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Serialize;

use crate::check::Entries;
use crate::failure::{Failure, Result};
use crate::finite;

/// The start of a Unicode escape, as in `\u0041`.
static ESCAPE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\\u"));

/// Adds keys to lines. The searchers are kept, because building one takes longer than searching a short line.
#[derive(Debug, Default)]
pub struct Splicer(Vec<Key>);

/// A key, and how it is spelled and found.
#[derive(Debug)]
struct Key {
    name: String,
    quoted: String,
    finder: Finder<'static>,
}

/// Adds keys to one line, as [`Splicer::splice`] does.
pub fn splice<V: AsRef<str>>(text: &str, additions: &[(&str, V)]) -> Result<String> {
    Splicer::default().splice(text, additions)
}

impl Splicer {
    /// Adds keys to the object in `text`, a line that the reader took. Each addition is a key and its value as JSON text
    /// (see [`json`]).
    ///
    /// # Errors
    /// 65: one of the keys is already present, or `text` is no object.
    pub fn splice<V: AsRef<str>>(&mut self, text: &str, additions: &[(&str, V)]) -> Result<String> {
        let close = text.trim_end().len().checked_sub(1).filter(|&close| text.as_bytes()[close] == b'}');
        let (Some(close), Some(inside)) = (close, text.trim_start().strip_prefix('{')) else {
            return Err(Failure::data("not a JSON object"));
        };
        let added: usize = additions.iter().map(|(key, value)| key.len() + value.as_ref().len() + 4).sum();
        let mut output = String::with_capacity(text.len() + added);
        let escapes = ESCAPE.find(text.as_bytes()).is_some();
        output.push_str(&text[..close]);
        let mut separator = if inside.trim_start().starts_with('}') { "" } else { "," };
        for (position, (key, value)) in additions.iter().enumerate() {
            let known = self.key(key)?;
            if known.is_in(text, escapes)? || additions[..position].iter().any(|(other, _)| other == key) {
                return Err(Failure::data(format!("`{key}` is already present")).hint(format!(
                    "a stage only adds; take the key out first, for example with jq 'del(.{key})'"
                )));
            }
            output.push_str(separator);
            output.push_str(&known.quoted);
            output.push(':');
            output.push_str(value.as_ref());
            separator = ",";
        }
        output.push_str(&text[close..]);
        Ok(output)
    }

    fn key(&mut self, name: &str) -> Result<&Key> {
        let position = match self.0.iter().position(|known| known.name == name) {
            Some(position) => position,
            None => {
                let quoted = json(name)?;
                let finder = Finder::new(&quoted).into_owned();
                self.0.push(Key { name: name.to_owned(), quoted, finder });
                self.0.len() - 1
            }
        };
        Ok(&self.0[position])
    }
}

/// A value as JSON text, for [`splice`]. An f32 is written as an f32, with the fewest digits that read back as itself.
///
/// # Errors
/// 65: a NaN or an infinity anywhere in it.
pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    finite::text(&value)
}

impl Key {
    /// Returns true if the object in `text` has the key; `escapes` says whether some character of the text is spelled as `\u`.
    ///
    /// A search for the quoted key settles it for almost every line; only where the text holds it somewhere, or spells
    /// some character as an escape, are the keys read one by one.
    fn is_in(&self, text: &str, escapes: bool) -> Result<bool> {
        if !escapes && self.finder.find(text.as_bytes()).is_none() {
            return Ok(false);
        }
        let entries: Entries = serde_json::from_str(text).map_err(|error| {
            Failure::data(format!("not a JSON object: {}", crate::read::without_line(&error)))
        })?;
        Ok(entries.0.iter().any(|(other, _)| *other == self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(text: &str, key: &str, value: &str) -> Result<String> {
        splice(text, &[(key, value.to_owned())])
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        let text = "  {\"b\" : 1.50e+0,\"a\":\"\\u00e9}\", \"n\":{\"group\":1} } \r";
        let expected = "  {\"b\" : 1.50e+0,\"a\":\"\\u00e9}\", \"n\":{\"group\":1} ,\"group\":\"g\"} \r";
        assert_eq!(add(text, "group", "\"g\"").unwrap(), expected);
        assert_eq!(add("{ }", "a", "1").unwrap(), "{ \"a\":1}");
    }

    #[test]
    fn a_key_that_is_there_is_refused_however_it_is_spelt() {
        for text in ["{\"group\":1}", "{\"gr\\u006fup\":1}", "{\"a\":{},\"group\" :null}"] {
            let failure = add(text, "group", "2").unwrap_err();
            assert_eq!(failure.code, crate::failure::DATA);
            assert_eq!(failure.message, "`group` is already present");
        }
        assert!(splice("{\"a\":1}", &[("b", "1".to_owned()), ("b", "2".to_owned())]).is_err());
    }

    #[test]
    fn lines_that_are_no_objects_are_refused() {
        for text in ["", "[]", "}", "{", "null", "{\"a\":1}x"] {
            assert!(add(text, "group", "1").is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_written_short_and_only_when_finite() {
        assert_eq!(json(&-0.123_456_78_f32).unwrap(), "-0.12345678");
        assert_eq!(json("a\"b").unwrap(), "\"a\\\"b\"");
        let failure = json(&[1.0, f64::NAN]).unwrap_err();
        assert_eq!(failure.code, crate::failure::DATA);
    }
}
