//! What a program answers, and how it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::Message;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Each agent's observation; `None` for one that skips its turn.
pub(super) type Observations = BTreeMap<String, Option<Observation>>;

/// Messages, or `{"messages": …, "tools": …}`.
#[derive(Clone)]
pub(super) struct Observation {
    pub(super) messages: Vec<Message>,
    pub(super) tools: Option<Arc<Value>>,
}

impl<'de> Deserialize<'de> for Observation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct WithTools {
            messages: Vec<Message>,
            tools: Option<Value>,
        }
        let value = Value::deserialize(deserializer)?;
        if !value.is_object() {
            let messages = serde_json::from_value(value).map_err(D::Error::custom)?;
            return Ok(Observation { messages, tools: None });
        }
        let WithTools { messages, tools } = serde_json::from_value(value).map_err(D::Error::custom)?;
        if let Some(tools) = &tools {
            check_tools(tools).map_err(D::Error::custom)?;
        }
        Ok(Observation { messages, tools: tools.map(Arc::new) })
    }
}

/// Checks tools as OpenAI's API and transformers list them.
fn check_tools(tools: &Value) -> std::result::Result<(), String> {
    let all = tools.as_array().filter(|all| !all.is_empty()).ok_or("`tools` is not a list of tools")?;
    let named = |tool: &&Value| {
        let function = tool.get("function").unwrap_or(tool);
        function.get("name").and_then(Value::as_str).is_some_and(|name| !name.is_empty())
    };
    match all.iter().find(|tool| !named(tool)) {
        Some(tool) => Err(format!(
            "`tools` has {tool}, which is no {{\"type\": \"function\", \"function\": {{\"name\": …, \"parameters\": …}}}}"
        )),
        None => Ok(()),
    }
}

/// The response to a request with `task`.
#[derive(Deserialize)]
pub(super) struct ResetResponse {
    pub(super) state: Box<RawValue>,
    pub(super) observations: Observations,
    pub(super) agents: Vec<String>,
    pub(super) order: Value,
    pub(super) turns: Option<u32>,
    /// Who acts; the others need no observation.
    pub(super) turn: Option<Actors>,
    /// True if the program supports `actions`.
    #[serde(default)]
    pub(super) together: bool,
    /// True if a `state` is a handle of its process.
    #[serde(default)]
    pub(super) handles: bool,
    /// False if states cannot be copied.
    #[serde(default = "yes")]
    pub(super) copies: bool,
    #[serde(default = "unit")]
    pub(super) reward_range: (f64, f64),
}

fn yes() -> bool {
    true
}

fn unit() -> (f64, f64) {
    (0.0, 1.0)
}

/// The rewards of a response; `local` may be one number for all agents, or one by agent.
#[derive(Deserialize)]
pub(super) struct StepRewards {
    pub(super) team: f64,
    pub(super) local: Local,
}

/// Who acts next: an agent, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected `turn` as an agent, or as an array of agents")]
pub(super) enum Actors {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected `local` as a number, or as numbers by agent")]
pub(super) enum Local {
    Of(f64),
    By(BTreeMap<String, f64>),
}

/// The response to a request with `state`, `agent` and `action`.
#[derive(Deserialize)]
pub(super) struct StepResponse {
    pub(super) rewards: StepRewards,
    #[serde(default)]
    pub(super) reward_components: BTreeMap<String, f64>,
    pub(super) terminated: bool,
    pub(super) success: bool,
    #[serde(default)]
    pub(super) observations: Observations,
    pub(super) turn: Option<Actors>,
    pub(super) info: Option<Box<RawValue>>,
}

/// The longest `info`, in bytes of JSON: it is in every line of the record.
const INFO_BYTES: usize = 4096;

/// The response to a request with `state`, `agent` and `probe`.
#[derive(Clone, Debug, Deserialize)]
pub struct ProbeResponse {
    /// Test actions; empty after the end of the episode.
    #[serde(default)]
    pub probes: Vec<String>,
    /// An action that no other outscores.
    pub oracle: Option<String>,
    /// True if the task is solved here, determined independently of the last action's result.
    pub solved: bool,
}

/// An `info` that the record can keep; `None` if it is empty.
pub(super) fn checked_info(info: &RawValue) -> Result<Option<String>> {
    let text = record::text::compact_json(info.get());
    let bytes = text.len();
    match serde_json::from_str(&text).map_err(Failure::data)? {
        Value::Object(info) if bytes <= INFO_BYTES => Ok((!info.is_empty()).then_some(text)),
        Value::Object(_) => {
            Err(Failure::data(format!("`info` has {bytes} bytes as JSON, and at most {INFO_BYTES} are kept"))
                .hint("it is in every line of the record: shorten it, or write the rest into another file"))
        }
        other => Err(Failure::data(format!("`info` is {other}, and not an object"))
            .hint("name the values: {\"note\": ...}")),
    }
}

pub(super) fn read<T: for<'a> Deserialize<'a>>(response: &str) -> Result<T> {
    serde_json::from_str(response)
        .map_err(|error| Failure::data(format!("a response of the environment's program: {error}")))
}

#[cfg(test)]
mod tests {
    use super::check_tools;
    use serde_json::json;

    #[test]
    fn tools_have_names() {
        let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
        assert_eq!(check_tools(&json!([tool])), Ok(()));
        assert_eq!(check_tools(&json!([{"name": "add"}])), Ok(()));
        for wrong in [
            json!([]),
            json!({}),
            json!([{"type": "function"}]),
            json!([{"function": {"name": ""}}]),
            json!(["add"]),
        ] {
            assert!(check_tools(&wrong).is_err(), "{wrong}");
        }
    }
}
