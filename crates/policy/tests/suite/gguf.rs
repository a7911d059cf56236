//! Conversion of GGUF files, checked against the `gguf` package and the original tokenizers; damaged files.

use std::fs;
use std::path::{Path, PathBuf};

use policy::config::Config;
use policy::directory::Policy;
use policy::gguf;
use policy::tokenizer::Tokenizer;
use policy::weights::{ElementType, Weights};
use record::failure::Failure;
use serde_json::{Value, json};

fn golden(name: &str) -> PathBuf {
    troupe_tests::golden("gguf").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&fs::read(golden(name)).unwrap()).unwrap()
}

fn made(root: &Path, name: &str, dtype: ElementType) -> Policy {
    gguf::policy(&root.join(name), &golden(&format!("{name}.gguf")), dtype, None).unwrap()
}

#[test]
fn weights_are_those_of_the_gguf_package() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["llama", "qwen2", "qwen3", "smollm3", "gemma3", "phi3", "qwen3moe"] {
        let policy = made(directory.path(), name, ElementType::F32);
        let weights = Weights::open(&policy.files).unwrap();
        weights.check(&Config::load(&policy.files).unwrap()).unwrap();
        let expected = Weights::open_file(&golden(&format!("{name}.safetensors"))).unwrap();
        assert!(weights.names().eq(expected.names()), "{name}");
        for tensor in expected.names() {
            let (found, expected) = (weights.tensor(tensor).unwrap(), expected.tensor(tensor).unwrap());
            assert!(found.shape == expected.shape && found.bytes == expected.bytes, "{name}: {tensor}");
        }
    }
    // Versions 2 and 3 differ in what a big-endian file is.
    let second = directory.path().join("second.gguf");
    let mut bytes = fs::read(golden("llama.gguf")).unwrap();
    bytes[4] = 2;
    fs::write(&second, bytes).unwrap();
    let second = gguf::policy(&directory.path().join("second"), &second, ElementType::F32, None).unwrap();
    assert_eq!(second.version, Policy::open(&directory.path().join("llama")).unwrap().version);
    let (half, whole) = (
        made(&directory.path().join("half"), "llama", ElementType::BF16),
        Weights::open_file(&golden("llama.safetensors")).unwrap(),
    );
    let weights = Weights::open(&half.files).unwrap();
    for tensor in whole.names() {
        let rounded =
            whole.to_f32(tensor).unwrap().into_iter().map(|value| half::bf16::from_f32(value).to_f32());
        assert!(weights.to_f32(tensor).unwrap().into_iter().eq(rounded), "{tensor}");
    }
}

#[test]
fn configurations_say_what_the_metadata_says() {
    let directory = tempfile::tempdir().unwrap();
    let config = |name: &str| {
        let files = made(directory.path(), name, ElementType::BF16).files;
        let value: Value = serde_json::from_slice(&fs::read(files.join("config.json")).unwrap()).unwrap();
        (Config::load(&files).unwrap(), value)
    };
    let (llama, value) = config("llama");
    assert_eq!((llama.family, llama.hidden_size, llama.num_heads, llama.num_kv_heads), ("Llama", 32, 4, 2));
    assert_eq!((llama.head_dim, llama.intermediate_size, llama.vocab_size), (16, 64, 352));
    assert_eq!((llama.rms_norm_eps, llama.rope_theta, llama.tie_word_embeddings), (1e-5, 5e5, true));
    assert_eq!(value["rms_norm_eps"], json!(0.00001), "the shortest decimal");
    assert_eq!((llama.max_positions, llama.dtype), (512, ElementType::BF16));
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    assert_eq!(value["rope_scaling"], scaling);
    let (qwen2, value) = config("qwen2");
    assert!(qwen2.attention_bias && !qwen2.tie_word_embeddings && value.get("rope_scaling").is_none());
    assert!(config("qwen3").0.qk_norm);
    assert_eq!(config("smollm3").0.rope_layers, [true]);
    let (gemma, value) = config("gemma3");
    assert_eq!((gemma.family, gemma.window(0), gemma.attention_scale()), ("Gemma3", Some(8), 0.25));
    assert_eq!(
        (&value["rope_local_base_freq"], &value["sliding_window_pattern"]),
        (&json!(10000.0), &json!(6))
    );
    let (phi, value) = config("phi3");
    assert_eq!(
        (phi.family, phi.window(0), phi.variant.rotary_dim, phi.max_positions),
        ("Phi3", None, Some(12), 128)
    );
    assert_eq!(value["original_max_position_embeddings"], 128);
    let scaling = json!({
        "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7, 2.5, 4.0],
        "long_factor": [1.0, 1.5, 2.5, 6.0, 20.0, 40.0], "attention_factor": 1.25,
    });
    assert_eq!(value["rope_scaling"], scaling);
    let (experts, value) = config("qwen3moe");
    let layer = experts.experts(0).expect("experts");
    assert_eq!((experts.family, layer.count, layer.width, layer.per_token), ("Qwen3MoE", 3, 64, 2));
    assert_eq!((experts.num_layers, &value["norm_topk_prob"]), (1, &json!(true)));
    let special = read("qwen3.json")["special"].clone();
    for (key, name) in [("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "pad")] {
        assert_eq!(value[key], special[name]);
    }
}

#[test]
fn texts_become_the_tokens_of_the_original_tokenizer() {
    let directory = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for name in
        ["llama", "qwen2", "qwen3", "smollm3", "gpt2", "tekken", "sentence", "gemma3", "phi3", "qwen3moe"]
    {
        let files = made(directory.path(), name, ElementType::BF16).files;
        let (tokenizer, expected) = (Tokenizer::load(&files).unwrap(), read(&format!("{name}.json")));
        assert_eq!(json!(tokenizer.stop_ids()), json!([expected["special"]["eos"]]), "{name}");
        for case in expected["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(json!(ids), case["ids"], "{name}: {text:?}");
            assert_eq!(json!(tokenizer.decode(&ids).unwrap()), case["decoded"], "{name}: {text:?}");
            compared += 1;
        }
        let template = fs::read_to_string(files.join("chat_template.jinja")).unwrap();
        assert!(template.starts_with("{%- for message in messages -%}"), "{template}");
    }
    assert!(compared > 150, "{compared}");
}

/// A GGUF file of these metadata (already encoded) and tensors (name, extents, type, offset), with some data.
fn file(metadata: &[Vec<u8>], tensors: &[(&str, &[u64], u32, u64)], data: usize) -> Vec<u8> {
    let mut bytes =
        [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &(tensors.len() as u64).to_le_bytes()].concat();
    bytes.extend((metadata.len() as u64).to_le_bytes());
    bytes.extend(metadata.concat());
    for (name, extents, kind, offset) in tensors {
        bytes.extend(text(name));
        bytes.extend((extents.len() as u32).to_le_bytes());
        extents.iter().for_each(|extent| bytes.extend(extent.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [text(name).as_slice(), &kind.to_le_bytes(), value].concat()
}

fn refused(bytes: &[u8]) -> Failure {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.gguf");
    fs::write(&path, bytes).unwrap();
    let mut failure =
        gguf::policy(&directory.path().join("made"), &path, ElementType::BF16, None).unwrap_err();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "half a policy");
    assert!(failure.code == 65 && failure.hint.is_some(), "{failure}");
    failure.message = failure.message.replace(&format!("{}/", directory.path().display()), "");
    failure
}

#[test]
fn headers_that_lie() {
    let counts = |tensors: u64, keys: u64| {
        [b"GGUF\x03\0\0\0".as_slice(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
    };
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let one = |extents: &[u64], kind, offset| file(&[], &[("a", extents, kind, offset)], 64);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "no GGUF file"),
        (b"GGUF".to_vec(), "4 bytes at byte 4 of the header, but the file has 4"),
        (b"GGUF\0\0\0\x03".to_vec(), "a big-endian GGUF file"),
        (b"GGUF\x01\0\0\0".to_vec(), "version 1 of GGUF, which is not read"),
        (counts(u64::MAX, 0), "18446744073709551615 tensors, more than 65536"),
        (counts(0, 1 << 40), "1099511627776 metadata keys, more than 65536"),
        (counts(0, 1), "8 bytes at byte 24 of the header, but the file has 24"),
        (
            [counts(0, 1), u64::MAX.to_le_bytes().to_vec()].concat(),
            "the text at byte 24 is longer than 65535 bytes",
        ),
        (
            file(&[key("k", 8, &(1_u64 << 30).to_le_bytes())], &[], 0),
            "\"k\": the text at byte 37 is longer than 16777216",
        ),
        (
            file(&[key("k", 8, &[2, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFE])], &[], 0),
            "\"k\": the text at byte 37 is not UTF-8",
        ),
        (file(&[key("k", 13, &[])], &[], 0), "\"k\": a value of type 13"),
        (file(&[key("k", 7, &[2])], &[], 0), "\"k\": 2 is not true or false"),
        (file(&[key("k", 9, &list(9, 1))], &[], 0), "\"k\": a list of lists"),
        (file(&[key("k", 9, &list(77, 1))], &[], 0), "\"k\": a list of type 77"),
        (
            file(&[key("k", 9, &list(8, u64::MAX))], &[], 0),
            "\"k\": a list of 18446744073709551615 values is longer",
        ),
        (
            file(&[key("k", 9, &list(4, 1 << 20))], &[], 0),
            "\"k\": a list of 1048576 values is longer than the file",
        ),
        (file(&[key("k", 7, &[1]), key("k", 7, &[1])], &[], 0), "\"k\" is there twice"),
        (file(&[key("general.alignment", 4, &[3, 0, 0, 0])], &[], 0), "general.alignment is 3"),
        (file(&[key("general.alignment", 4, &[0; 4])], &[], 0), "general.alignment is 0"),
        (
            file(&[key("general.alignment", 8, &text("32"))], &[], 0),
            "general.alignment is \"32\", not a whole number",
        ),
        (one(&[], 0, 0), "tensor \"a\" has 0 extents, not 1 to 4"),
        (one(&[1; 5], 0, 0), "tensor \"a\" has 5 extents, not 1 to 4"),
        (one(&[0], 0, 0), "tensor \"a\" has the impossible shape [0]"),
        (
            one(&[1 << 40, 1 << 40], 0, 0),
            "tensor \"a\" has the impossible shape [1099511627776, 1099511627776]",
        ),
        (one(&[8], 16, 0), "tensor \"a\" is IQ2_XXS, which is not read"),
        (one(&[8], 4, 0), "tensor \"a\" is type 4, which is not read"),
        (one(&[33], 8, 0), "tensor \"a\" has rows of 33 values, which blocks of 32 do not fill"),
        (one(&[17], 0, 0), "tensor \"a\" of shape [17] starts at byte 0 of the data, which has 64"),
        (one(&[16], 0, 32), "tensor \"a\" starts at byte 32 of the data, not at 0"),
        (one(&[8], 0, 0), "32 bytes after the last tensor belong to none"),
        (
            file(&[], &[("a", &[8], 0, 0), ("b", &[8], 0, 0)], 64),
            "tensor \"b\" starts at byte 0 of the data, not at 32",
        ),
        (
            file(&[], &[("a", &[8], 0, 0), ("b", &[8], 0, 16)], 64),
            "tensor \"b\" starts at byte 16 of the data, not at 32",
        ),
        (file(&[], &[("a", &[8], 0, 0), ("a", &[8], 0, 32)], 64), "tensor \"a\" is there twice"),
        (one(&[16], 0, 0), "general.architecture is missing"),
        (
            file(&[key("general.architecture", 8, &text("t5"))], &[], 0),
            "the architecture is \"t5\", which is not implemented",
        ),
        (file(&[key("split.count", 2, &[3, 0])], &[], 0), "one of 3 files of a model"),
    ];
    for (bytes, expected) in cases {
        let message = refused(&bytes).message;
        assert!(message.starts_with(&format!("x.gguf: {expected}")), "{message} instead of {expected}");
    }
}

#[test]
fn models_that_are_not_implemented_are_refused_by_name() {
    let number = |value: u32| value.to_le_bytes();
    let replace = |name: &str, from: &[u8], to: &[u8]| {
        let mut bytes = fs::read(golden(&format!("{name}.gguf"))).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from).expect("a place");
        bytes[at..at + from.len()].copy_from_slice(to);
        bytes
    };
    let cases = [
        (
            replace("llama", b"llama.vocab_size", b"llama.logit_bias"),
            "the setting llama.logit_bias, which is not",
        ),
        (
            replace("llama", b"llama.block_count", b"llama.block_total"),
            "the setting llama.block_total, which is not",
        ),
        (
            replace("llama", b"blk.0.ffn_norm.weight", b"blk.0.ffn_nerm.weight"),
            "tensor \"blk.0.ffn_norm.weight\" is missing",
        ),
        (
            replace("qwen2", b"blk.0.attn_q.bias", b"blk.0.attn_z.bias"),
            "tensor \"blk.0.attn_q.bias\" is missing",
        ),
        (
            replace("llama", b"rope_freqs.weight", b"rope_frexs.weight"),
            "tensor \"rope_frexs.weight\" has no place in Llama",
        ),
        (
            replace("llama", b"smollm", b"gemini"),
            "tokenizer.ggml.pre is \"gemini\", which is not implemented",
        ),
        (
            replace("llama", &text("gpt2"), &text("bert")),
            "the tokenizer is \"bert\", which is not implemented",
        ),
        (
            replace("llama", b"tokenizer.ggml.eos_token_id", b"tokenizer.ggml.eas_token_id"),
            "tokenizer.ggml.eos_token_id is missing",
        ),
        (
            replace("llama", b"tokenizer.ggml.merges", b"tokenizer.ggml.mergez"),
            "tokenizer.ggml.merges is missing",
        ),
        (
            replace(
                "llama",
                &key("tokenizer.ggml.eos_token_id", 4, &[]),
                &key("tokenizer.ggml.eos_token_id", 6, &[]),
            ),
            "tokenizer.ggml.eos_token_id is ",
        ),
        (replace("sentence", b"tokenizer.ggml.scores", b"tokenizer.ggml.scorez"), "0 scores for 348 tokens"),
        (
            replace(
                "llama",
                &key("llama.rope.dimension_count", 4, &number(16)),
                &key("llama.rope.dimension_count", 4, &number(8)),
            ),
            "llama.rope.dimension_count is 8 with heads of 16",
        ),
        (
            replace(
                "llama",
                &key("llama.attention.head_count_kv", 4, &number(2)),
                &key("llama.attention.head_count_kv", 4, &number(3)),
            ),
            "num_attention_heads is 4, which is not a multiple of num_key_value_heads 3",
        ),
    ];
    for (bytes, expected) in cases {
        let message = refused(&bytes).message;
        assert!(message.starts_with(&format!("x.gguf: {expected}")), "{message} instead of {expected}");
    }
}

/// Such a policy would fail at its first token.
#[test]
fn values_that_are_no_weights_are_refused() {
    let bytes = fs::read(golden("smollm3.gguf")).unwrap();
    for value in [f32::NAN, f32::NEG_INFINITY, f32::MAX] {
        let mut bytes = bytes.clone();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
        let message = refused(&bytes).message;
        let end = format!(" is {value} at element 11263, which is no BF16 weight");
        assert!(message.starts_with("x.gguf: tensor \"") && message.ends_with(&end), "{message}");
    }
}

#[test]
fn a_file_may_end_anywhere() {
    let bytes = fs::read(golden("llama.gguf")).unwrap();
    for end in (0..bytes.len() - 1).step_by(997) {
        refused(&bytes[..end]);
    }
}
