//! Reading one setting of a JSON configuration, with a sentence where it cannot be used.

use std::path::Path;

use record::failure::Failure;
use serde_json::Value;

use crate::files::show;

/// Sizes above this are a damaged or hostile file, not a model; the bound keeps products inside 64 bits.
const LARGEST_SIZE: u64 = 1 << 24;

/// A sentence about one setting, before the file it stands in is known.
pub(crate) struct Refusal {
    message: String,
    hint: Option<String>,
}

impl Refusal {
    pub(crate) fn new(message: String) -> Refusal {
        Refusal { message, hint: None }
    }

    pub(crate) fn hint(mut self, hint: String) -> Refusal {
        self.hint = Some(hint);
        self
    }

    /// The failure of the file at `place`; `hint` where the setting has none of its own.
    pub(crate) fn into_failure(self, place: &Path, hint: &str) -> Failure {
        let failure = Failure::data(format!("{}: {}", show(place), self.message));
        failure.hint(self.hint.as_deref().unwrap_or(hint))
    }
}

pub(crate) type Checked<T> = std::result::Result<T, Refusal>;

/// The key's value unless it is absent or `null`: `transformers` writes both for "not set".
pub(crate) fn present<'a>(json: &'a Value, key: &str) -> Option<&'a Value> {
    json.get(key).filter(|value| !value.is_null())
}

pub(crate) fn size(json: &Value, key: &str) -> Checked<usize> {
    match present(json, key) {
        None => Err(Refusal::new(format!("{key} is missing"))),
        Some(value) => match value.as_u64() {
            Some(number) if (1..=LARGEST_SIZE).contains(&number) => Ok(number as usize),
            _ => Err(Refusal::new(format!("{key} is {value}, not a whole number from 1 to {LARGEST_SIZE}"))),
        },
    }
}

pub(crate) fn positive(json: &Value, key: &str) -> Checked<f32> {
    let value = present(json, key).ok_or_else(|| Refusal::new(format!("{key} is missing")))?;
    match value.as_f64().map(|number| number as f32) {
        Some(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err(Refusal::new(format!("{key} is {value}, not a positive number"))),
    }
}

pub(crate) fn flag(json: &Value, key: &str) -> Checked<Option<bool>> {
    match present(json, key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(Refusal::new(format!("{key} is {other}, not true or false"))),
    }
}
