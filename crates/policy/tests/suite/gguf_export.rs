//! `policy export --gguf` is the inverse of the reader, and refuses a model that no file can describe.

use std::fs;
use std::path::Path;

use policy::config::Config;
use policy::directory::Policy;
use policy::gguf::{self, Format};
use policy::weights::{ElementType, Weights};
use troupe_tests::golden;

use crate::{policy, told};

fn from_gguf(root: &Path, file: &Path, dtype: ElementType) -> Policy {
    gguf::policy(root, file, dtype, None).unwrap()
}

fn tensors(policy: &Policy) -> Vec<(String, Vec<f32>)> {
    let weights = Weights::open(&policy.files).unwrap();
    weights.names().map(|name| (name.to_owned(), weights.to_f32(name).unwrap())).collect()
}

#[test]
fn every_family_and_tokenizer_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let types = [
        ("f32", Format::F32, ElementType::F32),
        ("bf16", Format::BF16, ElementType::BF16),
        ("f16", Format::F16, ElementType::F16),
    ];
    for name in ["llama", "qwen2", "qwen3", "smollm3", "gemma3", "phi3", "qwen3moe", "sentence", "tekken"] {
        let here = directory.path().join(name);
        let original = golden("gguf").join(format!("{name}.gguf"));
        for (folder, format, dtype) in types {
            let before = from_gguf(&here.join(folder).join("before"), &original, dtype);
            let file = here.join(folder).join("it.gguf");
            // The default is the type of the weights.
            gguf::export(&before, &file, Some(format).filter(|_| dtype == ElementType::F16)).unwrap();
            let after = from_gguf(&here.join(folder).join("after"), &file, dtype);
            for ((tensor, before), (_, after)) in tensors(&before).iter().zip(tensors(&after)) {
                // Norms of Gemma are stored plus 1, which rounds the small ones.
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= if name == "gemma3" { 6e-8 } else { 0.0 };
                assert!(
                    before.len() == after.len() && before.iter().zip(&after).all(close),
                    "{name}: {tensor}"
                );
            }
            let text =
                |policy: &Policy, file: &str| fs::read_to_string(policy.files.join(file)).unwrap_or_default();
            for file in ["tokenizer.json", "generation_config.json", "chat_template.jinja"] {
                assert_eq!(text(&before, file), text(&after, file), "{name}: {file}");
            }
            let config = |policy: &Policy| Config::load(&policy.files).unwrap();
            assert_eq!(config(&before), config(&after), "{name}");
        }
        // A second quantization changes no byte.
        let whole = Policy::open(&here.join("f32/before")).unwrap();
        let files = ["once", "twice"].map(|folder| here.join(folder).join("it.gguf"));
        gguf::export(&whole, &files[0], Some(Format::Q8_0)).unwrap();
        let once = from_gguf(&here.join("once/made"), &files[0], ElementType::F32);
        gguf::export(&once, &files[1], Some(Format::Q8_0)).unwrap();
        let [once, twice] = files.map(|file| fs::read(file).unwrap());
        assert!(once == twice && once.len() < fs::read(here.join("f32/it.gguf")).unwrap().len(), "{name}");
    }
}

#[test]
fn an_adapter_is_merged_and_what_a_file_cannot_say_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let must = |arguments: &[&str]| {
        let output = policy(here, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", told(&output));
    };
    let base = golden("gguf").join("qwen2.gguf");
    must(&["init", "base", "--from", base.to_str().unwrap(), "--dtype", "float32", "--quiet"]);
    must(&["init", "new", "--from", "base", "--adapter", "rank=4,alpha=8", "--quiet"]);
    // A new adapter's B is zero; a trained one's is not.
    fs::create_dir(here.join("trained")).unwrap();
    let [config, weights] = ["adapter_config.json", "adapter_model.safetensors"];
    fs::copy(here.join("new/current").join(config), here.join("trained").join(config)).unwrap();
    let mut bytes = fs::read(here.join("new/current").join(weights)).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let zeros = bytes[start..].chunks_exact_mut(4).filter(|value| *value == [0; 4]);
    zeros.for_each(|value| value.copy_from_slice(&0.01_f32.to_le_bytes()));
    fs::write(here.join("trained").join(weights), bytes).unwrap();
    must(&["export", "trained", "merged", "--merge", "--gguf", "a/it.gguf"]);
    must(&["export", "merged", "--gguf", "b/it.gguf"]);
    must(&["export", "base", "--gguf", "c/it.gguf"]);
    let [adapter, merged, base] =
        ["a", "b", "c"].map(|folder| fs::read(here.join(folder).join("it.gguf")).unwrap());
    assert!(adapter == merged && adapter != base);
    let modelfile = fs::read_to_string(here.join("a/it.Modelfile")).unwrap();
    assert!(modelfile.starts_with("# ollama create NAME -f this file\nFROM ./it.gguf\n"), "{modelfile}");
    assert!(modelfile.ends_with("PARAMETER stop \"<|end|>\"\n"), "{modelfile}");

    must(&["init", "tiny", "--preset", "tiny"]);
    let window = golden("mistral-4-2-window");
    for (arguments, code, cause) in [
        (
            &["tiny", "--gguf", "x.gguf"][..],
            65,
            "policy: tiny: llama.cpp has no rule that cuts texts as its tokenizer.json",
        ),
        (&[window.to_str().unwrap(), "--gguf", "x.gguf"], 65, "llama.cpp has no rule"),
        (&["base", "--gguf", "a/it.gguf"], 2, "policy: a/it.gguf: already there"),
        (&["base", "out", "--dtype", "f16"], 2, "--gguf"),
        (&["base"], 2, "<OUT>"),
    ] {
        let refused = policy(here, &[&["export"], arguments].concat());
        let message = told(&refused);
        assert!(refused.status.code() == Some(code) && message.contains(cause), "{arguments:?}: {message}");
        assert!(!here.join("x.gguf").exists() && !here.join(".x.gguf.new").exists(), "half a file");
    }
    // A value that f16 cannot hold, and a setting that llama.cpp's `qwen2` has no key for.
    let files = here.join("base/current");
    let config = fs::read_to_string(files.join("config.json")).unwrap();
    fs::create_dir(here.join("changed")).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(files.join(name), here.join("changed").join(name)).unwrap();
    }
    let window = config.replacen(
        '{',
        r#"{"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 0, "#,
        1,
    );
    fs::write(here.join("changed/config.json"), window).unwrap();
    let refused = policy(here, &["export", "changed", "--gguf", "x.gguf"]);
    assert!(
        told(&refused)
            .contains("policy: changed: the setting qwen2.attention.sliding_window is not 0, which"),
        "{}",
        told(&refused)
    );
    fs::write(here.join("changed/config.json"), &config).unwrap();
    let path = here.join("changed/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&1e6_f32.to_le_bytes());
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    let refused = policy(here, &["export", "changed", "--gguf", "x.gguf", "--dtype", "float16"]);
    assert!(told(&refused).contains("out of the range of F16\nhint: choose --dtype"), "{}", told(&refused));
}
