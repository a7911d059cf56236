//! The tiny tokenizer: equal to `transformers`, lossless, and conversations that only grow.

use std::sync::LazyLock;

use policy::tokenizer::Tokenizer;
use proptest::prelude::*;
use record::sample::Message;
use serde_json::{Value, json};

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    Tokenizer::load(&crate::tiny(directory.path(), "tiny").files).unwrap()
});

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Made by `against_transformers.py --goldens`.
#[test]
fn ids_are_those_of_transformers() {
    let goldens: Value = serde_json::from_str(include_str!("../goldens/tokenizer.json")).unwrap();
    for golden in goldens["texts"].as_array().unwrap() {
        let text = golden["text"].as_str().unwrap();
        assert_eq!(TOKENIZER.encode(text).unwrap(), ids(&golden["ids"]), "{text:?}");
        assert_eq!(TOKENIZER.decode(&ids(&golden["ids"])).unwrap(), golden["decoded"].as_str().unwrap());
    }
    for golden in goldens["chats"].as_array().unwrap() {
        let messages: Vec<Message> = serde_json::from_value(golden["messages"].clone()).unwrap();
        assert_eq!(TOKENIZER.chat(&messages).unwrap(), ids(&golden["ids"]));
    }
}

#[test]
fn every_word_of_the_compact_texts_is_one_token() {
    let cells = ('a'..='j').flat_map(|column| ('0'..='9').map(move |row| format!(" {column}{row}")));
    let words =
        [" U", " D", " L", " R", " walls", "walls", " goal", " at", " route", " tool", " planner", " plan"];
    for word in cells.chain(words.map(str::to_owned)) {
        assert_eq!(TOKENIZER.encode(&word).unwrap().len(), 1, "{word:?}");
    }
    let prompt = "walls a0 b2 e2 b3 goal c1 at e3 route d3 c3 c2 planner";
    assert_eq!(TOKENIZER.encode(prompt).unwrap().len(), 14);
    assert_eq!(TOKENIZER.encode(" L L U").unwrap().len(), 3);
    assert_eq!(TOKENIZER.stop_ids(), TOKENIZER.encode("<|end|>").unwrap());
}

#[test]
fn an_unknown_role_is_refused() {
    let message = Message { role: "judge".to_owned(), content: String::new() };
    let failure = TOKENIZER.render(&[message]).unwrap_err();
    assert!(failure.message.ends_with("roles are system, user and assistant"), "{}", failure.message);
}

/// The marks of Magistral are special tokens, which other texts leave out.
#[test]
fn marks_of_thoughts_stay_in_a_text() {
    let directory = tempfile::tempdir().unwrap();
    let policy = crate::tiny(directory.path(), "tiny").files;
    let path = policy.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for (id, mark) in [(512, "[THINK]"), (513, "[/THINK]"), (514, "[INST]")] {
        let flags = json!({"single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
        let token = json!({"id": id, "content": mark, "special": true});
        let all: serde_json::Map<String, Value> =
            [flags, token].into_iter().flat_map(|part| part.as_object().unwrap().clone()).collect();
        tokenizer["added_tokens"].as_array_mut().unwrap().push(all.into());
    }
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let tokenizer = Tokenizer::load(&policy).unwrap();
    let ids = tokenizer.encode("[INST]a[THINK]b[/THINK] U").unwrap();
    assert_eq!(ids[0], 514);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "a[THINK]b[/THINK] U");
    assert_eq!(tokenizer.decode(&[]).unwrap(), "");
}

/// Text as it may come from environments and people: words of the table, boundaries, any Unicode.
fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        4 => "( ?[a-j][0-9]| ?(U|D|L|R|walls|goal|at|planner))",
        2 => "[ -~]{0,6}",
        1 => "\\PC{0,4}",
        1 => any::<String>(),
    ];
    prop::collection::vec(word, 0..8).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_text_survives(text in text()) {
        // Special tokens spelled out are structure, not text.
        prop_assume!(!text.contains("<|"));
        let ids = TOKENIZER.encode(&text).unwrap();
        prop_assert!(ids.iter().all(|&id| id < 512));
        prop_assert_eq!(TOKENIZER.decode(&ids).unwrap(), text);
    }

    #[test]
    fn a_text_is_the_bytes_of_its_tokens(ids in prop::collection::vec(0..512_u32, 0..40)) {
        let tokens = TOKENIZER.token_bytes(&[]).unwrap();
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokens.of(id).to_vec()).collect();
        prop_assert_eq!(String::from_utf8_lossy(&bytes).into_owned(), TOKENIZER.decode(&ids).unwrap());
    }

    #[test]
    fn a_growing_conversation_only_appends(turns in prop::collection::vec((text(), text()), 1..5)) {
        let mut messages = Vec::new();
        let mut before: Vec<u32> = Vec::new();
        for (question, answer) in turns {
            messages.push(Message { role: "user".to_owned(), content: question });
            let prompt = TOKENIZER.chat(&messages).unwrap();
            prop_assert_eq!(&prompt[..before.len()], &before[..]);
            before = prompt;
            before.extend(TOKENIZER.encode(&answer).unwrap());
            before.push(TOKENIZER.stop_ids()[0]);
            messages.push(Message { role: "assistant".to_owned(), content: answer });
        }
    }
}
