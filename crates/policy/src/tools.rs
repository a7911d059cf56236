//! Calls of tools in the text of a message, and conversations with tools as chat templates and servers expect them.
//!
//! A model writes a call as its family was trained to:
//!
//! | family | text |
//! |---|---|
//! | Hermes, Qwen | `<tool_call>{"name": …, "arguments": {…}}</tool_call>` |
//! | Mistral | `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]` |
//! | Mistral, later | `[TOOL_CALLS]name[ARGS]{…}`, also with `[CALL_ID]id` |
//! | Llama 3 | `<\|python_tag\|>{"name": …, "parameters": {…}}`, several with `;` between them |
//! | Llama 3.2 | `[add(a=1, b=2), now()]`, also after `<\|python_tag\|>`, and there a call without brackets |
//! | Phi-4-mini, Granite | `<\|tool_call\|>[{"name": …, "arguments": {…}}]<\|/tool_call\|>`, `functools[{…}]` |
//! | Nemotron | `<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>` |
//! | DeepSeek R1 and its distillations | `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, then the arguments as fenced JSON |
//! | Qwen3-Coder | `<function=name>`, for each argument `<parameter=key>value</parameter>`, then `</function>` |
//!
//! One parser reads them all: a mark, then calls in any of these notations. Text may stand around marked calls. A call ends
//! where its own syntax ends, so a mark inside an argument is a part of that argument. A text that is nothing but calls needs
//! no marks, and may be in a Markdown fence, as Qwen's coders write it.

mod python;

use std::borrow::Cow;

use record::sample::Message;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Marks that open calls. [`reading`] may begin at any of them.
const OPENING: [&str; 9] = [
    "<tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|tool_call|>",
    "<TOOLCALL>",
    "functools[",
    "<function=",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
];
/// Marks that end calls.
const CLOSING: [&str; 5] =
    ["</tool_call>", "<|/tool_call|>", "</TOOLCALL>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"];
/// Marks between the name of a call and its arguments.
const ID: &str = "[CALL_ID]";
const ARGUMENTS: [&str; 3] = ["[ARGS]", "<｜tool▁sep｜>", "\n```json"];
/// Marks of formats that are not read: Kimi, InternLM, Gemma, FunctionGemma, MiniMax, Command R, gpt-oss.
const OTHERS: [&str; 7] = [
    "<|tool_call_begin|>",
    "<|action_start|>",
    "```tool_code",
    "<start_function_call>",
    "<invoke name=",
    "<|START_ACTION|>",
    "<|channel|>commentary to=",
];

/// Returns true for a token that decoding keeps, although it may be a special token: calls cannot be found without it.
pub(crate) fn is_mark(token: &str) -> bool {
    token == ID || [&OPENING[..], &CLOSING, &ARGUMENTS, &OTHERS].iter().any(|marks| marks.contains(&token))
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments by name: a JSON object as text on one line, because integers of any size keep their digits in it.
    pub arguments: String,
}

impl ToolCall {
    /// `name` and `arguments`, as an environment gets it.
    pub fn to_json(&self) -> String {
        format!("{{\"name\":{},\"arguments\":{}}}", json!(self.name), self.arguments)
    }
}

/// What a text says beside its calls, and the calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The text before the first call.
    pub said: String,
    /// The calls in order, without malformed ones.
    pub calls: Vec<ToolCall>,
    /// True if the text has marks of calls, and none could be read.
    pub is_unread: bool,
}

/// Reads a text of a model that was offered `tools`, whose schemas say which of Qwen3-Coder's arguments are texts.
pub fn reading(text: &str, tools: Option<&Value>) -> Reading {
    let trimmed = text.trim();
    let fenced = trimmed.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    let whole = fenced.map_or(trimmed, |rest| rest.strip_prefix("json").unwrap_or(rest));
    let (calls, rest) = read_calls(whole, false, tools);
    if !calls.is_empty() && skip(rest).is_empty() {
        return Reading { calls, ..Reading::default() };
    }
    let mut found = Reading::default();
    let mut rest = text;
    while let Some(at) = OPENING.iter().filter_map(|mark| rest.find(mark)).min() {
        if found.calls.is_empty() {
            found.said.push_str(&rest[..at]);
        }
        let (calls, after) = read_calls(&rest[at..], true, tools);
        let mark = OPENING.iter().find(|mark| rest[at..].starts_with(**mark)).map_or(0, |mark| mark.len());
        let inside = &rest[at + mark..];
        let until = OPENING.iter().filter_map(|mark| inside.find(mark)).min().unwrap_or(inside.len());
        rest = match calls.is_empty() {
            false => after,
            // The mark stands in prose.
            true if !inside[..until].contains(['{', '[']) => inside,
            // A broken call ends at its mark, and a call that it quotes is part of it.
            true => CLOSING
                .iter()
                .filter_map(|mark| Some(inside.split_once(mark)?.1))
                .max_by_key(|rest| rest.len())
                .unwrap_or(""),
        };
        found.is_unread = true;
        found.calls.extend(calls);
    }
    found.is_unread |= OTHERS.iter().any(|mark| text.contains(mark));
    found.is_unread &= found.calls.is_empty();
    if found.calls.is_empty() {
        found.said = text.to_owned();
    }
    found
}

/// The text after blanks, separators and marks between calls.
fn skip(text: &str) -> &str {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c == ';' || c == ',' || c.is_whitespace());
        let marks = OPENING.iter().filter(|mark| **mark != "<function=").chain(&CLOSING);
        match marks.filter_map(|mark| rest.strip_prefix(mark.trim_end_matches('['))).next() {
            Some(after) => rest = after,
            None => return rest,
        }
    }
}

/// Calls one after another, and the text after the last of them. `marked`: a mark said that calls follow.
fn read_calls<'a>(text: &'a str, marked: bool, tools: Option<&Value>) -> (Vec<ToolCall>, &'a str) {
    let (mut all, mut rest) = (Vec::new(), text);
    loop {
        let next = skip(rest);
        let found = as_json(next, marked)
            .or_else(|| python::calls(next, marked))
            .or_else(|| named(next))
            .or_else(|| tagged(next, tools));
        let Some((found, after)) = found else { return (all, rest) };
        all.extend(found);
        rest = after;
    }
}

/// Calls as a notation has them, and the text after them.
type Found<'a> = Option<(Vec<ToolCall>, &'a str)>;

/// The first JSON value of a text, as text.
fn value(text: &str) -> Option<(&RawValue, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

/// A call as a JSON object, or a list of them.
fn as_json(text: &str, marked: bool) -> Found<'_> {
    let (value, rest) = value(text)?;
    let calls = match value.get().starts_with('[') {
        false => vec![call(value, marked)?],
        true => {
            let all: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
            all.into_iter().map(|one| call(one, marked)).collect::<Option<Vec<_>>>()?
        }
    };
    (!calls.is_empty()).then_some((calls, rest))
}

/// The call that an object is: `name`, and `arguments` or `parameters`, which may be JSON in a text. A marked call may have
/// none; without a mark such an object is an answer.
fn call(value: &RawValue, marked: bool) -> Option<ToolCall> {
    #[derive(Deserialize)]
    struct RawCall<'a> {
        name: String,
        #[serde(borrow)]
        arguments: Option<&'a RawValue>,
        #[serde(borrow)]
        parameters: Option<&'a RawValue>,
    }
    let RawCall { name, arguments, parameters } = serde_json::from_str(value.get()).ok()?;
    let arguments = match arguments.or(parameters).map(RawValue::get) {
        None if marked => Cow::from("{}"),
        None => return None,
        Some(text) if text.starts_with('"') => Cow::from(serde_json::from_str::<String>(text).ok()?),
        Some(text) => text.into(),
    };
    Some(ToolCall { name, arguments: object(if arguments.trim().is_empty() { "{}" } else { &arguments })? })
}

/// The text of a JSON object, checked and without blanks between its tokens.
fn object(text: &str) -> Option<String> {
    serde_json::from_str::<Map<String, Value>>(text).ok()?;
    Some(record::text::compact_json(text))
}

/// A name with its arguments as JSON after it. DeepSeek R1 writes `function` and a separator before the name.
fn named(text: &str) -> Found<'_> {
    let text = text.strip_prefix("function<｜tool▁sep｜>").unwrap_or(text);
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let (name, mut rest) = text.split_at(text.find(|c: char| !is_part(c)).filter(|end| *end > 0)?);
    if let Some(id) = rest.strip_prefix(ID) {
        rest = id.trim_start_matches(is_part);
    }
    if let Some(after) = ARGUMENTS.iter().find_map(|mark| rest.strip_prefix(mark)) {
        rest = after.trim_start();
    }
    let (arguments, rest) = value(rest).filter(|_| rest.starts_with('{'))?;
    let rest = rest.trim_start().strip_prefix("```").unwrap_or(rest);
    Some((vec![ToolCall { name: name.to_owned(), arguments: object(arguments.get())? }], rest))
}

/// Qwen3-Coder's call: values are plain text, and the schema of the tool has their types.
fn tagged<'a>(text: &'a str, tools: Option<&Value>) -> Found<'a> {
    let (name, mut rest) = text.strip_prefix("<function=")?.split_once('>')?;
    let mut arguments = Vec::new();
    while let Some(parameter) = rest.trim_start().strip_prefix("<parameter=") {
        let (key, value) = parameter.split_once('>')?;
        const END: &str = "</parameter>";
        // The same mark inside the value is a part of it.
        let is_end = |end: &usize| {
            let after = value[end + END.len()..].trim_start();
            after.starts_with("<parameter=") || after.starts_with("</function>")
        };
        let end = value.match_indices(END).map(|(at, _)| at).find(is_end)?;
        rest = &value[end + END.len()..];
        let value = value[..end].strip_prefix('\n').unwrap_or(&value[..end]);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let is_text = schema(tools, name, key).is_none_or(|schema| schema["type"] == "string");
        let literal = python::literal(value).filter(|_| !is_text);
        arguments.push(format!("{}:{}", json!(key), literal.unwrap_or_else(|| json!(value).to_string())));
    }
    let rest = rest.trim_start().strip_prefix("</function>")?;
    let arguments = format!("{{{}}}", arguments.join(","));
    Some((vec![ToolCall { name: name.to_owned(), arguments: object(&arguments)? }], rest))
}

/// The schema of an argument of a tool.
fn schema<'a>(tools: Option<&'a Value>, name: &str, key: &str) -> Option<&'a Value> {
    let mut functions = tools?.as_array()?.iter().map(|tool| tool.get("function").unwrap_or(tool));
    functions.find(|function| function["name"] == name)?.get("parameters")?.get("properties")?.get(key)
}

/// A conversation with tools in the structure of OpenAI's API: an assistant's message whose calls the next message
/// answers has `tool_calls` in place of their text, with ids of nine letters and digits, and the role `tool` names the
/// call that it answers, in order. `as_text`: arguments are JSON in a text, as servers and some chat templates want them;
/// other templates want an object.
pub fn structured(messages: &[Message], tools: Option<&Value>, as_text: bool) -> Vec<Value> {
    let mut ids = (0..).map(|number| format!("call{number:05}"));
    // Calls that no message has answered yet.
    let mut open = std::collections::VecDeque::new();
    let mut all = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let mut value = json!({"role": message.role, "content": message.content});
        let is_answered = messages.get(index + 1).is_some_and(|next| next.role == "tool");
        if message.role == "assistant" && is_answered {
            open.clear();
            let Reading { said, calls, .. } = reading(&message.content, tools);
            let calls: Vec<Value> = calls
                .into_iter()
                .map(|ToolCall { name, arguments }| {
                    let id = ids.next().unwrap_or_default();
                    open.push_back((id.clone(), name.clone()));
                    let arguments = match as_text {
                        true => Value::from(arguments),
                        false => serde_json::from_str(&arguments).unwrap_or_default(),
                    };
                    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
                })
                .collect();
            if !calls.is_empty() {
                value["content"] = said.trim().into();
                value["tool_calls"] = calls.into();
            }
        } else if message.role == "tool" {
            let (id, name) = match open.pop_front() {
                Some((id, name)) => (id, Some(name)),
                None => (ids.next().unwrap_or_default(), None),
            };
            value["tool_call_id"] = id.into();
            if let Some(name) = name {
                value["name"] = name.into();
            }
        }
        all.push(value);
    }
    all
}

#[cfg(test)]
mod tests;
