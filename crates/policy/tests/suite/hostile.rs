//! Damaged and malicious checkpoints: each a sentence, a hint and exit code 65, never a panic.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use policy::config::Config;
use policy::directory::Policy;
use policy::tokenizer::Tokenizer;
use policy::weights::Weights;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A safetensors file of a header and its data.
fn file(header: &Value, data: &[u8]) -> Vec<u8> {
    let text = header.to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), data].concat()
}

fn open(bytes: &[u8]) -> Result<Weights, String> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    Weights::open(directory.path()).map_err(|failure| {
        assert_eq!(failure.code, 65);
        assert!(failure.hint.is_some(), "{}", failure.message);
        failure.message.replace(&format!("{}/", directory.path().display()), "")
    })
}

#[test]
fn headers_that_lie() {
    let tensor = |dtype: &str, shape: Value, offsets: Value| json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
    let two = |first: Value, second: Value| json!({"a": first, "b": second});
    let good = tensor("F32", json!([2]), json!([0, 8]));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "0 bytes is too short for a safetensors file"),
        (vec![1, 2, 3], "3 bytes is too short for a safetensors file"),
        (vec![9, 0, 0, 0, 0, 0, 0, 0, b'{'], "the header claims 9 bytes but the file has 9"),
        (vec![255; 64], "the header claims 18446744073709551615 bytes, more than 100000000"),
        ([&8_u64.to_le_bytes()[..], b"not json"].concat(), "the header is not a JSON object of tensors"),
        ([&2_u64.to_le_bytes()[..], b"[]"].concat(), "the header is not a JSON object of tensors"),
        ([&2_u64.to_le_bytes()[..], b"\xff\xfe"].concat(), "the header is not a JSON object of tensors"),
        (file(&json!({"a": 7}), b""), "tensor \"a\" is described wrongly"),
        (file(&json!({"a": {"dtype": "F32", "shape": [1]}}), b""), "tensor \"a\" is described wrongly"),
        (
            file(&json!({"a": tensor("F32", json!([-1]), json!([0, 4]))}), &[0; 4]),
            "tensor \"a\" is described wrongly",
        ),
        (
            file(&json!({"a": tensor("Q4_K", json!([1]), json!([0, 4]))}), &[0; 4]),
            "tensor \"a\" has the unknown type \"Q4_K\"",
        ),
        (
            file(&json!({"a": tensor("F32", json!([2]), json!([0, 4]))}), &[0; 4]),
            "tensor \"a\" of shape [2] needs 8 bytes but spans 0..4",
        ),
        (
            file(&json!({"a": tensor("F32", json!([2]), json!([8, 0]))}), &[0; 8]),
            "tensor \"a\" of shape [2] needs 8 bytes but spans 8..0",
        ),
        (
            file(&json!({"a": tensor("F32", json!([1_u64 << 40, 1_u64 << 40]), json!([0, 8]))}), &[0; 8]),
            "tensor \"a\" has the impossible shape [1099511627776, 1099511627776]",
        ),
        (file(&json!({"a": good}), &[0; 7]), "tensor \"a\" ends at byte 8 of the data but the file has 7"),
        (file(&json!({"a": good}), &[0; 9]), "1 bytes after the last tensor belong to none"),
        (
            file(&two(good.clone(), tensor("F32", json!([2]), json!([4, 12]))), &[0; 12]),
            "tensor \"b\" starts at byte",
        ),
        (file(&two(good.clone(), good.clone()), &[0; 8]), "tensor \"b\" starts at byte"),
        (
            file(&two(good.clone(), tensor("F32", json!([2]), json!([9, 17]))), &[0; 17]),
            "tensor \"b\" starts at byte",
        ),
    ];
    for (bytes, expected) in cases {
        let message = open(&bytes).expect_err(expected);
        assert!(
            message.starts_with(&format!("model.safetensors: {expected}")),
            "{message} instead of {expected}"
        );
    }
    assert!(open(&file(&json!({"__metadata__": {"format": "pt"}, "a": good}), &[0; 8])).is_ok());
}

static TINY: LazyLock<(Config, Vec<u8>)> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let files = crate::tiny(directory.path(), "tiny").files;
    (Config::load(&files).unwrap(), fs::read(files.join("model.safetensors")).unwrap())
});

proptest! {
    #[test]
    fn no_header_panics(header in prop::collection::vec(any::<u8>(), 0..64), length in prop_oneof![0..80_u64, any::<u64>()]) {
        let _ = open(&[&length.to_le_bytes()[..], &header].concat());
    }

    #[test]
    fn no_damage_panics(at in 0..4000_usize, byte in any::<u8>()) {
        let (config, mut bytes) = TINY.clone();
        bytes[at] = byte;
        if let Ok(weights) = open(&bytes) {
            let _ = weights.check(&config);
        }
    }
}

/// Uses a policy with one changed file; returns the error.
fn use_with(name: &str, change: impl FnOnce(&Path)) -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    let files = crate::tiny(directory.path(), "tiny").files;
    change(&files.join(name));
    let used = || -> record::failure::Result<()> {
        let policy = Policy::open(&files)?;
        let weights = Weights::open(&policy.files)?;
        weights.check(&Config::load(&policy.files)?)?;
        Tokenizer::load(&policy.files)?;
        policy.verify()
    };
    used().map_err(|failure| {
        assert_eq!(failure.code, 65, "{}", failure.message);
        assert!(failure.hint.is_some(), "{}", failure.message);
        failure.message.replace(&format!("{}/", files.canonicalize().unwrap().display()), "")
    })
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from}");
    fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn files_that_do_not_belong_together() {
    type Case<'a> = (&'a str, &'a dyn Fn(&Path), &'a str);
    let cases: [Case; 9] = [
        ("config.json", &|path| replace(path, "\"hidden_size\": 96", "\"hidden_size\": 97"), "has shape"),
        (
            "config.json",
            &|path| replace(path, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4"),
            "is missing",
        ),
        ("config.json", &|path| fs::write(path, "{").unwrap(), "config.json: not JSON"),
        ("config.json", &|path| fs::write(path, "[]").unwrap(), "config.json: not a JSON object"),
        ("tokenizer.json", &|path| fs::remove_file(path).unwrap(), "tokenizer.json: no such file"),
        ("tokenizer.json", &|path| fs::write(path, "{}").unwrap(), "tokenizer.json: "),
        (
            "tokenizer_config.json",
            &|path| replace(path, "\"eos_token\": \"<|end|>\"", "\"eos_token\": \"</s>\""),
            "eos_token \"</s>\" is not in tokenizer.json",
        ),
        (
            "generation_config.json",
            &|path| fs::write(path, r#"{"eos_token_id": [4, -1]}"#).unwrap(),
            "generation_config.json: eos_token_id is [4,-1]",
        ),
        (
            "model.safetensors",
            &|path| {
                let mut bytes = fs::read(path).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(path, bytes).unwrap();
            },
            "the weights are those of",
        ),
    ];
    for (name, change, expected) in cases {
        let message = use_with(name, change).expect_err(expected);
        assert!(message.contains(expected), "{message} instead of {expected}");
    }
    assert_eq!(use_with("config.json", |_| {}), Ok(()));
}

#[test]
fn shards_that_lie() {
    let good = json!({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]});
    let cases = [
        (json!({}), "no weight_map"),
        (json!({"weight_map": {}}), "no weight_map that names a shard"),
        (json!({"weight_map": {"a": "../elsewhere.safetensors"}}), "is not a shard's name"),
        (json!({"weight_map": {"a": 7}}), "is not a shard's name"),
        (json!({"weight_map": {"a": "absent.safetensors"}}), "absent.safetensors: no such file or directory"),
        (json!({"weight_map": {"a": "1.safetensors", "c": "1.safetensors"}}), "does not hold tensor \"c\""),
        (json!({"weight_map": {"a": "1.safetensors", "b": "3.safetensors"}}), "tensor \"a\" is also in"),
    ];
    for (index, expected) in cases {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).unwrap();
        write("1.safetensors", &file(&json!({"a": good}), &[0; 4]));
        write("3.safetensors", &file(&json!({"a": good}), &[0; 4]));
        write("model.safetensors.index.json", index.to_string().as_bytes());
        let failure = Weights::open(directory.path()).unwrap_err();
        assert_eq!(failure.code, 65);
        assert!(failure.hint.is_some(), "{}", failure.message);
        assert!(failure.message.contains(expected), "{} instead of {expected}", failure.message);
    }
}

#[test]
fn places_without_a_policy() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    assert_eq!(Policy::open(&root.join("absent")).unwrap_err().code, 2);
    assert_eq!(Policy::open(root).unwrap_err().code, 65);
    for target in ["elsewhere", "step-7", "../step-000001", "step-000001"] {
        let link = root.join("current");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).unwrap();
        assert_eq!(Policy::open(root).unwrap_err().code, 65, "{target}");
    }
}
