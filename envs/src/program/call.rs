//! A program's calls of a model: the role of a call of `/chat/completions` or `/responses`, what it says, and the key by which equal
//! calls are known. `/responses` is a thin translation: function tools alone, no stored responses, no streams.

use endpoint::Error;
use endpoint::chat::{self, ChatAnswer, ChatCall, Head, ToolUse};
use serde_json::{Map, Value, json};

use super::roles::Settings;

type Result<T> = std::result::Result<T, Error>;

/// Fields that neither a policy nor an answer depends on.
const IGNORED: [&str; 7] =
    ["stream", "stream_options", "user", "metadata", "store", "prompt_cache_key", "safety_identifier"];
/// Seconds since 1970 at which every answer was given: an answer that is replayed is the same.
const CREATED: u64 = 1_700_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Chat,
    Responses,
}

/// A call.
#[derive(Clone, Debug)]
pub struct Asked {
    pub role: String,
    /// Equal for calls to which the same answer is due.
    pub key: String,
    pub call: ChatCall,
    endpoint: Endpoint,
}

impl Asked {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// 400: a malformed call, or one that is not supported; 404: a model that is no role.
    pub fn read(endpoint: Endpoint, body: &Value, settings: &Settings) -> Result<Asked> {
        let mut body = body.clone();
        if let Some(ignore) = &settings.ignore {
            blank(&mut body, ignore);
        }
        let call = match endpoint {
            Endpoint::Chat => chat::parse(&body)?,
            Endpoint::Responses => chat::parse(&as_chat(&body)?)?,
        };
        let system = call.turns.iter().find(|turn| turn.role == "system").map_or("", |turn| &turn.content);
        let role = settings.role_of(&call.model, system)?.to_owned();
        if let Value::Object(fields) = &mut body {
            fields.retain(|name, _| !IGNORED.contains(&name.as_str()));
        }
        Ok(Asked { role, key: canonical(&json!([endpoint as u8, body])).to_string(), call, endpoint })
    }

    /// Settings in it that have no effect: `rollout` decides them, because the recorded log-probabilities are by its flags.
    pub fn overruled(&self) -> Vec<&'static str> {
        let ChatCall { temperature, top_p, max_tokens, seed, unheeded, .. } = &self.call;
        let set = [
            ("temperature", temperature.is_some()),
            ("top_p", top_p.is_some()),
            ("max_tokens", max_tokens.is_some()),
            ("seed", seed.is_some()),
        ];
        let set = set.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name);
        set.chain(unheeded.iter().copied()).collect()
    }
}

/// Removes what `ignore` matches from all texts.
fn blank(value: &mut Value, ignore: &regex::Regex) {
    match value {
        Value::String(text) => *text = ignore.replace_all(text, "").into_owned(),
        Value::Array(values) => values.iter_mut().for_each(|value| blank(value, ignore)),
        Value::Object(fields) => fields.values_mut().for_each(|value| blank(value, ignore)),
        _ => {}
    }
}

/// With sorted keys, without nulls and empty lists.
pub fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(name, value)| (name, canonical(value))).collect();
            fields.retain(|(_, value)| !value.is_null() && *value != json!([]));
            fields.sort_by_key(|(name, _)| *name);
            fields.into_iter().map(|(name, value)| (name.clone(), value)).collect::<Map<_, _>>().into()
        }
        Value::Array(values) => values.iter().map(canonical).collect(),
        other => other.clone(),
    }
}

/// A call of `/responses` as one of `/chat/completions`.
fn as_chat(body: &Value) -> Result<Value> {
    let refused = [
        ("previous_response_id", "responses are not stored here: send the whole conversation as input"),
        ("conversation", "responses are not stored here: send the whole conversation as input"),
        (
            "stream",
            "/responses has no streams here: use chat completions, in the Agents SDK by set_default_openai_api(\"chat_completions\")",
        ),
    ];
    let is_set = |name: &str| !body[name].is_null() && body[name] != false;
    if let Some((name, cause)) = refused.iter().find(|(name, _)| is_set(name)) {
        return Err(Error::invalid(format!("{name}: {cause}")));
    }
    let mut messages: Vec<Value> = Vec::new();
    if body["instructions"].is_string() {
        messages.push(json!({"role": "system", "content": body["instructions"]}));
    }
    match &body["input"] {
        Value::Array(items) => items.iter().try_for_each(|item| add(&mut messages, item))?,
        text => messages.push(json!({"role": "user", "content": text})),
    }
    let tool = |tool: &Value| match &tool["type"] {
        kind if kind == "function" => Ok(json!({"type": "function", "function": {
            "name": tool["name"], "description": tool["description"], "parameters": tool["parameters"]}})),
        kind => Err(Error::invalid(format!("tools: policies call functions, and none of the type {kind}"))),
    };
    let tools = body["tools"].as_array().map(|tools| tools.iter().map(tool).collect::<Result<Vec<_>>>());
    Ok(
        json!({"model": body["model"], "messages": messages, "tools": tools.transpose()?, "tool_choice": body["tool_choice"],
        "temperature": body["temperature"], "top_p": body["top_p"], "max_tokens": body["max_output_tokens"]}),
    )
}

/// Adds an item of `input` to the messages; each call of an answer is an item.
fn add(messages: &mut Vec<Value>, item: &Value) -> Result<()> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => messages.push(json!({"role": item["role"], "content": item["content"]})),
        "function_call" => {
            let function = json!({"name": item["name"], "arguments": item["arguments"]});
            let call = json!({"id": item["call_id"], "type": "function", "function": function});
            if messages.last().is_none_or(|last| last["role"] != "assistant") {
                messages.push(json!({"role": "assistant"}));
            }
            if let Some(Value::Object(last)) = messages.last_mut() {
                let calls = last.entry("tool_calls").or_insert_with(|| json!([]));
                calls.as_array_mut().into_iter().for_each(|calls| calls.push(call.clone()));
            }
        }
        "function_call_output" => {
            let (id, output) = (&item["call_id"], &item["output"]);
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
        }
        "reasoning" => {}
        other => return Err(Error::invalid(format!("input: no items of the type {other}"))),
    }
    Ok(())
}

/// What a policy answered to a call.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Its position among the calls of its episode, from 0: ids of answers and calls are made of it, so that they repeat.
    pub number: usize,
    pub text: String,
    /// The tools that it calls: name, and arguments as JSON.
    pub calls: Vec<(String, String)>,
    /// True if it was cut at the token limit.
    pub is_cut: bool,
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

/// The number of the answer that the call with this id is in.
pub fn number_of(id: &str) -> Option<usize> {
    id.strip_prefix("call_")?.split('_').next()?.parse().ok()
}

impl Answer {
    /// The body of the HTTP answer.
    pub fn body(&self, asked: &Asked) -> Value {
        let said = self.said(asked);
        match asked.endpoint {
            Endpoint::Chat => self.head(asked).completion(&said),
            Endpoint::Responses => self.response(asked, &said),
        }
    }

    /// The same as events, the text in one.
    pub fn events(&self, asked: &Asked) -> Vec<Value> {
        self.head(asked).chunks(&self.said(asked), asked.call.include_usage)
    }

    fn head(&self, asked: &Asked) -> Head {
        Head { id: format!("chatcmpl-{}", self.number), model: asked.call.model.clone(), created: CREATED }
    }

    /// The calls, or else the text up to the first stop text.
    fn said(&self, asked: &Asked) -> ChatAnswer {
        let stops = asked.call.stop.iter().flatten().filter_map(|stop| self.text.find(stop.as_str()));
        let content = &self.text[..stops.min().unwrap_or(self.text.len())];
        let call = |(at, (name, arguments)): (usize, &(String, String))| ToolUse {
            id: format!("call_{}_{at}", self.number),
            name: name.clone(),
            arguments: arguments.clone(),
        };
        let calls: Vec<ToolUse> = self.calls.iter().enumerate().map(call).collect();
        ChatAnswer {
            content: if calls.is_empty() { content.to_owned() } else { String::new() },
            finish: match (self.is_cut, calls.is_empty()) {
                (_, false) => "tool_calls",
                (true, true) => "length",
                (false, true) => "stop",
            },
            calls,
            logprobs: Value::Null,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
        }
    }

    fn response(&self, asked: &Asked, said: &ChatAnswer) -> Value {
        let call = |(at, call): (usize, &ToolUse)| {
            json!({"type": "function_call", "id": format!("fc_{}_{at}", self.number), "call_id": call.id,
                "name": call.name, "arguments": call.arguments, "status": "completed"})
        };
        let mut output: Vec<Value> = said.calls.iter().enumerate().map(call).collect();
        if output.is_empty() {
            let part = json!({"type": "output_text", "text": said.content, "annotations": []});
            output.push(json!({"type": "message", "id": format!("msg_{}", self.number), "role": "assistant",
                "status": "completed", "content": [part]}));
        }
        let (prompt, completion) = (said.prompt_tokens, said.completion_tokens);
        let cut = said.finish == "length";
        json!({"id": format!("resp_{}", self.number), "object": "response", "created_at": CREATED,
            "status": if cut { "incomplete" } else { "completed" },
            "incomplete_details": cut.then(|| json!({"reason": "max_output_tokens"})),
            "model": asked.call.model, "output": output, "parallel_tool_calls": true, "tool_choice": "auto",
            "tools": [],
            "usage": {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": completion, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + completion}})
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
