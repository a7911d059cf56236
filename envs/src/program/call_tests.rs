use clap::Parser;
use serde_json::json;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: Settings,
}

fn settings(words: &str) -> Settings {
    Line::parse_from(format!("envs {words}").split(' ')).settings
}

fn read(endpoint: Endpoint, body: &Value) -> Result<Asked> {
    Asked::read(endpoint, body, &settings("--roles solver"))
}

fn chat(entries: Value) -> Value {
    let mut body = json!({"model": "solver", "messages": [{"role": "user", "content": "6 + 7"}]});
    body.as_object_mut().expect("an object").extend(entries.as_object().cloned().expect("entries"));
    body
}

#[test]
fn equal_calls_have_equal_keys() {
    let key = |body: &Value| read(Endpoint::Chat, body).expect("a call").key;
    let plain = key(&chat(json!({})));
    for same in [
        json!({"stream": true, "stream_options": {"include_usage": true}}),
        json!({"user": "me", "metadata": {"run": 7}, "store": false}),
        json!({"tools": [], "stop": null}),
        json!({"messages": [{"content": "6 + 7", "role": "user"}]}),
    ] {
        assert_eq!(key(&chat(same.clone())), plain, "{same}");
    }
    for other in [json!({"temperature": 0.5}), json!({"messages": [{"role": "user", "content": "6 + 8"}]})] {
        assert_ne!(key(&chat(other.clone())), plain, "{other}");
    }
    let settings = settings(r"--roles solver --ignore \d\d:\d\d");
    let at = |time: &str| {
        let body = chat(json!({"messages": [{"role": "user", "content": format!("at {time}")}]}));
        Asked::read(Endpoint::Chat, &body, &settings).expect("a call")
    };
    assert_eq!(at("08:33").key, at("09:12").key);
    assert_eq!(at("08:33").call.turns[0].content, "at ");
}

#[test]
fn roles_are_told_apart_by_model_and_system_message() {
    let settings =
        settings(r"--role solver=gpt@^You\sare\sthe\ssolver --role checker=gpt@checker --roles judge");
    let role = |model: &str, system: &str| {
        let body = json!({"model": model, "messages": [{"role": "system", "content": system}]});
        Asked::read(Endpoint::Chat, &body, &settings).map(|asked| asked.role)
    };
    assert_eq!(role("gpt", "You are the solver").expect("a role"), "solver");
    assert_eq!(role("gpt", "A checker of sums").expect("a role"), "checker");
    assert_eq!(role("judge", "").expect("a role"), "judge");
    for (model, system, told) in [
        ("gpt", "Hi", "no role of the model gpt has a pattern that matches"),
        ("o3", "", "the roles' models are: "),
    ] {
        let error = role(model, system).expect_err(told);
        assert!(error.status == 404 && error.message.contains(told), "{error:?}");
    }
}

#[test]
fn responses_are_chat_in_other_words() {
    let body = json!({
        "model": "solver", "instructions": "Add.", "include": [], "tools": [{"type": "function", "name": "add", "parameters": {}, "strict": true}],
        "input": [
            {"role": "user", "content": "1 + 2"},
            {"type": "function_call", "call_id": "call_0_0", "name": "add", "arguments": "{}"},
            {"type": "function_call", "call_id": "call_0_1", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_0_0", "output": "3"},
            {"type": "function_call_output", "call_id": "call_0_1", "output": "3"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "3"}]}
        ]
    });
    let asked = read(Endpoint::Responses, &body).expect("a call");
    let turns = &asked.call.turns;
    let roles: Vec<(&str, usize)> = turns.iter().map(|turn| (&*turn.role, turn.calls.len())).collect();
    assert_eq!(
        roles,
        [("system", 0), ("user", 0), ("assistant", 2), ("tool", 0), ("tool", 0), ("assistant", 0)]
    );
    assert_eq!(asked.call.tools.as_ref().expect("tools")[0]["function"]["name"], "add");
    let text = Answer { text: "3".into(), number: 1, ..Answer::default() }.body(&asked);
    assert_eq!((&text["id"], &text["output"][0]["content"][0]["text"]), (&json!("resp_1"), &json!("3")));
    let calls = Answer { calls: vec![("add".into(), "{}".into())], ..Answer::default() }.body(&asked);
    assert_eq!(
        (&calls["output"][0]["type"], &calls["output"][0]["call_id"]),
        (&json!("function_call"), &json!("call_0_0"))
    );
    let cut = Answer { is_cut: true, ..Answer::default() }.body(&asked);
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    for (entry, value) in [
        ("previous_response_id", json!("resp_1")),
        ("stream", json!(true)),
        ("tools", json!([{"type": "web_search"}])),
        ("input", json!([{"type": "image_generation_call"}])),
    ] {
        let mut body = body.clone();
        body[entry] = value;
        let error = read(Endpoint::Responses, &body).expect_err(entry);
        assert!(error.status == 400 && error.message.starts_with(entry), "{error:?}");
    }
}

#[test]
fn answers_end_at_stop_texts_and_say_why() {
    let asked =
        read(Endpoint::Chat, &chat(json!({"stop": ["\n", "END"], "temperature": 0.2}))).expect("a call");
    assert_eq!(asked.overruled(), ["temperature"]);
    let answer =
        Answer { text: "13END\n".into(), prompt_tokens: 5, completion_tokens: 2, ..Answer::default() };
    let body = answer.body(&asked);
    assert_eq!(
        (&body["choices"][0]["message"]["content"], &body["usage"]["total_tokens"]),
        (&json!("13"), &json!(7))
    );
    let finish = |answer: Answer| answer.body(&asked)["choices"][0]["finish_reason"].clone();
    assert_eq!(finish(Answer { is_cut: true, ..Answer::default() }), "length");
    assert_eq!(
        finish(Answer { is_cut: true, calls: vec![("f".into(), "{}".into())], ..Answer::default() }),
        "tool_calls"
    );
    assert_eq!(answer.body(&asked), answer.body(&asked), "an answer that is replayed is the same");
    assert_eq!(number_of("call_12_0"), Some(12));
    assert_eq!((number_of("call_x_0"), number_of("abc")), (None, None));
}
