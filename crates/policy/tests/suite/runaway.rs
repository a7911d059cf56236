//! Templates, tokenizers and generation configs that would eat or kill the machine: each is exit 65 and one sentence, soon.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use policy::tokenizer::Tokenizer;
use record::sample::Message;
use serde_json::{Value, json};

const TEMPLATE: &str = "chat_template.jinja";
const MEMORY: &str = "took more than 1 GiB of memory or nested too deeply";

/// Hostile files: the attack, the name, the content, and the expected error.
fn hostile() -> Vec<(&'static str, &'static str, String, &'static str)> {
    let template = |what, text: &str, said| (what, TEMPLATE, text.to_owned(), said);
    let nested = |what, open: &str, inside: &str, close: &str, said| {
        (what, TEMPLATE, format!("{}{inside}{}", open.repeat(30_000), close.repeat(30_000)), said)
    };
    let grown = |rule: Value| {
        let mut tokenizer = tokenizer();
        tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": vec![rule; 60]});
        tokenizer.to_string()
    };
    let mut empty = tokenizer();
    empty["model"]["vocab"] = json!({});
    empty["added_tokens"] = json!([]);
    let doubled = json!({"type": "Replace", "pattern": {"String": "l"}, "content": "ll"});
    let stops = |ids: Value| json!({ "eos_token_id": ids }).to_string();
    vec![
        template("prints itself", "{% set n = namespace() %}{% set n.a = n %}{{ n }}", MEMORY),
        template("is its own JSON", "{% set n = namespace() %}{% set n.a = n %}{{ n | tojson }}", MEMORY),
        template(
            "doubles a text",
            "{% set n = namespace(s='a') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
            MEMORY,
        ),
        template(
            "doubles a list",
            "{% set n = namespace(l=[1]) %}{% for i in range(64) %}{% set n.l = (n.l + n.l) | list %}{% endfor %}{{ n.l }}",
            MEMORY,
        ),
        template("repeats a text", "{{ 'a' * 9999999999 }}", "repeated string is too large"),
        template("fills a batch", "{{ [1] | batch(9999999999, 'x') | list | length }}", MEMORY),
        template("makes many slices", "{{ [1] | slice(9999999999) | list | length }}", MEMORY),
        template("pads a number", "{{ '%9999999999d' | format(1) }}", MEMORY),
        template("indents", "{{ 'a\\nb' | indent(9999999999) }}", MEMORY),
        template("indents JSON", "{{ [[1]] | tojson(indent=9999999999) }}", "tojson: indent is 9999999999"),
        template("replaces", "{{ ('a' * 100000) | replace('a', 'a' * 1000000) }}", MEMORY),
        template("prints much", "{% for i in range(9999) %}{{ 'a' * 999999 }}{% endfor %}", MEMORY),
        template(
            "never ends",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "fuel",
        ),
        template("calls itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion limit"),
        nested("adds 30,000 times", "{{ 1+", "1 }}", "", "line 1"),
        ("negates 30,000 times", TEMPLATE, format!("{{{{ {}true }}}}", "not ".repeat(30_000)), MEMORY),
        ("adds 30,000 numbers", TEMPLATE, format!("{{{{ {}1 }}}}", "1+".repeat(30_000)), MEMORY),
        nested("nests conditions", "{% if true %}", "", "{% endif %}", "line 1"),
        nested("nests brackets", "{{ [", "", "] }}", "line 1"),
        template(
            "prints 20 MB",
            "{% for i in range(20) %}{{ 'a' * 999999 }}{% endfor %}",
            "a prompt of 19999980 bytes",
        ),
        ("grows a text 60 times", "tokenizer.json", grown(doubled), MEMORY),
        ("has no tokens", "tokenizer.json", empty.to_string(), "the vocabulary is empty"),
        (
            "nests a normalizer",
            "tokenizer.json",
            format!("{{\"normalizer\":{}", "[".repeat(100_000)),
            "recursion limit",
        ),
        (
            "has a million stop tokens",
            "generation_config.json",
            stops((0..1_000_000).collect()),
            "lists 1000000 tokens",
        ),
        ("nests a configuration", "generation_config.json", "[".repeat(100_000), "recursion limit"),
    ]
}

fn tokenizer() -> Value {
    let directory = tempfile::tempdir().unwrap();
    let text =
        fs::read_to_string(crate::tiny(directory.path(), "tiny").files.join("tokenizer.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn each_is_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let policy = crate::tiny(directory.path(), "tiny");
    let mut wrong = Vec::new();
    for (what, name, content, said) in hostile() {
        let path = policy.files.join(name);
        let before = fs::read(&path).ok();
        fs::write(&path, content).unwrap();
        let started = Instant::now();
        let output =
            Command::new(env!("CARGO_BIN_EXE_policy")).arg("check").arg(&policy.root).output().unwrap();
        let (took, told) = (started.elapsed(), String::from_utf8_lossy(&output.stderr));
        println!("{what}: {took:.1?} {told}");
        let refused =
            output.status.code() == Some(65) && output.stdout.is_empty() && told.starts_with("policy: ");
        let sentence = told.lines().count() == 2 && told.contains("\nhint: ") && told.len() < 600;
        // A busy machine may run out of time before memory.
        let cause = told.contains(said) || said == MEMORY && told.contains("took longer than 10 s");
        if !(refused && sentence && cause && took < Duration::from_secs(40)) {
            wrong.push(format!("{what}: {:?} after {took:.1?}: {told}", output.status));
        }
        match before {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A program that meets one goes on with its other policies.
#[test]
fn the_program_survives() {
    let directory = tempfile::tempdir().unwrap();
    let hello = [Message { role: "user".to_owned(), content: "hello".to_owned() }];
    let load = |name: &str, template: &str| {
        let policy = crate::tiny(directory.path(), name);
        fs::write(policy.files.join(TEMPLATE), template).unwrap();
        Tokenizer::load(&policy.files).unwrap()
    };
    let good = load("good", "{{ messages[0].content }}");
    let bad = load("bad", "{% set n = namespace() %}{% set n.a = n %}{{ n }}");
    assert_eq!(bad.chat(&hello).unwrap_err().code, 65);
    assert!(bad.encode("hello").unwrap_err().message.contains("ended by this or an earlier text"));
    assert_eq!(good.render(&hello).unwrap(), "hello");
    assert_eq!(good.decode(&good.chat(&hello).unwrap()).unwrap(), "hello");
}

/// What the child costs: a conversation rendered and encoded here and there.
#[test]
fn a_conversation_takes_microseconds() {
    let directory = tempfile::tempdir().unwrap();
    let policy = crate::tiny(directory.path(), "tiny");
    let hello = [Message { role: "user".to_owned(), content: "walls a0 b2 goal c1 at e3 tool".to_owned() }];
    let time = |files: &Path| {
        let loading = Instant::now();
        let tokenizer = Tokenizer::load(files).unwrap();
        let loaded = loading.elapsed();
        let started = Instant::now();
        let ids: Vec<Vec<u32>> = (0..1000).map(|_| tokenizer.chat(&hello).unwrap()).collect();
        (loaded, started.elapsed() / 1000, ids[0].clone())
    };
    let (load_here, here, ids) = time(&policy.files);
    let side: Value =
        serde_json::from_slice(&fs::read(policy.files.join("tokenizer_config.json")).unwrap()).unwrap();
    fs::write(policy.files.join(TEMPLATE), side["chat_template"].as_str().unwrap()).unwrap();
    let (load_there, there, same) = time(&policy.files);
    println!(
        "load {load_here:?} here, {load_there:?} in a child; a conversation {here:?} here, {there:?} in a child"
    );
    assert_eq!(ids, same);
    assert!(there < Duration::from_millis(20), "{there:?}");
}
