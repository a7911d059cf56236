//! Text that lies in the line it was read from: reading a sample copies only what the line spells with escapes.
//!
//! serde borrows into a `Cow` only where that is all of a field, not inside an `Option` or a list; hence a type.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Valid JSON without the blanks between its tokens. Text keeps the digits of integers over 64 bits, which a
/// [`serde_json::Value`] rounds.
pub fn compact_json(json: &str) -> String {
    let (mut inside, mut escaped) = (false, false);
    let mut keep = |c: char| {
        let keeps = inside || !c.is_ascii_whitespace();
        (inside, escaped) = (inside != (c == '"' && !escaped), c == '\\' && !escaped);
        keeps
    };
    json.chars().filter(|c| keep(*c)).collect()
}

/// A slice of a line, or an owned text.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Text<'a>(Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Text(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Text(Cow::Owned(text))
    }
}

impl From<Text<'_>> for String {
    fn from(text: Text) -> Self {
        text.0.into_owned()
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfLine;

        impl<'de> Visitor<'de> for OfLine {
            type Value = Text<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(OfLine)
    }
}

#[cfg(test)]
mod tests {
    use crate::read::Line;
    use crate::sample::Sample;

    #[test]
    fn only_what_is_spelled_with_escapes_is_copied() {
        let text =
            r#"{"type":"sample","v":1,"agent":"tool","completion":"a\tb","reward_components":{"legal":1}}"#;
        let line = Line::parse("test", 1, text.to_owned()).unwrap();
        let sample = Sample::parse(&line).unwrap();
        let (agent, completion) = (sample.agent.unwrap(), sample.completion.unwrap());
        assert_eq!((&*agent, &*completion), ("tool", "a\tb"));
        let components = sample.reward_components.unwrap();
        let component = components.keys().next().unwrap();
        assert_eq!(&**component, "legal");
        let place = line.text.as_bytes().as_ptr_range();
        let lies_in_line = [&agent, &completion, component].map(|text| place.contains(&text.as_ptr()));
        assert_eq!(lies_in_line, [true, false, true]);
    }
}
