//! Chat templates and byte-level tokenizers of the kinds that Qwen3, Qwen2.5 and Llama 3 have, as `transformers` and
//! its tokenizers treat them (tests/golden/make_text_goldens.py).

use std::fs;
use std::path::PathBuf;

use policy::tokenizer::{Conversation, Tokenizer};
use record::sample::Message;
use serde_json::{Value, json};

fn golden(name: &str) -> PathBuf {
    troupe_tests::golden("text").join(name)
}

fn cases(name: &str) -> Vec<Value> {
    serde_json::from_str(&fs::read_to_string(golden(name)).unwrap()).unwrap()
}

/// A directory with a golden tokenizer.
fn directory(tokenizer: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::copy(golden(&format!("{tokenizer}.tokenizer.json")), root.join("tokenizer.json")).unwrap();
    let side = json!({ "eos_token": "<|end|>", "bos_token": { "content": "<|user|>" } });
    fs::write(root.join("tokenizer_config.json"), side.to_string()).unwrap();
    directory
}

#[test]
fn byte_level_ids_are_those_of_transformers() {
    for name in ["digits-one", "digits-three"] {
        let tokenizer = Tokenizer::load(directory(name).path()).unwrap();
        let cases = cases(&format!("{name}.ids.json"));
        assert!(cases.len() > 20);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(
                tokenizer.decode(&ids).unwrap(),
                case["decoded"].as_str().unwrap(),
                "{name}: {text:?}"
            );
        }
    }
}

#[test]
fn chats_are_rendered_as_by_transformers() {
    let (mut rendered, mut refused) = (0, 0);
    for case in cases("chats.json") {
        let directory = directory("digits-three");
        let template = format!("{}.jinja", case["template"].as_str().unwrap());
        fs::copy(golden(&template), directory.path().join("chat_template.jinja")).unwrap();
        let arguments = directory.path().join("chat_template_kwargs.json");
        fs::write(arguments, case["arguments"].to_string()).unwrap();
        let tokenizer = Tokenizer::load(directory.path()).unwrap();
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        match (tokenizer.render(&messages), case["text"].as_str()) {
            (Ok(text), Some(expected)) => {
                assert_eq!(text, expected, "{case}");
                rendered += 1;
            }
            (Err(failure), None) => {
                let cause = case["refused"].as_str().unwrap();
                assert!(failure.message.ends_with(cause), "{} instead of {cause}", failure.message);
                refused += 1;
            }
            (found, expected) => panic!("{found:?} instead of {expected:?}: {case}"),
        }
    }
    assert!(rendered > 25 && refused > 0, "{rendered} {refused}");
}

#[test]
fn variables_of_the_template_are_checked() {
    let directory = directory("digits-one");
    fs::copy(golden("thinking.jinja"), directory.path().join("chat_template.jinja")).unwrap();
    for (text, cause) in [
        ("[]", "not a JSON object"),
        ("{\"messages\": 1}", "messages is not for a policy to set"),
        ("{", "not JSON"),
    ] {
        fs::write(directory.path().join("chat_template_kwargs.json"), text).unwrap();
        let failure = Tokenizer::load(directory.path()).unwrap_err();
        assert_eq!(failure.code, 65);
        assert!(failure.message.contains("chat_template_kwargs.json: "), "{}", failure.message);
        assert!(failure.message.contains(cause), "{} instead of {cause}", failure.message);
    }
}

/// What Oniguruma, with which `tokenizers` reads patterns in Python, cuts a text into.
#[test]
fn patterns_are_read_as_by_oniguruma() {
    let cases: [(&str, &str, &[&str]); 7] = [
        (r"\p{N}{1,3}+|\P{N}+", "a 12345 b1", &["a ", "12345", " b", "1"]),
        (r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)|\p{Nd}{3}", "1234567", &["1", "234", "567"]),
        (r"[[:alpha:]]+|[[:punct:]]+|[[:space:]]+", "Café, déjà!", &["Café", ",", " ", "déjà", "!"]),
        (r"\s+$|\s+|\S+", "  x  \n\n y \nz ", &["  ", "x", "  \n", "\n ", "y", " ", "\n", "z", " "]),
        (r"\R|\X", "e\u{301}\r\nx", &["e\u{301}", "\r\n", "x"]),
        (r"\s++$|\S+|\s", "a  \nb ", &["a", " ", " ", "\n", "b", " "]),
        (r"[^\s\p{L}]?+\p{L}++|\h+", "_ab 1F ", &["_ab", " ", "1F", " "]),
    ];
    for (pattern, text, pieces) in cases {
        let directory = directory("digits-one");
        let mut vocabulary =
            serde_json::Map::from_iter([("?".to_owned(), json!(0)), ("<|end|>".to_owned(), json!(1))]);
        for piece in pieces {
            let next = vocabulary.len();
            vocabulary.entry(*piece).or_insert(json!(next));
        }
        let ids: Vec<u64> = pieces.iter().filter_map(|piece| vocabulary[*piece].as_u64()).collect();
        let tokenizer = json!({
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
        });
        fs::write(directory.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let found = Tokenizer::load(directory.path()).unwrap().encode(text).unwrap();
        assert!(found.iter().map(|&id| u64::from(id)).eq(ids), "{pattern} {found:?}");
    }
}

/// Follows `transformers`: `special_tokens_map.json` counts together with files that list no added tokens.
#[test]
fn special_tokens_stand_in_several_files() {
    let directory = directory("digits-one");
    let root = directory.path();
    let write = |name: &str, value: Value| fs::write(root.join(name), value.to_string()).unwrap();
    let template = "{{ bos_token }}|{{ eos_token }}|{{ image_token }}|{{ sep_token }}|{{ voice }}";
    fs::write(root.join("chat_template.jinja"), template).unwrap();
    write(
        "special_tokens_map.json",
        json!({"eos_token": {"content": "<|end|>"}, "sep_token": "S", "extra_special_tokens": ["x"]}),
    );
    let side = json!({"bos_token": "B", "image_token": "I", "extra_special_tokens": {"voice": "V"}});
    write("tokenizer_config.json", side.clone());
    let tokenizer = Tokenizer::load(root).unwrap();
    assert_eq!(tokenizer.render(&[]).unwrap(), "B|<|end|>|I|S|V");
    assert_eq!(tokenizer.stop_ids(), tokenizer.encode("<|end|>").unwrap());
    let mut newer = side;
    newer["added_tokens_decoder"] = json!({});
    write("tokenizer_config.json", newer);
    write("generation_config.json", json!({"eos_token_id": 1}));
    assert_eq!(Tokenizer::load(root).unwrap().render(&[]).unwrap(), "B||I||V");
}

/// A template of each family that calls tools, written for this test: how Qwen and Hermes, Llama 3 and Mistral lay out tools, calls and results.
const TOOL_TEMPLATES: [&str; 3] = [
    "{%- if tools %}<|user|>tools{% for tool in tools %} {{ tool | tojson }}{% endfor %}<|end|>\n{% endif %}\
     {%- for m in messages %}\
     {%- if m.role == 'tool' %}<|user|>\n<tool_response>\n{{ m.content }}\n</tool_response><|end|>\n\
     {%- elif m.tool_calls %}<|user|>assistant\n{{ m.content }}{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>\n\
     {%- else %}<|user|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endif %}{% endfor %}<|user|>assistant\n",
    "{%- for m in messages %}<|user|>{{ 'ipython' if m.role == 'tool' else m.role }}\n\n\
     {%- if loop.first and tools %}{{ tools | tojson }}\n{% endif %}\
     {%- if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% else %}{{ m.content | trim }}{% endif %}<|end|>{% endfor %}<|user|>assistant\n\n",
    "{%- for m in messages %}\
     {%- if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}\
     [RESULTS] {{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/RESULTS]\
     {%- elif m.tool_calls %}[CALLS] {{ m.tool_calls | tojson }}<|end|>\
     {%- elif m.role == 'assistant' %}{{ m.content }}<|end|>\
     {%- else %}{% if loop.last and tools %}[TOOLS] {{ tools | tojson }}[/TOOLS]{% endif %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}",
];

#[test]
fn earlier_turns_keep_their_tokens_and_results_follow() {
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]);
    let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
    let call = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    for template in TOOL_TEMPLATES {
        let directory = directory("digits-three");
        fs::write(directory.path().join("chat_template.jinja"), template).unwrap();
        let tokenizer = Tokenizer::load(directory.path()).unwrap();
        let stop = tokenizer.stop_ids()[0];
        let first = [message("user", "1 + 1?")];
        let grown = [first[0].clone(), message("assistant", call), message("tool", "2")];
        let conversation = |messages| Conversation::new(messages, Some(&tools));
        let prompt = tokenizer.encode_conversation(conversation(&first)).unwrap();
        let shown = tokenizer.render_conversation(conversation(&first)).unwrap();
        assert!(shown.contains("\"name\": \"add\""), "{shown}");
        assert!(!tokenizer.render(&first).unwrap().contains("add"), "tools are of a conversation");
        // A call that was sampled a byte at a time, and ended by the stop token or not.
        let bytes: Vec<u32> = call.chars().flat_map(|c| tokenizer.encode(&c.to_string()).unwrap()).collect();
        assert_ne!(bytes, tokenizer.encode(call).unwrap());
        let ended = [&bytes[..], &[stop]].concat();
        for said in [&ended, &bytes] {
            let more = tokenizer.continuation(conversation(&grown), 1, *said.last().unwrap()).unwrap();
            assert!(!more.is_empty(), "{template}");
            let tokens = [&prompt[..], &said[..], &more[..]].concat();
            // As if the template had written the text, to the last character.
            let text = tokenizer.token_bytes(&[]).unwrap();
            let spelled: Vec<u8> = tokens.iter().flat_map(|&id| text.of(id).to_vec()).collect();
            let spelled = String::from_utf8(spelled).unwrap();
            assert!(spelled.contains(call) && spelled.contains('2'), "{spelled}");
            assert_eq!(tokens.iter().filter(|&&id| id == stop).count(), {
                let rendered = tokenizer.encode_conversation(conversation(&grown)).unwrap();
                rendered.iter().filter(|&&id| id == stop).count()
            });
        }
    }
}

#[test]
fn turns_that_a_template_rewrites_are_rendered_anew() {
    let directory = directory("digits-three");
    let template = "{% for m in messages %}{{ m.content | length }}<|end|>{% endfor %}";
    fs::write(directory.path().join("chat_template.jinja"), template).unwrap();
    let tokenizer = Tokenizer::load(directory.path()).unwrap();
    let messages =
        ["user", "assistant", "tool"].map(|role| Message { role: role.to_owned(), content: "x".to_owned() });
    let conversation = Conversation::new(&messages, None);
    assert_eq!(tokenizer.continuation(conversation, 1, tokenizer.stop_ids()[0]), Ok(Vec::new()));
}

/// Special tokens have no text, but those that mark calls of tools and those that a stop string names.
#[test]
fn special_tokens_that_mark_calls_keep_their_text() {
    let directory = directory("digits-three");
    let path = directory.path().join("tokenizer.json");
    let mut json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let id = Tokenizer::load(directory.path()).unwrap().vocabulary_size() as u32 + 500;
    let added = json["added_tokens"].as_array_mut().unwrap();
    let mut token = added[0].clone();
    (token["id"], token["content"], token["special"]) = (json!(id), json!("[TOOL_CALLS]"), json!(true));
    added.push(token);
    fs::write(&path, json.to_string()).unwrap();
    let tokenizer = Tokenizer::load(directory.path()).unwrap();
    let ids = tokenizer.encode("1[TOOL_CALLS]2<|end|><|user|>").unwrap();
    let mark = ids[1];
    assert_eq!(tokenizer.decode(&ids).unwrap(), "1[TOOL_CALLS]2");
    let spelled = |stops: &[&str]| {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let tokens = tokenizer.token_bytes(&stops).unwrap();
        String::from_utf8(ids.iter().flat_map(|id| tokens.of(*id).to_vec()).collect()).unwrap()
    };
    assert_eq!((spelled(&[]).as_str(), mark > 0), ("1[TOOL_CALLS]2", true));
    assert_eq!(spelled(&["2<|end|>"]), "1[TOOL_CALLS]2<|end|>");
    assert_eq!(spelled(&["end"]), "1[TOOL_CALLS]2", "a part of a name is another text");
}

/// A model may end its message with another stop token than the template writes there: one of them is enough.
#[test]
fn a_message_ends_once() {
    let directory = directory("digits-three");
    let template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}<|user|>";
    fs::write(directory.path().join("chat_template.jinja"), template).unwrap();
    let [end, user] = ["<|end|>", "<|user|>"]
        .map(|text| Tokenizer::load(directory.path()).unwrap().encode(text).unwrap()[0]);
    fs::write(
        directory.path().join("generation_config.json"),
        json!({"eos_token_id": [end, user]}).to_string(),
    )
    .unwrap();
    let tokenizer = Tokenizer::load(directory.path()).unwrap();
    let messages =
        ["user", "assistant", "user"].map(|role| Message { role: role.to_owned(), content: "1".to_owned() });
    for last in [end, user] {
        let more = tokenizer.continuation(Conversation::new(&messages, None), 1, last).unwrap();
        assert_eq!(more, tokenizer.encode("1<|end|><|user|>").unwrap(), "{last}");
    }
}
