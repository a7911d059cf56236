//! Damaged and malicious checkpoints: `policy check`, `policy init`, `rollout` and `update` each fail with one sentence that
//! names the defect and exit code 65, publish nothing, and neither hang nor panic.

use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use troupe_tests::{must, root, run};

/// A checkpoint of three shards as version 0 of a policy directory, to be damaged. Its digest is already recorded, so that
/// hashing does not find the damage first.
fn checkpoint(folder: &Path) -> std::path::PathBuf {
    let golden = root().join("tests/golden/qwen3-6-3-untied");
    must(&format!("policy init {} --from {}", folder.join("policy").display(), golden.display()));
    folder.join("policy/step-000000")
}

/// Replaces the header of a safetensors file; `change` gets it as JSON.
fn with_header(path: &Path, change: impl FnOnce(&mut Value)) {
    let bytes = fs::read(path).expect("a shard");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    change(&mut header);
    let text = header.to_string();
    let parts = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &bytes[8 + length..]];
    fs::write(path, parts.concat()).expect("written");
}

fn with_json(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON");
    change(&mut value);
    fs::write(path, value.to_string()).expect("written");
}

const SHARD: &str = "model-00002-of-00003.safetensors";
const NORM: &str = "model.norm.weight";

type Damage = fn(&Path);

/// Name, damage, and a part of the message.
const CASES: &[(&str, Damage, &str)] = &[
    (
        "a truncated shard",
        |files| {
            let bytes = fs::read(files.join(SHARD)).expect("a shard");
            fs::write(files.join(SHARD), &bytes[..bytes.len() - 100]).expect("written");
        },
        "of the data but the file has",
    ),
    (
        "a shard cut within its header",
        |files| {
            let bytes = fs::read(files.join(SHARD)).expect("a shard");
            fs::write(files.join(SHARD), &bytes[..40]).expect("written");
        },
        "bytes but the file has 40",
    ),
    ("an empty shard", |files| fs::write(files.join(SHARD), "").expect("written"), "0 bytes is too short"),
    (
        "a header of 2^60 bytes",
        |files| {
            let mut bytes = fs::read(files.join(SHARD)).expect("a shard");
            bytes[..8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
            fs::write(files.join(SHARD), bytes).expect("written");
        },
        "more than 100000000",
    ),
    (
        "a header that is no JSON",
        |files| {
            let mut bytes = fs::read(files.join(SHARD)).expect("a shard");
            bytes[8] = b'!';
            fs::write(files.join(SHARD), bytes).expect("written");
        },
        "not a JSON object of tensors",
    ),
    (
        "a header nested without end",
        |files| {
            let text = "[".repeat(100_000);
            let parts = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()];
            fs::write(files.join(SHARD), parts.concat()).expect("written");
        },
        "not a JSON object of tensors",
    ),
    (
        "a header that lies about a place",
        |files| {
            with_header(&files.join(SHARD), |header| {
                let tensors = header.as_object_mut().expect("an object");
                let (_, first) =
                    tensors.iter_mut().find(|(name, _)| *name != "__metadata__").expect("a tensor");
                first["data_offsets"] = json!([0, 1_u64 << 50]);
            })
        },
        "but spans 0..1125899906842624",
    ),
    (
        "a type that nobody knows",
        |files| {
            with_header(&files.join(SHARD), |header| {
                let tensors = header.as_object_mut().expect("an object");
                let (_, first) =
                    tensors.iter_mut().find(|(name, _)| *name != "__metadata__").expect("a tensor");
                first["dtype"] = json!("F3");
            })
        },
        "unknown type \"F3\"",
    ),
    (
        "is not a float",
        |files| {
            for shard in 1..=3 {
                with_header(&files.join(format!("model-0000{shard}-of-00003.safetensors")), |header| {
                    if let Some(norm) = header.get_mut(NORM) {
                        norm["dtype"] = json!("I32");
                    }
                });
            }
        },
        "is not a float",
    ),
    (
        "a tensor of another shape",
        |files| {
            for shard in 1..=3 {
                with_header(&files.join(format!("model-0000{shard}-of-00003.safetensors")), |header| {
                    if let Some(norm) = header.get_mut(NORM) {
                        norm["shape"] = json!([2, 20]);
                    }
                });
            }
        },
        "has shape [2, 20], expected [40]",
    ),
    ("a shard that is not there", |files| fs::remove_file(files.join(SHARD)).expect("removed"), SHARD),
    (
        "an index that names an absent file",
        |files| {
            with_json(&files.join("model.safetensors.index.json"), |index| {
                index["weight_map"][NORM] = json!("model-00009-of-00003.safetensors");
            });
        },
        "model-00009-of-00003.safetensors: no such file",
    ),
    (
        "an index that leads out of the directory",
        |files| {
            with_json(&files.join("model.safetensors.index.json"), |index| {
                index["weight_map"][NORM] = json!("../../elsewhere.safetensors");
            });
        },
        "is not a shard's name",
    ),
    (
        "an index without a tensor's shard",
        |files| {
            fs::write(files.join("model.safetensors.index.json"), "{\"weight_map\": {}}").expect("written");
        },
        "no weight_map that names a shard",
    ),
    (
        "a shard that is a link to itself",
        |files| {
            fs::remove_file(files.join(SHARD)).expect("removed");
            symlink(SHARD, files.join(SHARD)).expect("linked");
        },
        "links form a loop",
    ),
    (
        "a configuration that is a link to itself",
        |files| {
            fs::remove_file(files.join("config.json")).expect("removed");
            symlink("config.json", files.join("config.json")).expect("linked");
        },
        "config.json",
    ),
    (
        "weights that are a link in a circle",
        |files| {
            symlink("b", files.join("model.safetensors")).expect("linked");
            symlink("model.safetensors", files.join("b")).expect("linked");
        },
        "links form a loop",
    ),
    (
        "a shard that is a pipe",
        |files| {
            fs::remove_file(files.join(SHARD)).expect("removed");
            must(&format!("mkfifo {}", files.join(SHARD).display()));
        },
        "not a file",
    ),
    (
        "a shard that is a directory",
        |files| {
            fs::remove_file(files.join(SHARD)).expect("removed");
            fs::create_dir(files.join(SHARD)).expect("made");
        },
        "not a file",
    ),
    (
        "absurd sizes",
        |files| {
            with_json(&files.join("config.json"), |config| {
                config["hidden_size"] = json!(1_u64 << 62);
            })
        },
        "hidden_size",
    ),
    (
        "sizes that only just fit",
        |files| {
            with_json(&files.join("config.json"), |config| {
                config["vocab_size"] = json!(1 << 24);
                config["num_hidden_layers"] = json!(4096);
                config["layer_types"] = json!(vec!["full_attention"; 4096]);
                config["intermediate_size"] = json!(1 << 24);
            })
        },
        "has shape",
    ),
    (
        "negative and fractional sizes",
        |files| {
            with_json(&files.join("config.json"), |config| {
                config["num_hidden_layers"] = json!(-3);
            })
        },
        "num_hidden_layers",
    ),
    (
        "no layers",
        |files| {
            with_json(&files.join("config.json"), |config| {
                config["num_hidden_layers"] = json!(0);
            })
        },
        "num_hidden_layers",
    ),
    (
        "a head that no kernel has",
        |files| {
            with_json(&files.join("config.json"), |config| {
                config["head_dim"] = json!(24);
            })
        },
        "head_dim is 24",
    ),
    (
        "another kind of model",
        |files| {
            with_json(&files.join("config.json"), |config| {
                config["model_type"] = json!("mamba");
            })
        },
        "\"mamba\"",
    ),
    (
        "a RoPE type that is not implemented",
        |files| {
            with_json(&files.join("config.json"), |config| {
                config["rope_parameters"] = json!({"rope_type": "spiral", "rope_theta": 1e6, "factor": 4.0});
            })
        },
        "\"spiral\"",
    ),
];

#[test]
fn every_damage_is_a_sentence_and_an_exit_code() {
    let task = "envs tasks plan-path --count 1 --seed 1";
    for (name, damage, expected) in CASES {
        let folder = tempfile::tempdir().expect("a folder");
        let files = checkpoint(folder.path());
        let policy = folder.path().join("policy").display().to_string();
        let version = must(&format!("policy check {policy} | sed -n 's/^version *//p'"));
        let samples = fs::read_to_string(root().join("tests/golden/qwen3-6-3-untied/samples.jsonl"));
        let samples = samples.expect("a stream").replace("0:DIGEST", version.trim());
        let stream = folder.path().join("samples.jsonl");
        fs::write(&stream, samples).expect("written");
        damage(&files);
        for (program, command) in [
            ("policy", format!("policy check {policy}")),
            ("policy", format!("policy init {policy}-2 --from {policy}")),
            ("rollout", format!("{task} | rollout --policy {policy} --max-tokens 4")),
            ("update", format!("update --policy {policy} < {}", stream.display())),
        ] {
            let (code, _, stderr) = run(&format!("timeout 60 bash -c 'set -o pipefail; {command}'"));
            let message = stderr.lines().next().unwrap_or_default();
            assert_eq!(code, 65, "{name}: {command}: {stderr}");
            assert!(message.starts_with(&format!("{program}: ")), "{name}: {command}: {stderr}");
            assert!(stderr.contains(expected), "{name}: {command}: {stderr} instead of {expected}");
            assert!(
                stderr.lines().count() == 2
                    && stderr.lines().all(|line| line.starts_with("hint: ") != (line == message)),
                "{name}: {command}: {stderr}"
            );
        }
        assert!(!folder.path().join("policy/step-000001").exists(), "{name}: something was published");
        assert!(!folder.path().join("policy-2").exists(), "{name}: something was made");
    }
}

#[test]
fn random_weights_beyond_the_memory_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("config.json");
    let sizes = json!({
        "model_type": "qwen3", "hidden_size": 1 << 24, "intermediate_size": 1 << 24, "num_hidden_layers": 4096,
        "num_attention_heads": 4, "vocab_size": 1 << 24, "max_position_embeddings": 128, "head_dim": 64,
    });
    fs::write(&config, sizes.to_string()).expect("written");
    let policy = folder.path().join("policy");
    let (code, _, stderr) = run(&format!("policy init {} --config {}", policy.display(), config.display()));
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("random weights of this size take"), "{stderr}");
    assert!(!policy.exists());
}

/// Sizes that a file or a line declares, without having them, in a process with 1 GB: a sentence, where an allocation that
/// believed them would abort.
#[test]
fn what_declares_much_is_refused_with_little_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = checkpoint(folder.path());
    let policy = folder.path().join("policy").display().to_string();
    let weights = files.join(SHARD);
    let whole = fs::read(&weights).expect("weights");
    let tensor = |shape: &str, end: u64| {
        format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,{end}]}}}}")
    };
    let many: Vec<String> = (0..300_000)
        .map(|number| format!("\"t{number}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"))
        .collect();
    for (name, length, header) in [
        ("a header beyond the file", u64::MAX, String::new()),
        ("a header of 2 GiB in a file of 3", 2 << 30, String::new()),
        ("a header of 99 MB of nothing", 99_000_000, String::new()),
        ("a header of many tensors", 0, format!("{{{}}}", many.join(","))),
        ("a tensor beyond all memory", 0, tensor("[4294967296,4294967296]", u64::MAX)),
        ("a tensor of 2^62 bytes", 0, tensor("[1152921504606846976]", 1 << 62)),
        ("a tensor of a million axes", 0, tensor(&format!("{:?}", vec![1; 1_000_000]), 4)),
    ] {
        let length = if header.is_empty() { length } else { header.len() as u64 };
        let _ = fs::remove_file(&weights);
        fs::write(&weights, [&length.to_le_bytes()[..], header.as_bytes()].concat()).expect("written");
        let file = fs::File::options().write(true).open(&weights).expect("the file");
        file.set_len((3 << 30).max(header.len() as u64)).expect("a sparse file");
        refused(name, &format!("policy check {policy}"));
    }
    fs::remove_file(&weights).expect("removed");
    fs::write(&weights, whole).expect("written");
    let config = fs::read_to_string(files.join("config.json")).expect("text");
    for name in ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"] {
        let mut large: Value = serde_json::from_str(&config).expect("JSON");
        large[name] = (1 << 24).into();
        let path = files.join("config.json");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, large.to_string()).expect("written");
        refused(name, &format!("policy check {policy}"));
    }
    let most = u32::MAX;
    let sample = format!(
        r#"{{"type":"sample","v":1,"id":"a","episode":"e","turn":{most},"agent":"x","branch":0,"branches":{most},"group":"g","group_size":{most},"selected":true,"reward":1,"prompt_ids":[{most}],"completion_ids":[{most}],"policy_version":"0:00000000"}}"#
    );
    for program in ["group", "advantage", "advantage --credit return", "update --policy"] {
        let sample = match program {
            "group" => sample.replace(&format!(r#""group":"g","group_size":{most},"#), ""),
            _ => sample.clone(),
        };
        let program =
            if program.ends_with("policy") { format!("{program} {policy}") } else { program.to_owned() };
        refused(
            &program,
            &format!(
                "printf '%s\\n' '{sample}' '{{\"type\":\"end\",\"v\":1,\"stage\":\"s\",\"ok\":true}}' | {program}"
            ),
        );
    }
}

/// Runs a command with 1 GB of memory; its last program must refuse with a sentence.
fn refused(name: &str, command: &str) {
    let (code, _, stderr) =
        run(&format!("timeout 60 bash -c 'ulimit -v 1000000; {}'", command.replace('\'', "'\\''")));
    assert!([65, 74].contains(&code), "{name}: exit code {code}: {stderr}");
    assert!(!stderr.contains("memory allocation of") && !stderr.contains("panicked"), "{name}: {stderr}");
    assert!(stderr.lines().count() <= 2 && !stderr.is_empty(), "{name}: {stderr}");
}
