//! New policies: the seed decides every byte, presets have their geometry, and existing paths are never
//! overwritten.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use policy::config::Config;
use policy::directory::Policy;
use policy::initial::{self, Preset};
use policy::side_files;
use policy::tokenizer::Tokenizer;
use policy::weights::Weights;

#[test]
fn the_seed_decides_every_byte() {
    let directory = tempfile::tempdir().unwrap();
    let make =
        |name: &str, seed| initial::from_preset(&directory.path().join(name), Preset::Tiny, seed).unwrap();
    let (first, again, other) = (make("first", 7), make("again", 7), make("other", 8));
    assert_eq!(crate::contents(&first.root), crate::contents(&again.root));
    assert_ne!(first.version, other.version);
    assert_eq!(first.version.step, 0);
}

#[test]
fn presets_have_their_geometry() {
    let directory = tempfile::tempdir().unwrap();
    for (preset, geometry, count) in
        [(Preset::Tiny, (96, 3, 6, 3, 16, 256), 354_048), (Preset::Bench, (256, 4, 4, 2, 64, 768), 3_279_616)]
    {
        let policy = initial::from_preset(&directory.path().join(format!("{preset:?}")), preset, 0).unwrap();
        let c = Config::load(&policy.files).unwrap();
        let found =
            (c.hidden_size, c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size);
        assert_eq!(found, geometry);
        assert!(c.tie_word_embeddings && c.qk_norm && c.vocab_size == 512);
        let weights = Weights::open(&policy.files).unwrap();
        weights.check(&c).unwrap();
        let sizes = c.tensors().into_iter().map(|tensor| tensor.count());
        assert_eq!(sizes.sum::<usize>(), count);
        assert_eq!(Tokenizer::load(&policy.files).unwrap().vocabulary_size(), c.vocab_size);
        let view = weights.tensor("model.embed_tokens.weight").unwrap();
        assert_eq!(view.offset % 4, 0, "aligned, so that it can be used in place");
    }
}

#[test]
fn deviations_are_those_that_were_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let weights = Weights::open(&crate::tiny(directory.path(), "tiny").files).unwrap();
    let expected = [
        ("model.embed_tokens.weight", 0.1),
        ("model.layers.1.self_attn.q_proj.weight", 1.0 / 96_f64.sqrt()),
        ("model.layers.2.self_attn.o_proj.weight", 1.0 / (96.0 * 6_f64).sqrt()),
        ("model.layers.0.mlp.down_proj.weight", 1.0 / (256.0 * 6_f64).sqrt()),
    ];
    for (name, deviation) in expected {
        let values = weights.to_f32(name).unwrap();
        let variance =
            values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / values.len() as f64;
        println!("{name}: {} for {deviation}", variance.sqrt());
        assert!((variance.sqrt() / deviation - 1.0).abs() < 5.0 / (2.0 * values.len() as f64).sqrt());
    }
    assert!(weights.to_f32("model.norm.weight").unwrap().iter().all(|&value| value == 1.0));
}

#[test]
fn a_directory_becomes_a_policy_directory_and_keeps_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let source = crate::tiny(directory.path(), "source");
    let plain = directory.path().join("plain");
    fs::create_dir_all(plain.join("nested")).unwrap();
    for name in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ] {
        fs::copy(source.files.join(name), plain.join(name)).unwrap();
    }
    fs::write(plain.join("README.md"), "read me\r\n").unwrap();
    fs::write(plain.join("nested/more.txt"), "more").unwrap();
    fs::write(plain.join("pytorch_model.bin"), "stale").unwrap();
    fs::write(plain.join(".hidden"), "hidden").unwrap();

    let opened = Policy::open(&plain).unwrap();
    assert_eq!(opened.version, source.version);
    assert_eq!(opened.files, plain);
    let made = initial::from_directory(&directory.path().join("made"), &plain, None).unwrap();
    assert_eq!(made.version, source.version);
    let mut expected = crate::contents(&plain);
    expected.retain(|name, _| name != "pytorch_model.bin" && name != ".hidden");
    let mut found = crate::contents(&made.files);
    assert!(found.remove("version.json").is_some());
    assert_eq!(found, expected);
}

#[test]
fn nothing_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let policy = crate::tiny(directory.path(), "tiny");
    let before = crate::contents(&policy.root);
    let failure = initial::from_preset(&policy.root, Preset::Tiny, 9).unwrap_err();
    assert_eq!(failure.code, 2);
    assert_eq!(crate::contents(&policy.root), before);
    fs::create_dir(directory.path().join("empty")).unwrap();
    assert!(initial::from_preset(&directory.path().join("empty"), Preset::Tiny, 9).is_ok());
}

#[test]
fn any_geometry_of_a_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.json");
    let write = |vocabulary: usize| {
        let text = format!(
            r#"{{"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": {vocabulary}, "eos_token_id": 151645,
            "max_position_embeddings": 128, "torch_dtype": "bfloat16"}}"#
        );
        fs::write(&file, text).unwrap();
    };
    write(600);
    let policy = initial::from_config(&directory.path().join("new"), &file, 1).unwrap();
    let config = Config::load(&policy.files).unwrap();
    let weights = Weights::open(&policy.files).unwrap();
    weights.check(&config).unwrap();
    assert_eq!(weights.tensor("model.norm.weight").unwrap().dtype, policy::weights::ElementType::BF16);
    assert!(
        weights.to_f32("model.layers.0.self_attn.q_proj.bias").unwrap().iter().all(|&value| value == 0.0)
    );
    assert_eq!(Tokenizer::load(&policy.files).unwrap().stop_ids(), [4]);
    write(100);
    assert_eq!(initial::from_config(&directory.path().join("small"), &file, 1).unwrap_err().code, 2);
    assert_eq!(
        initial::from_config(&directory.path().join("x"), Path::new("/nowhere"), 1).unwrap_err().code,
        65
    );
}

/// A checkpoint's folder with typical extra files: which are kept, and which are named as left out.
#[test]
fn files_outside_a_checkpoint_are_left_out_and_named() {
    const FORMAT: &str = "weights or training state that is not read";
    let stray = [
        (".gitattributes", "hidden", ".gitattributes"),
        (".git/HEAD", "hidden", ".git/"),
        ("__pycache__/modeling.pyc", "hidden", "__pycache__/"),
        ("pytorch_model.bin", FORMAT, "pytorch_model.bin"),
        ("pytorch_model.bin.index.json", FORMAT, "pytorch_model.bin.index.json"),
        ("tf_model.h5", FORMAT, "tf_model.h5"),
        ("flax_model.msgpack", FORMAT, "flax_model.msgpack"),
        ("rust_model.ot", FORMAT, "rust_model.ot"),
        ("training_args.bin", FORMAT, "training_args.bin"),
        ("optimizer.pt", FORMAT, "optimizer.pt"),
        ("rng_state_0.pth", FORMAT, "rng_state_0.pth"),
        ("model-Q4_K_M.GGUF", FORMAT, "model-Q4_K_M.GGUF"),
        ("model.onnx.data", FORMAT, "model.onnx.data"),
        ("model.onnx_data_1", FORMAT, "model.onnx_data_1"),
        ("consolidated.safetensors", FORMAT, "consolidated.safetensors"),
        ("onnx/config.json", FORMAT, "onnx/"),
        ("original/params.json", FORMAT, "original/"),
        ("coreml/model.mlpackage/Manifest.json", FORMAT, "coreml/"),
        ("nested/more.safetensors", FORMAT, "nested/more.safetensors"),
        ("checkpoint-500/config.json", "a separate checkpoint", "checkpoint-500/"),
        ("global_step10/state", "state of a training", "global_step10/"),
        ("trainer_state.json", "state of a training", "trainer_state.json"),
        (
            "model.safetensors.index.json",
            "an index of shards next to model.safetensors, which is read instead",
            "model.safetensors.index.json",
        ),
    ];
    let kept = [
        "README.md",
        "LICENSE",
        "merges.txt",
        "vocab.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "figures/curve.svg",
        "notes of somebody",
    ];
    // One of these is read.
    let content = |name: &str| match name {
        "special_tokens_map.json" => "{}\r\n".to_owned(),
        _ => format!("{name}\r\n"),
    };
    let directory = tempfile::tempdir().unwrap();
    let source = crate::tiny(directory.path(), "source");
    let plain = directory.path().join("plain");
    fs::create_dir_all(&plain).unwrap();
    let own = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ];
    for name in own {
        fs::copy(source.files.join(name), plain.join(name)).unwrap();
    }
    for name in stray.iter().map(|&(path, ..)| path).chain(kept) {
        fs::create_dir_all(plain.join(name).parent().unwrap()).unwrap();
        fs::write(plain.join(name), content(name)).unwrap();
    }
    // No part of a model, and copied at every step it would fill the disk. A file with a hole takes no room.
    fs::File::create(plain.join("data.parquet")).unwrap().set_len((64 << 20) + 1).unwrap();
    // Would never end.
    std::os::unix::fs::symlink(&plain, plain.join("figures/again")).unwrap();

    let left_out = side_files::left_out(&Policy::open(&plain).unwrap()).unwrap();
    let found: BTreeSet<(String, &str)> =
        left_out.into_iter().map(|found| (found.path, found.reason)).collect();
    let mut expected: BTreeSet<(String, &str)> =
        stray.iter().map(|&(_, reason, named)| (named.to_owned(), reason)).collect();
    expected.insert(("data.parquet".to_owned(), "larger than 64 MiB"));
    expected.insert(("figures/again".to_owned() + "/", "a link to a folder"));
    assert_eq!(found, expected);

    let made = initial::from_directory(&directory.path().join("made"), &plain, None).unwrap();
    let copied: BTreeSet<String> = crate::contents(&made.files).into_keys().collect();
    let expected: BTreeSet<String> =
        own.into_iter().chain(kept).chain(["version.json"]).map(str::to_owned).collect();
    assert_eq!(copied, expected);
    for name in own.into_iter().chain(kept) {
        assert!(fs::read(plain.join(name)).unwrap() == fs::read(made.files.join(name)).unwrap(), "{name}");
    }
    // The copy has nothing more to leave behind.
    assert_eq!(side_files::left_out(&made).unwrap(), []);
}
