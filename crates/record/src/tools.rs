//! Calls of tools in the text of a message, and conversations with tools as chat templates and servers expect them.
//!
//! A model writes a call as its family was trained to:
//!
//! | family | text |
//! |---|---|
//! | Hermes, Qwen | `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them, with text around |
//! | Mistral | `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]` |
//! | Mistral, later | `[TOOL_CALLS]name[ARGS]{…}`, any number of them |
//! | Llama 3 | `<\|python_tag\|>{"name": …, "parameters": {…}}`, several with `;` between them |
//! | Llama 3.2 | `[add(a=1, b=2), now()]`, also after `<\|python_tag\|>`, and there a call without brackets |
//!
//! The marks of the last four are special tokens, which decoded text lacks, so the rest alone counts if it is the whole
//! text, also inside a Markdown fence, as Qwen's coders write it. Conversations hold what the model wrote, as text. Left
//! out: Mistral's `[CALL_ID]`, which only one version of its tokenizer writes.

mod python;

use serde_json::{Map, Value, json};

use crate::sample::Message;

#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments by name.
    pub arguments: Map<String, Value>,
}

/// The calls in a text, in order; malformed ones are left out.
pub fn parse(text: &str) -> Vec<ToolCall> {
    const OPEN: &str = "<tool_call>";
    if text.contains(OPEN) {
        let inside = |part: &str| call(&serde_json::from_str(part.split("</tool_call>").next()?).ok()?);
        return text.split(OPEN).skip(1).filter_map(inside).collect();
    }
    let text = text.trim_start();
    let marked = ["[TOOL_CALLS]", "<|python_tag|>"].iter().find_map(|mark| text.strip_prefix(mark));
    let mut rest = marked.unwrap_or(text).trim();
    if let Some(fenced) = rest.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) {
        rest = fenced.strip_prefix("json").unwrap_or(fenced).trim();
    }
    let is_list = rest.starts_with('[') || text.starts_with("<|python_tag|>");
    if let Some(calls) = is_list.then(|| python::calls(rest)).flatten().or_else(|| named(text)) {
        return calls;
    }
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let Some(Ok(value)) = values.next() else { return Vec::new() };
        let found = match &value {
            Value::Array(all) => all.iter().map(call).collect(),
            one => call(one).map(|call| vec![call]),
        };
        // The text is JSON that is no call: an answer.
        let Some(found) = found else { return Vec::new() };
        calls.extend(found);
        rest = rest[values.byte_offset()..].trim_start_matches(|c: char| c == ';' || c.is_whitespace());
    }
    calls
}

/// The calls of a text that is nothing but names, each with its arguments as JSON after it.
fn named(text: &str) -> Option<Vec<ToolCall>> {
    let mut rest = text.trim();
    let mut calls = Vec::new();
    while !rest.is_empty() {
        rest = rest.strip_prefix("[TOOL_CALLS]").unwrap_or(rest).trim_start();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let (name, after) = rest.split_at(rest.find(|c: char| !is_part(c))?);
        let after = after.strip_prefix("[ARGS]").unwrap_or(after);
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Map<String, Value>>();
        let arguments = values.next().filter(|_| !name.is_empty() && after.starts_with('{'))?.ok()?;
        calls.push(ToolCall { name: name.to_owned(), arguments });
        rest = after[values.byte_offset()..].trim_start();
    }
    Some(calls).filter(|calls| !calls.is_empty())
}

/// The call that an object is: `name`, and `arguments` or `parameters`, which may be JSON in a text.
fn call(value: &Value) -> Option<ToolCall> {
    let name = value.get("name")?.as_str()?.to_owned();
    let arguments = match value.get("arguments").or_else(|| value.get("parameters"))? {
        Value::Object(arguments) => arguments.clone(),
        Value::String(text) => serde_json::from_str(text).ok()?,
        _ => return None,
    };
    Some(ToolCall { name, arguments })
}

impl ToolCall {
    /// As Hermes and Qwen write it.
    pub fn text(&self) -> String {
        format!("<tool_call>\n{}\n</tool_call>", json!(self.arguments_and_name()))
    }

    /// `name` and `arguments`, as an environment gets it.
    pub fn to_json(&self) -> Value {
        json!(self.arguments_and_name())
    }

    fn arguments_and_name(&self) -> Map<String, Value> {
        let (name, arguments) = (self.name.clone().into(), self.arguments.clone().into());
        Map::from_iter([("name".to_owned(), name), ("arguments".to_owned(), arguments)])
    }
}

/// A conversation with tools in the structure of OpenAI's API: an assistant's message whose calls the next message
/// answers has `tool_calls` in place of their text, with ids of nine letters and digits, and the role `tool` names the
/// call that it answers, in order. `as_text`: arguments are JSON in a text, as servers want them; chat templates want
/// an object.
pub fn structured(messages: &[Message], as_text: bool) -> Vec<Value> {
    let mut ids = (0..).map(|number| format!("call{number:05}"));
    // Calls that no message has answered yet.
    let mut open = std::collections::VecDeque::new();
    let mut all = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let mut value = json!({"role": message.role, "content": message.content});
        let is_answered = messages.get(index + 1).is_some_and(|next| next.role == "tool");
        if message.role == "assistant" && is_answered {
            open.clear();
            let calls = parse(&message.content);
            let calls: Vec<Value> = calls
                .into_iter()
                .map(|ToolCall { name, arguments }| {
                    let id = ids.next().unwrap_or_default();
                    open.push_back((id.clone(), name.clone()));
                    let arguments = match as_text {
                        true => Value::from(Value::Object(arguments).to_string()),
                        false => Value::Object(arguments),
                    };
                    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
                })
                .collect();
            if !calls.is_empty() {
                let said = message.content.split("<tool_call>").next().unwrap_or_default().trim();
                value["content"] =
                    if message.content.contains("<tool_call>") { said.into() } else { "".into() };
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

/// Checks tools as OpenAI's API and transformers list them.
pub fn check(tools: &Value) -> std::result::Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(String, Value)> {
        parse(text).into_iter().map(|call| (call.name, call.arguments.into())).collect()
    }

    #[test]
    fn calls_are_read_as_each_family_writes_them() {
        let add = || vec![("add".to_owned(), json!({"a": 1, "b": 2}))];
        let two = || vec![("add".to_owned(), json!({"a": 1, "b": 2})), ("now".to_owned(), json!({}))];
        for (text, expected) in [
            ("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n</tool_call>", add()),
            ("I add.\n<tool_call>{\"arguments\":{\"a\":1,\"b\":2},\"name\":\"add\"}</tool_call>", add()),
            ("<tool_call>{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1,\\\"b\\\":2}\"}", add()),
            (
                "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1,\"b\":2}}</tool_call> and \
                 <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
                two(),
            ),
            (
                "<tool_call>{</tool_call><tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1,\"b\":2}}</tool_call>",
                add(),
            ),
            ("[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}]", add()),
            (
                " [{\"name\":\"add\",\"arguments\":{\"a\":1,\"b\":2}},{\"name\":\"now\",\"arguments\":{}}]",
                two(),
            ),
            ("```json\n{\n  \"name\": \"add\",\n  \"arguments\": {\"a\": 1, \"b\": 2}\n}\n```", add()),
            ("<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": 2}}", add()),
            (
                "{\"name\":\"add\",\"parameters\":{\"a\":1,\"b\":2}}; {\"name\":\"now\",\"parameters\":{}}",
                two(),
            ),
            ("[add(a=1, b=2), now()]", two()),
            ("<|python_tag|>[ add( a = 1,\n  b = 2, ), now( ) ]\n", two()),
            ("<|python_tag|>add(a=1, b=2)", add()),
            ("```\n[add(a=1, b=2)]\n```", add()),
            ("[TOOL_CALLS]add[ARGS]{\"a\": 1, \"b\": 2}[TOOL_CALLS]now[ARGS]{}", two()),
            ("add{\"a\": 1, \"b\": 2}now{}", two()),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        for text in [
            "",
            "3",
            "[1, 2]",
            "{\"answer\": 3}",
            "{\"name\": \"add\"}",
            "{\"name\": 1, \"arguments\": {}}",
            "add(1, 2)",
            "<tool_call>",
            "<tool_call></tool_call>",
            "{\"name\":\"add\",\"arguments\":{}} is a call",
            "```",
            "``````",
            "```json\n[1]\n```",
            "[",
            "\u{0}",
            "[]",
            "[add]",
            "[add(1, 2)]",
            "[add(a=1), 2]",
            "[add(a=1), add(b=f(2))]",
            "[add(a=1, a=2)]",
            "[add(a=1)] is a call",
            "[add(a=1)",
            "[add(a='1)]",
            "[add(a='\\ud800')]",
            "[add(a=01)]",
            "[1add(a=1)]",
            "[add(a.b=1)]",
            "<|python_tag|>print(1)",
            "[TOOL_CALLS]add[ARGS]",
            "[TOOL_CALLS]add[ARGS]{\"a\": 1",
            "[TOOL_CALLS][ARGS]{}",
            "add [ARGS]{}",
            "add{\"a\": 1} and more",
            "the set {1, 2}",
        ] {
            assert_eq!(shown(text), [], "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(&deep).is_empty() && parse(&format!("<tool_call>{deep}")).is_empty());
        for deep in [format!("[add(a={deep})]"), format!("[TOOL_CALLS]add[ARGS]{{\"a\":{deep}}}")] {
            assert!(parse(&deep).is_empty());
        }
    }

    /// A value as Python writes it.
    fn python(value: &Value) -> String {
        let list = |items: Vec<String>| items.join(", ");
        match value {
            Value::Null => "None".to_owned(),
            Value::Bool(true) => "True".to_owned(),
            Value::Bool(false) => "False".to_owned(),
            Value::Number(number) => number.to_string(),
            Value::String(text) => {
                let escaped = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
                format!("'{escaped}'")
            }
            Value::Array(items) => format!("[{}]", list(items.iter().map(python).collect())),
            Value::Object(entries) => {
                let entry = |(key, value): (&String, &Value)| {
                    format!("{}: {}", python(&key.clone().into()), python(value))
                };
                format!("{{{}}}", list(entries.iter().map(entry).collect()))
            }
        }
    }

    /// A value of any kind, by draws below a bound.
    fn any(draw: &mut impl FnMut(u32) -> u32, depth: u32) -> Value {
        let text = |draw: &mut dyn FnMut(u32) -> u32| -> String {
            const LETTERS: [&str; 12] = ["a", " ", "'", "\"", "\\", "\n", "é", "[", "}", ",", "\\n", "</s>"];
            (0..draw(6)).map(|_| LETTERS[draw(12) as usize]).collect()
        };
        match draw(if depth < 3 { 7 } else { 5 }) {
            0 => Value::Null,
            1 => (draw(2) == 0).into(),
            2 => (i64::from(draw(2000)) - 1000).into(),
            3 => (f64::from(draw(2000)) / 8.0 - 100.0).into(),
            4 => text(draw).into(),
            5 => (0..draw(4)).map(|_| any(draw, depth + 1)).collect(),
            _ => Value::Object((0..draw(4)).map(|_| (text(draw), any(draw, depth + 1))).collect()),
        }
    }

    #[test]
    fn tool_calls_of_every_family_are_read_again() {
        let mut draws =
            crate::philox::Draws::new(crate::philox::Stream::named(7, &[crate::philox::Part::Text("calls")]));
        let mut draw = |bound: u32| draws.below(bound);
        for _ in 0..2000 {
            let names = ["add", "now", "get_weather", "math.add"];
            let call = |draw: &mut dyn FnMut(u32) -> u32| {
                let mut draw = draw;
                let name = names[draw(4) as usize].to_owned();
                let arguments =
                    (0..draw(4)).map(|number| (format!("x{number}"), any(&mut draw, 0))).collect();
                ToolCall { name, arguments }
            };
            let calls: Vec<ToolCall> = (0..1 + draw(3)).map(|_| call(&mut draw)).collect();
            let each = |write: &dyn Fn(&ToolCall) -> String| calls.iter().map(write).collect::<Vec<String>>();
            let object =
                |key: &str, call: &ToolCall| json!({"name": call.name, key: call.arguments}).to_string();
            let as_python = |call: &ToolCall| {
                let named = call.arguments.iter().map(|(name, value)| format!("{name}={}", python(value)));
                format!("{}({})", call.name, named.collect::<Vec<String>>().join(", "))
            };
            let arguments = |call: &ToolCall| Value::from(call.arguments.clone()).to_string();
            for text in [
                each(&ToolCall::text).join("\n"),
                format!("[TOOL_CALLS] [{}]", each(&|call| object("arguments", call)).join(", ")),
                each(&|call| format!("[TOOL_CALLS]{}[ARGS]{}", call.name, arguments(call))).concat(),
                format!("<|python_tag|>{}", each(&|call| object("parameters", call)).join("; ")),
                format!("<|python_tag|>[{}]", each(&as_python).join(", ")),
                format!("[{}]", each(&as_python).join(", ")),
            ] {
                // Hermes' marks in a value would end its call.
                assert_eq!(parse(&text), calls, "{text}");
            }
        }
    }

    #[test]
    fn a_conversation_has_the_structure_that_templates_expect() {
        let message =
            |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
        let call =
            ToolCall { name: "add".to_owned(), arguments: Map::from_iter([("a".to_owned(), json!(1))]) };
        assert_eq!(parse(&call.text()), std::slice::from_ref(&call));
        let messages = [
            message("user", "1?"),
            message("assistant", &format!("I add.\n{}", call.text())),
            message("tool", "2"),
            message("assistant", &call.text()),
        ];
        let object = structured(&messages, false);
        assert_eq!(object[0], json!({"role": "user", "content": "1?"}));
        assert_eq!(object[1]["content"], "I add.");
        assert_eq!(object[1]["tool_calls"][0]["function"], json!({"name": "add", "arguments": {"a": 1}}));
        assert_eq!(object[1]["tool_calls"][0]["id"], "call00000");
        assert_eq!(
            object[2],
            json!({"role": "tool", "content": "2", "tool_call_id": "call00000", "name": "add"})
        );
        assert_eq!(object[3]["content"], call.text(), "no message answers it");
        assert_eq!(structured(&messages, true)[1]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
    }

    #[test]
    fn tools_have_names() {
        let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
        assert_eq!(check(&json!([tool])), Ok(()));
        assert_eq!(check(&json!([{"name": "add"}])), Ok(()));
        for wrong in [
            json!([]),
            json!({}),
            json!([{"type": "function"}]),
            json!([{"function": {"name": ""}}]),
            json!(["add"]),
        ] {
            assert!(check(&wrong).is_err(), "{wrong}");
        }
    }
}
