//! Raw specs and raw states: JSON read with errors that name the field.

use std::fmt::Display;

use record::failure::{Failure, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The failure of a `spec`.
pub fn fail(cause: impl Display) -> Failure {
    Failure::data(format!("spec: {cause}"))
}

/// A raw spec.
pub fn read<T: DeserializeOwned>(spec: &Value) -> Result<T> {
    T::deserialize(spec).map_err(fail)
}

/// A raw state, or a part of one.
pub fn read_state<T: DeserializeOwned>(state: &Value) -> Result<T> {
    T::deserialize(state).map_err(|error| Failure::data(format!("state: {error}")))
}

/// A raw spec, or another value that always has a JSON form, as JSON.
pub fn write(raw: &impl Serialize) -> Value {
    serde_json::to_value(raw).unwrap_or_default()
}

/// A raw spec that holds the fields of both, of which no name is in both.
pub fn write_both(problem: &impl Serialize, rules: &impl Serialize) -> Value {
    let (mut spec, more) = (write(problem), write(rules));
    if let (Value::Object(spec), Value::Object(more)) = (&mut spec, more) {
        spec.extend(more);
    }
    spec
}

/// Checks the range of the number called `name` in a `spec`.
pub fn checked<T: PartialOrd + Display>(name: &str, value: T, least: T, most: T) -> Result<()> {
    match value >= least && value <= most {
        true => Ok(()),
        false => Err(fail(format!("{name}: {value} is not from {least} to {most}"))),
    }
}

/// State JSON: environment, `spec` and workflow, and then what `raw` holds.
pub fn state(environment: &str, spec: Value, workflow: &str, raw: &impl Serialize) -> Map<String, Value> {
    let mut state = Map::new();
    state.insert("env".to_owned(), environment.into());
    state.insert("spec".to_owned(), spec);
    state.insert("workflow".to_owned(), workflow.into());
    if let Value::Object(raw) = write(raw) {
        state.extend(raw);
    }
    state
}
