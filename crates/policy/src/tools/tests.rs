use super::*;

/// Texts and the calls in them, as each family writes them. The references are vLLM's parsers, Python's `ast.literal_eval`, and
/// `raw_decode` of Python's `json`.
#[test]
fn calls_are_read_as_each_family_writes_them() {
    let parameters = json!({"properties": {"text": {"type": "string"}, "a": {"type": "integer"}, "b": {}}});
    let tools = ["add", "write"].map(|name| json!({"function": {"name": name, "parameters": parameters}}));
    for line in include_str!("calls.jsonl").lines() {
        #[derive(Deserialize)]
        struct Row<'a> {
            text: String,
            #[serde(borrow)]
            calls: Vec<(String, &'a RawValue)>,
        }
        let Row { text, calls } = serde_json::from_str(line).expect("a row");
        // Floating-point numbers may be written in several ways; integers are compared digit by digit.
        let same = |text: &str| match text.contains("123456789012345678901234567890")
            || text.contains("-9223372036854775809")
        {
            true => json!(record::text::compact_json(text)),
            false => serde_json::from_str(text).expect("JSON"),
        };
        let expected: Vec<(String, Value)> =
            calls.into_iter().map(|(name, raw)| (name, same(raw.get()))).collect();
        let found = reading(&text, Some(&json!(tools))).calls;
        let found: Vec<(String, Value)> =
            found.into_iter().map(|call| (call.name, same(&call.arguments))).collect();
        assert_eq!(found, expected, "{text}");
    }
    let deep = "[".repeat(100_000);
    for text in [
        format!("<tool_call>{deep}"),
        format!("[add(a={deep})]"),
        format!("[TOOL_CALLS]add[ARGS]{{\"a\":{deep}}}"),
        format!("<function=add><parameter=b>{deep}</parameter></function>"),
        deep,
    ] {
        assert!(reading(&text, None).calls.iter().all(|call| call.arguments.starts_with("{\"b\":\"")));
    }
}

#[test]
fn the_text_before_calls_is_said_and_formats_that_are_not_read_are_noticed() {
    for (text, said, is_unread) in [
        ("I look.\n[TOOL_CALLS]now[ARGS]{}", "I look.\n", false),
        ("I look.<tool_call>{\"name\": \"now\"}</tool_call> Then", "I look.", false),
        ("now{}", "", false),
        ("an answer", "an answer", false),
        ("<tool_call>\nnow\n<arg_key>a</arg_key>", "<tool_call>\nnow\n<arg_key>a</arg_key>", true),
        ("<|tool_call_begin|>functions.now:0", "<|tool_call_begin|>functions.now:0", true),
        ("```tool_code\nnow()\n```", "```tool_code\nnow()\n```", true),
    ] {
        let reading = reading(text, None);
        assert_eq!((&*reading.said, reading.is_unread), (said, is_unread), "{text}");
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
    use record::philox::{Draws, Part, Stream};
    let mut draws = Draws::new(Stream::named(7, &[Part::Text("calls")]));
    let mut draw = |bound: u32| draws.below(bound);
    type Call = (&'static str, Map<String, Value>);
    for _ in 0..2000 {
        let names = ["add", "now", "get_weather", "math.add"];
        let mut call = || {
            let name = names[draw(4) as usize];
            let arguments = (0..draw(4)).map(|number| (format!("x{number}"), any(&mut draw, 0)));
            (name, Map::from_iter(arguments))
        };
        let calls: Vec<Call> = (0..3).map(|_| call()).collect();
        let each = |write: &dyn Fn(&Call) -> String| calls.iter().map(write).collect::<Vec<String>>();
        let object =
            |key: &str, (name, arguments): &(&str, _)| json!({"name": name, key: arguments}).to_string();
        let as_python = |(name, arguments): &Call| {
            let named = arguments.iter().map(|(name, value)| format!("{name}={}", python(value)));
            format!("{name}({})", named.collect::<Vec<String>>().join(", "))
        };
        for text in [
            each(&|call| format!("<tool_call>\n{}\n</tool_call>", object("arguments", call))).join("\n"),
            format!("[TOOL_CALLS] [{}]", each(&|call| object("arguments", call)).join(", ")),
            each(&|(name, arguments)| format!("[TOOL_CALLS]{name}[ARGS]{}", json!(arguments))).concat(),
            format!("<|python_tag|>{}", each(&|call| object("parameters", call)).join("; ")),
            format!("<|python_tag|>[{}]", each(&as_python).join(", ")),
            format!("[{}]", each(&as_python).join(", ")),
        ] {
            let found = reading(&text, None).calls;
            let found =
                found.iter().map(|call| (&*call.name, serde_json::from_str(&call.arguments).expect("JSON")));
            assert_eq!(found.collect::<Vec<_>>(), calls, "{text}");
        }
    }
}

#[test]
fn a_conversation_has_the_structure_that_templates_expect() {
    let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
    let call = |name: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"a\": 1}}}}\n</tool_call>")
    };
    let messages = [
        message("user", "1?"),
        message("assistant", &format!("I add.\n{}", call("add"))),
        message("tool", "2"),
        message("assistant", &format!("{}{}", call("one"), call("two"))),
        message("tool", "3"),
        message("assistant", &call("now")),
        message("tool", "4"),
        message("assistant", &call("add")),
    ];
    let object = structured(&messages, None, false);
    assert_eq!(object[0], json!({"role": "user", "content": "1?"}));
    assert_eq!(object[1]["content"], "I add.");
    assert_eq!(object[1]["tool_calls"][0]["function"], json!({"name": "add", "arguments": {"a": 1}}));
    assert_eq!(object[1]["tool_calls"][0]["id"], "call00000");
    let answer = |id: &str, name: &str, content: &str| json!({"role": "tool", "content": content, "tool_call_id": id, "name": name});
    assert_eq!(object[2], answer("call00000", "add", "2"));
    assert_eq!(object[4], answer("call00001", "one", "3"));
    assert_eq!(object[6], answer("call00003", "now", "4"), "not of the call that was never answered");
    assert_eq!(object[7]["content"], call("add"), "no message answers it");
    let arguments = &structured(&messages, None, true)[1]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments, "{\"a\":1}");
}
