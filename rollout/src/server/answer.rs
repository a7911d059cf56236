//! Reads a server's answer: a candidate, an error, or neither.

use std::time::Duration;

use serde_json::Value;
use ureq::http::StatusCode;

use super::CallError;
use crate::episode::group::{Candidate, ServerTokens};

/// How a call failed.
pub(super) enum Attempt {
    Over(CallError),
    /// Another may succeed, after this pause if the server named one.
    MayPass(CallError, Option<Duration>),
}

/// Why an answer has no candidate.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    /// Another may.
    MayPass(String),
    Over(String),
}

/// The status that an error in an answer stands for, which came with status 200.
pub(super) fn status_of_error(reply: &Value) -> Option<StatusCode> {
    let error = reply.get("error").filter(|error| !error.is_null())?;
    let code = ["code", "status", "status_code"].iter().find_map(|key| match &error[*key] {
        Value::String(text) => text.parse().ok(),
        number => number.as_u64().and_then(|number| u16::try_from(number).ok()),
    });
    let code = code.filter(|code| (400..600).contains(code));
    Some(code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::BAD_GATEWAY))
}

/// The candidate in an answer.
pub(super) fn candidate(reply: &Value) -> Result<Candidate, Fault> {
    let choice = &reply["choices"][0];
    let broken = || Fault::MayPass(format!("its answer has no message: {}", short(&reply.to_string())));
    if !choice["message"].is_object() {
        return Err(broken());
    }
    let finished = choice["finish_reason"].as_str().unwrap_or_default();
    // A partial text is no answer.
    if ["error", "abort"].contains(&finished) || choice.get("error").is_some_and(|error| !error.is_null()) {
        let told = choice.pointer("/error/message").unwrap_or(&choice["error"]);
        let told = told.as_str().map_or_else(|| choice.to_string(), str::to_owned);
        return Err(Fault::MayPass(format!("its answer ended with an error: {}", short(&told))));
    }
    let text = match &choice["message"]["content"] {
        Value::String(text) => text.clone(),
        // An empty answer.
        Value::Null => String::new(),
        Value::Array(parts) => parts.iter().map(text_of).collect::<Option<String>>().ok_or_else(|| {
            Fault::Over(format!(
                "its answer has parts that are no text: {}",
                short(&choice["message"].to_string())
            ))
        })?,
        _ => return Err(broken()),
    };
    let text = with_calls(text, &choice["message"]["tool_calls"]);
    let tokens = |key: &str| reply["usage"][key].as_u64();
    let usage = ServerTokens { prompt: tokens("prompt_tokens"), completion: tokens("completion_tokens") };
    Ok(Candidate {
        text,
        ids: Vec::new(),
        logprobs: Vec::new(),
        stopped: finished != "length",
        usage,
        ..Candidate::default()
    })
}

/// A text with the calls of tools that came apart from it, as Hermes writes them: an environment reads them there. Arguments
/// that are no JSON object, such as cut ones, stay as they came, so that no call can be read.
fn with_calls(mut text: String, calls: &Value) -> String {
    for function in calls.as_array().into_iter().flatten().map(|call| &call["function"]) {
        let arguments = match &function["arguments"] {
            Value::String(text) if !text.trim().is_empty() => text.clone(),
            Value::Null | Value::String(_) => "{}".to_owned(),
            other => other.to_string(),
        };
        let call = format!("{{\"name\":{},\"arguments\":{arguments}}}", function["name"]);
        text.push_str(if text.is_empty() { "" } else { "\n" });
        text.push_str(&format!("<tool_call>\n{call}\n</tool_call>"));
    }
    text
}

/// The text of a part of a message, without the model's thoughts.
fn text_of(part: &Value) -> Option<&str> {
    match part["type"].as_str() {
        Some("text" | "output_text") => part["text"].as_str(),
        Some("thinking" | "reasoning") => Some(""),
        _ => None,
    }
}

/// The beginning of a text, on one line.
pub(super) fn short(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(message: Value, finish: Value) -> Result<(String, bool), Fault> {
        let reply = json!({"choices": [{"message": message, "finish_reason": finish}], "error": null});
        assert_eq!(status_of_error(&reply), None);
        candidate(&reply).map(|candidate| (candidate.text, candidate.stopped))
    }

    #[test]
    fn a_candidate_is_what_the_model_said() {
        let text = |text: &str, stopped| Ok((text.to_owned(), stopped));
        assert_eq!(said(json!({"content": "a"}), json!("stop")), text("a", true));
        assert_eq!(said(json!({"content": "a"}), json!("length")), text("a", false));
        assert_eq!(said(json!({"content": null}), json!(null)), text("", true));
        assert_eq!(said(json!({}), json!("tool_calls")), text("", true));
        for (arguments, read) in [
            (json!("{\"a\": 1}"), Some("{\"a\":1}")),
            (json!({"a": 1}), Some("{\"a\":1}")),
            (json!(""), Some("{}")),
            (json!(null), Some("{}")),
            (json!("{\"a\": \"cut o"), None),
            (json!("{\"a\": 1}{\"a\": 2}"), None),
            (json!("[1]"), None),
            (json!("7"), None),
        ] {
            let call = json!({"type": "function", "function": {"name": "add", "arguments": arguments}});
            let called = said(json!({"content": "I add.", "tool_calls": [call]}), json!("tool_calls"));
            let reading = policy::tools::reading(&called.expect("a candidate").0, None);
            let found: Vec<&str> = reading.calls.iter().map(|call| &*call.arguments).collect();
            assert_eq!(found, Vec::from_iter(read), "{arguments}");
            assert_eq!(reading.is_unread, read.is_none(), "{arguments}");
        }
        let parts = json!([{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}, {"type": "text", "text": " b"}]);
        assert_eq!(said(json!({"content": parts}), json!("stop")), text("a b", true));
        let image = said(json!({"content": [{"type": "image_url"}]}), json!("stop"));
        assert!(matches!(image, Err(Fault::Over(_))), "{image:?}");
    }

    #[test]
    fn an_error_is_no_answer() {
        for finish in ["error", "abort"] {
            let found = said(json!({"content": ""}), json!(finish));
            assert!(
                matches!(&found, Err(Fault::MayPass(cause)) if cause.contains("ended with an error")),
                "{found:?}"
            );
        }
        for reply in [json!({}), json!({"choices": []}), json!({"choices": [{"text": "x"}]}), json!([])] {
            assert!(matches!(candidate(&reply), Err(Fault::MayPass(_))), "{reply}");
        }
        let status = |error: Value| status_of_error(&json!({ "error": error })).map(|status| status.as_u16());
        assert_eq!(status(json!({"code": 429, "message": "slow"})), Some(429));
        assert_eq!(status(json!({"code": "401"})), Some(401));
        assert_eq!(status(json!({"code": "rate_limit_exceeded"})), Some(502));
        assert_eq!(status(json!("busy")), Some(502));
        assert_eq!(status(json!({"status": 200})), Some(502));
    }
}
