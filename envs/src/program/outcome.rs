//! What a program's end is worth: its exit, and the last line of its stdout.

use std::collections::BTreeMap;

use problems::math::answer::{Answer, extract};
use record::failure::{Failure, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::episode::Exit;
use super::roles::{Crash, Scorer, Settings};

/// Letters of a line that is told.
const TOLD: usize = 80;
/// The hint for programs that print no result.
const LAST: &str = "the last line that it prints is {\"reward\": 0.0 to 1.0}, or {\"answer\": ...} if the task has an `answer`";

/// The result line of a program.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    reward: Option<f64>,
    success: Option<bool>,
    #[serde(default)]
    rewards: BTreeMap<String, f64>,
    #[serde(default)]
    components: BTreeMap<String, f64>,
    /// Null is an answer, and a wrong one.
    #[serde(default, deserialize_with = "given")]
    answer: Option<Value>,
}

fn given<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// The fields of the step protocol's answer to the last action.
///
/// # Errors
/// No result line, or one that cannot be scored: data.
pub fn outcome(exit: &Exit, spec: &Value, settings: &Settings) -> Result<Value> {
    let mut line = match &exit.failed {
        None => result(&exit.output)?,
        Some(_) if settings.crash == Crash::Zero => Line { reward: Some(0.0), ..Line::default() },
        Some(failed) => return Err(Failure::data(format!("the program failed: {failed}"))),
    };
    let crashed = u8::from(exit.failed.is_some());
    line.components.insert("crashed".to_owned(), crashed.into());
    let is_right = line.answer.as_ref().map(|answer| is_right(answer, spec, settings.scorer)).transpose()?;
    let Some(reward) = line.reward.or(is_right.map(|right| f64::from(u8::from(right)))) else {
        return Err(Failure::data("the program's result has neither `reward` nor `answer`").hint(LAST));
    };
    let names = settings.names();
    if let Some(name) = line.rewards.keys().find(|name| !names.contains(&name.as_str())) {
        let roles = names.join(", ");
        return Err(Failure::data(format!("the program's `rewards` name {name}; the roles are: {roles}")));
    }
    // The protocol wants a number for every role once it has one for any.
    let local: BTreeMap<&str, f64> =
        names.iter().map(|name| (*name, line.rewards.get(*name).copied().unwrap_or(0.0))).collect();
    let local = if line.rewards.is_empty() { json!(0.0) } else { json!(local) };
    let success = line.success.or(is_right).unwrap_or(reward >= 1.0);
    Ok(json!({"rewards": {"team": reward, "local": local}, "reward_components": line.components,
        "terminated": true, "success": success, "observations": {}}))
}

fn result(output: &[u8]) -> Result<Line> {
    let output = String::from_utf8_lossy(output);
    let last = output.lines().map(str::trim).rfind(|line| !line.is_empty());
    let Some(last) = last else {
        return Err(Failure::data("the program ended without a result line").hint(LAST));
    };
    serde_json::from_str(last).map_err(|error| {
        let told: String = last.chars().take(TOLD).collect();
        Failure::data(format!("the program's last line is no result: {told:?}: {error}")).hint(LAST)
    })
}

/// Returns true if `said` is the answer of the task.
fn is_right(said: &Value, spec: &Value, scorer: Scorer) -> Result<bool> {
    let text =
        |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_owned());
    let Some(wanted) = spec.get("answer").map(text) else {
        return Err(Failure::data(
            "the program's result has `answer`, and the task has none to compare it with",
        )
        .hint("print {\"reward\": ...}, or add \"answer\" to every line of --tasks"));
    };
    if spec["answer"].is_null() {
        // A user's question, to which no answer is known.
        return Ok(false);
    }
    let said = text(said);
    if scorer == Scorer::Text {
        return Ok(said == wanted);
    }
    let wanted = Answer::read(&wanted).ok_or_else(|| {
        Failure::data(format!("the task's answer {wanted:?} cannot be read as mathematics"))
    })?;
    let said = extract::answer(&said).and_then(|said| Answer::read(&said));
    Ok(said.is_some_and(|said| said.same(&wanted)))
}
