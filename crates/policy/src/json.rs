//! Reads a policy's small JSON files and their settings, with messages that name both.

use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::files::{COPY, exists, read_text, show};

/// Larger than any configuration, in bytes; as values in memory it takes up to sixteen times that.
pub(crate) const LARGEST_JSON: u64 = 16 << 20;

/// The file as one JSON object.
pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let text = read_text(path, LARGEST_JSON)?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::data(format!("{}: not JSON: {error}", show(path))).hint(COPY))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Failure::data(format!("{}: not a JSON object", show(path))).hint(COPY))
    }
}

/// Reads JSON, or returns `None` if the file does not exist. A dangling link is an error.
pub(crate) fn read_json_if_present(path: &Path) -> Result<Option<Value>> {
    if exists(path)? { read_json(path).map(Some) } else { Ok(None) }
}

/// Larger sizes mean a damaged or hostile file; the bound keeps products within 64 bits.
const LARGEST_SIZE: u64 = 1 << 24;

/// Names the file of a refused setting; adds `hint` if the failure has no hint.
pub(crate) fn in_file(failure: Failure, path: &Path, hint: &str) -> Failure {
    let own = failure.hint.clone();
    failure.at(show(path)).hint(own.as_deref().unwrap_or(hint))
}

/// The key's value unless it is absent or `null`: `transformers` writes both for "not set".
pub(crate) fn present<'a>(json: &'a Value, key: &str) -> Option<&'a Value> {
    json.get(key).filter(|value| !value.is_null())
}

pub(crate) fn size(json: &Value, key: &str) -> Result<usize> {
    match present(json, key) {
        None => Err(Failure::data(format!("{key} is missing"))),
        Some(value) => match value.as_u64() {
            Some(number) if (1..=LARGEST_SIZE).contains(&number) => Ok(number as usize),
            _ => Err(Failure::data(format!("{key} is {value}, not a whole number from 1 to {LARGEST_SIZE}"))),
        },
    }
}

pub(crate) fn positive(json: &Value, key: &str) -> Result<f32> {
    let value = present(json, key).ok_or_else(|| Failure::data(format!("{key} is missing")))?;
    match value.as_f64().map(|number| number as f32) {
        Some(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err(Failure::data(format!("{key} is {value}, not a positive number"))),
    }
}

pub(crate) fn flag(json: &Value, key: &str) -> Result<Option<bool>> {
    match present(json, key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(Failure::data(format!("{key} is {other}, not true or false"))),
    }
}
