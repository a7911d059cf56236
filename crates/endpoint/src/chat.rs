//! Chat completions: calls as their clients send them, and the answers, whole or in chunks.
//!
//! Left out: images, several choices, alternatives of tokens. Settings that cannot be enforced (a format of the answer, a
//! tool that must be called) are named in [`ChatCall::unheeded`], not refused, because most clients send them as a wish.

use record::sample::Message;
use serde_json::{Value, json};

use crate::Error;

type Parsed<T> = Result<T, Error>;

/// One call for a completion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatCall {
    pub model: String,
    pub turns: Vec<ChatMessage>,
    /// As the call has them; `None` if there are none, or if none may be called.
    pub tools: Option<Value>,
    /// At least 1.
    pub max_tokens: Option<u32>,
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Above 0, at most 1.
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    /// None of them empty.
    pub stop: Option<Vec<String>>,
    pub seed: Option<u64>,
    pub logprobs: bool,
    pub stream: bool,
    /// True if a stream ends with a chunk of token counts.
    pub include_usage: bool,
    /// Fields that have no effect.
    pub unheeded: Vec<&'static str>,
}

/// A message of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Parts of text joined; empty if there is none.
    pub content: String,
    /// What an assistant called.
    pub calls: Vec<ToolUse>,
    /// The id of the call that a tool answers.
    pub answers: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    pub id: String,
    pub name: String,
    /// JSON as text.
    pub arguments: String,
}

impl ToolUse {
    fn to_json(&self) -> Value {
        json!({"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}})
    }
}

impl ChatMessage {
    /// The message with its calls in its text, as Hermes writes them.
    pub fn message(&self) -> Message {
        let mut content = self.content.clone();
        for ToolUse { name, arguments, .. } in &self.calls {
            let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
            content.push_str(if content.is_empty() { "" } else { "\n" });
            content +=
                &format!("<tool_call>\n{{\"name\":{},\"arguments\":{arguments}}}\n</tool_call>", json!(name));
        }
        Message { role: self.role.clone(), content }
    }
}

/// Reads a call.
///
/// # Errors
/// 400, which names the field.
pub fn parse(body: &Value) -> Parsed<ChatCall> {
    let Value::Object(_) = body else { return Err(Error::invalid("the body is no JSON object")) };
    let flag = |key: &str, of: &Value| match &of[key] {
        Value::Null => Ok(false),
        value => value.as_bool().ok_or_else(|| wrong(key, "true or false")),
    };
    let number = |key: &str, what: &str, is: fn(f64) -> bool| match &body[key] {
        Value::Null => Ok(None),
        value => value
            .as_f64()
            .filter(|value| is(*value))
            .map(|value| Some(value as f32))
            .ok_or_else(|| wrong(key, what)),
    };
    let count = |key: &str, least: u64| match &body[key] {
        Value::Null => Ok(None),
        value => {
            let count =
                value.as_u64().filter(|count| *count >= least).and_then(|count| u32::try_from(count).ok());
            count.map(Some).ok_or_else(|| wrong(key, &format!("a whole number of {least} or more")))
        }
    };
    if count("n", 1)?.is_some_and(|n| n > 1) {
        return Err(Error::invalid("n: one choice per call: send several calls, they run together"));
    }
    if count("top_logprobs", 0)?.is_some_and(|top| top > 0) {
        return Err(Error::invalid(
            "top_logprobs: only the chosen tokens have log-probabilities: send logprobs alone",
        ));
    }
    let turns = match &body["messages"] {
        Value::Array(messages) if !messages.is_empty() => {
            messages.iter().enumerate().map(|(at, message)| turn(at, message)).collect::<Parsed<_>>()?
        }
        _ => return Err(wrong("messages", "a list of at least one message")),
    };
    let tools = match &body["tools"] {
        Value::Null => None,
        Value::Array(tools) if tools.is_empty() => None,
        Value::Array(tools) if tools.iter().all(|tool| tool["function"]["name"].is_string()) => {
            Some(body["tools"].clone())
        }
        _ => return Err(wrong("tools", "a list of functions with names")),
    };
    let choice = &body["tool_choice"];
    let is_set = |key: &str| match &body[key] {
        Value::Null => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Object(entries) => {
            !entries.is_empty() && entries.get("type").is_none_or(|kind| kind != "text")
        }
        _ => true,
    };
    let mut unheeded: Vec<&str> = ["response_format", "frequency_penalty", "presence_penalty", "logit_bias"]
        .into_iter()
        .filter(|key| is_set(key))
        .collect();
    if tools.is_some() && !choice.is_null() && choice != "auto" && choice != "none" {
        unheeded.push("tool_choice");
    }
    Ok(ChatCall {
        model: body["model"].as_str().ok_or_else(|| wrong("model", "a name"))?.to_owned(),
        turns,
        tools: tools.filter(|_| choice != "none"),
        max_tokens: count("max_completion_tokens", 1)?.or(count("max_tokens", 1)?),
        temperature: number("temperature", "a number of 0 or more", |value| (0.0..=1e6).contains(&value))?,
        top_p: number("top_p", "a number above 0 and at most 1", |value| value > 1e-30 && value <= 1.0)?,
        top_k: match &body["top_k"] {
            // As vLLM writes that all tokens count.
            value if value.as_i64() == Some(-1) => Some(0),
            _ => count("top_k", 0)?,
        },
        min_p: number("min_p", "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))?,
        stop: stop(&body["stop"])?,
        seed: match &body["seed"] {
            Value::Null => None,
            value => Some(
                value
                    .as_u64()
                    .or_else(|| value.as_i64().map(|seed| seed as u64))
                    .ok_or_else(|| wrong("seed", "a whole number"))?,
            ),
        },
        logprobs: flag("logprobs", body)?,
        stream: flag("stream", body)?,
        include_usage: flag("include_usage", &body["stream_options"])?,
        unheeded,
    })
}

fn wrong(field: &str, what: &str) -> Error {
    Error::invalid(format!("{field}: must be {what}"))
}

fn stop(value: &Value) -> Parsed<Option<Vec<String>>> {
    let texts: Option<Vec<String>> = match value {
        Value::Null => return Ok(None),
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(texts) => texts.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let is_fine = |texts: &Vec<String>| texts.len() <= 64 && texts.iter().all(|text| !text.is_empty());
    texts
        .filter(is_fine)
        .map(Some)
        .ok_or_else(|| wrong("stop", "a text or a list of at most 64, none of them empty"))
}

fn turn(at: usize, message: &Value) -> Parsed<ChatMessage> {
    let wrong = |key: &str, what: &str| wrong(&format!("messages[{at}]{key}"), what);
    let role = match message["role"].as_str() {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        _ => return Err(wrong(".role", "system, developer, user, assistant or tool")),
    };
    let content = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Null if role == "assistant" => String::new(),
        Value::Array(parts) => {
            let text = |part: &Value| match part["type"].as_str() {
                Some("text" | "input_text" | "output_text") => part["text"].as_str().map(str::to_owned),
                Some("refusal") => part["refusal"].as_str().map(str::to_owned),
                _ => None,
            };
            let only_text = || wrong(".content", "text: images, sound and files are not read");
            parts.iter().map(text).collect::<Option<String>>().ok_or_else(only_text)?
        }
        _ => return Err(wrong(".content", "a text or a list of parts")),
    };
    let call = |call: &Value| {
        let function = &call["function"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let arguments = text(&function["arguments"]).unwrap_or_default();
        Some(ToolUse { id: text(&call["id"])?, name: text(&function["name"])?, arguments })
    };
    let calls = match &message["tool_calls"] {
        Value::Null => Some(Vec::new()),
        calls => calls.as_array().and_then(|calls| calls.iter().map(call).collect()),
    };
    let calls = calls.ok_or_else(|| wrong(".tool_calls", "a list of calls with id and function"))?;
    let answers = message["tool_call_id"].as_str().map(str::to_owned);
    Ok(ChatMessage { role: role.to_owned(), content, calls, answers })
}

/// What all chunks of an answer have.
#[derive(Clone, Debug)]
pub struct Head {
    /// `chatcmpl-…`.
    pub id: String,
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct ChatAnswer {
    pub content: String,
    pub calls: Vec<ToolUse>,
    /// `stop`, `length` or `tool_calls`.
    pub finish: &'static str,
    /// `{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`, or null.
    pub logprobs: Value,
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

impl ChatAnswer {
    fn usage(&self) -> Value {
        let (prompt, completion) = (self.prompt_tokens, self.completion_tokens);
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
    }
}

impl Head {
    /// The whole answer.
    pub fn completion(&self, said: &ChatAnswer) -> Value {
        let calls: Vec<Value> = said.calls.iter().map(ToolUse::to_json).collect();
        let is_silent = said.content.is_empty() && !calls.is_empty();
        let mut message =
            json!({"role": "assistant", "content": (!is_silent).then_some(&said.content), "refusal": null});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let choice =
            json!({"index": 0, "message": message, "logprobs": said.logprobs, "finish_reason": said.finish});
        let mut answer = self.object("chat.completion", vec![choice]);
        answer["usage"] = said.usage();
        answer
    }

    /// A chunk of a stream; the first says `role`, the last `finish_reason`.
    pub fn chunk(&self, delta: Value, logprobs: Value, finish: Option<&str>) -> Value {
        let choice = json!({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish});
        self.object("chat.completion.chunk", vec![choice])
    }

    /// The last chunks of a stream whose text has been sent: calls, the reason of its end, and counts if they are wanted.
    pub fn last_chunks(&self, said: &ChatAnswer, include_usage: bool) -> Vec<Value> {
        let mut chunks = Vec::new();
        if !said.calls.is_empty() {
            let call = |(index, call): (usize, &ToolUse)| {
                let mut call = call.to_json();
                call["index"] = index.into();
                call
            };
            let calls: Vec<Value> = said.calls.iter().enumerate().map(call).collect();
            chunks.push(self.chunk(json!({ "tool_calls": calls }), Value::Null, None));
        }
        chunks.push(self.chunk(json!({}), Value::Null, Some(said.finish)));
        if include_usage {
            let mut counts = self.object("chat.completion.chunk", Vec::new());
            counts["usage"] = said.usage();
            chunks.push(counts);
        }
        chunks
    }

    /// A stream that has all of its text in one chunk.
    pub fn chunks(&self, said: &ChatAnswer, include_usage: bool) -> Vec<Value> {
        let text =
            self.chunk(json!({"role": "assistant", "content": said.content}), said.logprobs.clone(), None);
        [vec![text], self.last_chunks(said, include_usage)].concat()
    }

    fn object(&self, kind: &str, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(entries: Value) -> Value {
        let mut body = json!({"model": "solver", "messages": [{"role": "user", "content": "hi"}]});
        for (key, value) in entries.as_object().expect("entries") {
            body[key] = value.clone();
        }
        body
    }

    #[test]
    fn messages_are_read_as_sdks_write_them() {
        let tool_calls =
            json!([{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{\"x\": 1}"}}]);
        let messages = json!([
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]},
            {"role": "user", "content": "1 + 1?", "name": "me"},
            {"role": "assistant", "content": null, "tool_calls": tool_calls},
            {"role": "tool", "content": "2", "tool_call_id": "a"},
        ]);
        let call = parse(&with(json!({ "messages": messages }))).expect("a call");
        let messages: Vec<(String, String)> = call
            .turns
            .iter()
            .map(ChatMessage::message)
            .map(|message| (message.role, message.content))
            .collect();
        let text = "<tool_call>\n{\"name\":\"add\",\"arguments\":{\"x\": 1}}\n</tool_call>";
        let expected = [("system", "be kind"), ("user", "1 + 1?"), ("assistant", text), ("tool", "2")];
        assert_eq!(messages, expected.map(|(role, content)| (role.to_owned(), content.to_owned())));
        assert_eq!(call.turns[3].answers.as_deref(), Some("a"));
    }

    #[test]
    fn settings_are_read_and_wishes_named() {
        let call = parse(&with(json!({
            "temperature": 0, "top_p": 0.5, "top_k": -1, "max_tokens": 7, "max_completion_tokens": 9, "stop": "END",
            "seed": -1, "stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "n": 1,
            "response_format": {"type": "json_object"}, "presence_penalty": 0, "tools": [], "user": "u",
        })))
        .expect("a call");
        assert_eq!(
            (call.temperature, call.top_p, call.top_k, call.max_tokens),
            (Some(0.0), Some(0.5), Some(0), Some(9))
        );
        assert_eq!((call.stop, call.seed), (Some(vec!["END".to_owned()]), Some(u64::MAX)));
        assert!(call.stream && call.include_usage && call.logprobs && call.tools.is_none());
        assert_eq!(call.unheeded, ["response_format"]);
        let tools = json!([{"type": "function", "function": {"name": "add"}}]);
        let call = parse(&with(json!({"tools": tools, "tool_choice": "required"}))).expect("a call");
        assert_eq!((call.tools, call.unheeded), (Some(tools.clone()), vec!["tool_choice"]));
        assert_eq!(parse(&with(json!({"tools": tools, "tool_choice": "none"}))).expect("a call").tools, None);
    }

    #[test]
    fn wrong_fields_are_named() {
        for (entries, field) in [
            (json!({"n": 2}), "n: one choice"),
            (json!({"n": 0}), "n: must be"),
            (json!({"model": null}), "model: "),
            (json!({"messages": []}), "messages: "),
            (json!({"messages": "hi"}), "messages: "),
            (json!({"messages": [{"role": "king", "content": ""}]}), "messages[0].role: "),
            (json!({"messages": [{"role": "user"}]}), "messages[0].content: "),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                "messages[0].content: must be text",
            ),
            (json!({"messages": [{"role": "assistant", "tool_calls": [1]}]}), "messages[0].tool_calls: "),
            (json!({"temperature": -1}), "temperature: "),
            (json!({"temperature": "hot"}), "temperature: "),
            (json!({"top_p": 0}), "top_p: "),
            (json!({"max_tokens": 0}), "max_tokens: "),
            (json!({"max_tokens": 1e30}), "max_tokens: "),
            (json!({"stop": [""]}), "stop: "),
            (json!({"seed": 0.5}), "seed: "),
            (json!({"stream": "yes"}), "stream: "),
            (json!({"top_logprobs": 3}), "top_logprobs: "),
            (json!({"tools": [{}]}), "tools: "),
        ] {
            let error = parse(&with(entries.clone())).expect_err(field);
            assert!(error.status == 400 && error.message.starts_with(field), "{entries}: {error:?}");
        }
        assert_eq!(parse(&json!([])).expect_err("a list").status, 400);
    }

    #[test]
    fn answers_are_whole_or_in_chunks() {
        let head = Head { id: "chatcmpl-1".into(), model: "solver".into(), created: 5 };
        let call = ToolUse { id: "call_1".into(), name: "add".into(), arguments: "{}".into() };
        let said = ChatAnswer {
            calls: vec![call],
            finish: "tool_calls",
            prompt_tokens: 3,
            completion_tokens: 4,
            ..ChatAnswer::default()
        };
        let whole = head.completion(&said);
        let message = &whole["choices"][0]["message"];
        assert_eq!(
            (&message["content"], &message["tool_calls"][0]["function"]["name"]),
            (&Value::Null, &json!("add"))
        );
        assert_eq!(
            (&whole["usage"]["total_tokens"], &whole["choices"][0]["finish_reason"]),
            (&json!(7), &json!("tool_calls"))
        );
        let chunks = head.chunks(&ChatAnswer { content: "I add.".into(), ..said }, true);
        assert_eq!(chunks.len(), 4);
        assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": "I add."}));
        assert_eq!(chunks[1]["choices"][0]["delta"]["tool_calls"][0]["index"], 0);
        assert_eq!(chunks[2]["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!((&chunks[3]["choices"], &chunks[3]["usage"]["prompt_tokens"]), (&json!([]), &json!(3)));
    }
}
