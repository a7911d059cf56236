//! Values as Python's `str` and `repr` print them.

use minijinja::value::{Value as Jinja, ValueKind};
use minijinja::{Output, State, escape_formatter};

use super::range::PyRange;
use super::{Result, text};

/// Prints a value as `{{ value }}` does.
pub(super) fn print(output: &mut Output, state: &mut State, value: &Jinja) -> Result<()> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            Ok(output.write_str(&text_of(value)?)?)
        }
        _ => escape_formatter(output, state, value),
    }
}

/// Python's `str(value)`.
pub(super) fn text_of(value: &Jinja) -> Result<String> {
    if let Some(number) = float(value) {
        return Ok(float_text(number));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => repr(value),
        _ => Ok(value.to_string()),
    }
}

/// Python's `repr(value)`, as in a list that is printed.
fn repr(value: &Jinja) -> Result<String> {
    if let Some(range) = value.downcast_object_ref::<PyRange>() {
        return Ok(range.to_string());
    }
    if let Some(text) = value.as_str() {
        return Ok(text::repr(text));
    }
    let mut items = Vec::new();
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                items.push(repr(&item)?);
            }
            Ok(format!("[{}]", items.join(", ")))
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                items.push(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?));
            }
            Ok(format!("{{{}}}", items.join(", ")))
        }
        ValueKind::Undefined => Ok("Undefined".to_owned()),
        _ => text_of(value),
    }
}

/// A number with a point.
fn float(value: &Jinja) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok())?
}

/// Python's `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_text(number: f64) -> String {
    let text = format!("{number:e}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text.to_lowercase();
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}
