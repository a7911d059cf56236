//! Decorating a line: new keys go before its closing brace, every other byte stays.

use crate::failure::{Failure, Result};

/// Adds keys to the object in `text`. Each addition is a key and its value as JSON text (see [`json`]).
///
/// # Errors
/// `text` is no object, or one of the keys is already there (65).
pub fn splice(text: &str, additions: &[(&str, String)]) -> Result<String> {
    let object: std::collections::HashMap<String, serde::de::IgnoredAny> =
        serde_json::from_str(text).map_err(|error| Failure::data(format!("no JSON object: {error}")))?;
    let close = text.rfind('}').ok_or_else(|| Failure::data("no JSON object"))?;
    let mut output = String::with_capacity(text.len() + 128);
    output.push_str(&text[..close]);
    let mut empty = object.is_empty();
    for (key, value) in additions {
        if object.contains_key(*key) {
            return Err(Failure::data(format!("`{key}` is already there")));
        }
        if !empty {
            output.push(',');
        }
        empty = false;
        output.push_str(&json(key)?);
        output.push(':');
        output.push_str(value);
    }
    output.push_str(&text[close..]);
    Ok(output)
}

/// A value as JSON text, for [`splice`]. Refuses NaN and infinity; an f32 is written as an f32.
pub fn json(value: &(impl serde::Serialize + ?Sized)) -> Result<String> {
    crate::finite::text(&value)
}
