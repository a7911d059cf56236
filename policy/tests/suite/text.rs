//! Chat templates and byte-level tokenizers of the kinds that Qwen3, Qwen2.5 and Llama 3 have, as `transformers` and
//! its tokenizers treat them (tests/golden/make_text_goldens.py).

use std::fs;
use std::path::{Path, PathBuf};

use policy::tokenizer::Tokenizer;
use record::sample::Message;
use serde_json::{Value, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/text").join(name)
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
