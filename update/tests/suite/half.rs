//! Checkpoints stored in 16 bits: published weights keep their type, trained weights are f32 to the last bit.

use crate::common::{GOLDEN, Place, golden, masters, stream, version, weights};
use clap::Parser;
use device::Sim;
use policy::config::Config;
use policy::directory::Policy;
use policy::retention::Retention;
use policy::weights::{ElementType, Weights};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use update::arguments::Arguments;
use update::backend::Half;
use update::checkpoint::{Checkpoint, TrainerState};
use update::learner::{DeviceLearner, Learner, Workers};
use update::model::{DeviceMemory, MemoryPlan, MemoryRequest};
use update::optimizer::on_device::moment_bytes;
use update::publish::{Change, NextVersion, gather_state_on_rank0, publish_next};
use update::ranks::SingleProcess;

const PLAIN: &str = "--optimizer adamw --lr 3e-4 --weight-decay 0.01";

/// Rewrites the weights of a policy's version 0 in another type, each value first rounded to what all types hold.
fn store(root: &Path, dtype: &str) {
    let path = root.join("step-000000/model.safetensors");
    let (mut header, mut data) = (Map::new(), Vec::new());
    {
        let old = Weights::open_file(&path).unwrap();
        for name in old.names() {
            let start = data.len();
            for value in old.to_f32(name).unwrap() {
                let rounded = half::f16::from_f32(half::bf16::from_f32(value).to_f32());
                match dtype {
                    "BF16" => data.extend(half::bf16::from_f32(rounded.to_f32()).to_le_bytes()),
                    "F16" => data.extend(rounded.to_le_bytes()),
                    _ => data.extend(rounded.to_f32().to_le_bytes()),
                }
            }
            let shape = old.tensor(name).unwrap().shape;
            header.insert(
                name.to_owned(),
                json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }),
            );
        }
    }
    let header = Value::Object(header).to_string();
    fs::remove_file(&path).unwrap();
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
}

fn policy(place: &Place, name: &str, dtype: &str) -> PathBuf {
    let root = place.policy(name, GOLDEN);
    store(&root, dtype);
    root
}

/// A twin of the same numbers in f32 takes the same first step: its weights are the masters.
#[test]
fn the_masters_are_what_an_f32_checkpoint_becomes() {
    for dtype in ["BF16", "F16"] {
        let place = Place::new();
        let (narrow, wide) = (policy(&place, "narrow", dtype), policy(&place, "wide", "F32"));
        let before = weights(&wide);
        place.update(&format!("--policy narrow {PLAIN}"), &stream(GOLDEN, &version(&narrow))).ok();
        place.update(&format!("--policy wide {PLAIN}"), &stream(GOLDEN, &version(&wide))).ok();
        let (after, masters) = (weights(&wide), masters(&narrow));
        let (mut moved, mut lost) = (0, 0);
        for (name, published) in weights(&narrow) {
            for (index, &published) in published.iter().enumerate() {
                let (wide, master) = (after[&name][index], f32::from_bits(masters[&name][index]));
                // The one master that rounding cannot be undone for is moved by its last bit.
                let tie = wide.to_bits() & 0xffff == 0x8000 && master.to_bits() == wide.to_bits() + 1;
                assert!(
                    master.to_bits() == wide.to_bits() || tie,
                    "{dtype} {name}[{index}]: {master} not {wide}"
                );
                let rounded = match dtype {
                    "BF16" => half::bf16::from_f32(master).to_f32(),
                    _ => half::f16::from_f32(master).to_f32(),
                };
                assert_eq!(published.to_bits(), rounded.to_bits(), "{dtype} {name}[{index}]");
                moved += usize::from(wide.to_bits() != before[&name][index].to_bits());
                lost += usize::from(published.to_bits() == before[&name][index].to_bits());
            }
        }
        assert!(moved > 4000 && lost > 100, "{dtype}: {moved} moved, {lost} of them less than a rounding");
    }
}

/// Below 16-bit weights lie f32 masters, whatever config.json says of their type.
#[test]
fn a_plan_counts_the_masters() {
    for (dtype, said) in [("F32", "float32"), ("F32", "bfloat16"), ("BF16", "float32"), ("F16", "float16")] {
        let place = Place::new();
        let root = policy(&place, "p", dtype);
        let path = root.join("step-000000/config.json");
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        config.as_object_mut().unwrap().remove("dtype");
        config["torch_dtype"] = json!(said);
        fs::write(&path, config.to_string()).unwrap();
        let outcome = place
            .update("--policy p --dry-run --threads 1 --optimizer adamw", &stream(GOLDEN, &version(&root)))
            .ok();
        let plan = outcome.of_type("plan").remove(0);
        let parameters = plan["parameters"].as_u64().unwrap();
        // Lower halves complete bf16 weights to their masters.
        let size = match dtype {
            "F32" => 4,
            "BF16" => 6,
            _ => 8,
        };
        assert_eq!(plan["bytes"]["weights"], size * parameters, "{dtype} {said}");
        assert_eq!(plan["bytes"]["moments"], 8 * parameters, "{dtype} {said}");
        assert_eq!(plan["trainable_parameters"], parameters);
    }
}

/// What one call leaves is what the next begins with: a step that moves nothing keeps every bit.
#[test]
fn the_masters_survive_from_call_to_call() {
    for dtype in ["BF16", "F16"] {
        let place = Place::new();
        let root = policy(&place, "p", dtype);
        place.update(&format!("--policy p {PLAIN}"), &stream(GOLDEN, &version(&root))).ok();
        let (first, published) = (masters(&root), weights(&root));
        place.update("--policy p --optimizer adamw --lr 0", &stream(GOLDEN, &version(&root))).ok();
        assert!(version(&root).starts_with("2:"));
        assert!(masters(&root) == first, "{dtype}: masters moved between calls");
        assert!(weights(&root) == published, "{dtype}: published weights moved between calls");
    }
}

/// Every golden checkpoint published again without training, in its files and types: the same bytes, so that
/// `transformers` computes the same logits from them.
#[test]
fn published_without_training_is_the_same_checkpoint() {
    let folder = golden(GOLDEN).parent().unwrap().to_owned();
    let mut types = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !golden(&name).join("config.json").exists() {
            continue;
        }
        let place = Place::new();
        let root = place.policy("p", &name);
        let samples = stream(GOLDEN, &version(&root));
        place.update("--policy p --optimizer sgd --lr 0 --max-logprob-gap 0", &samples).ok();
        let (old, new) = (root.join("step-000000"), root.join("step-000001"));
        for file in fs::read_dir(&old).unwrap() {
            let file = file.unwrap().file_name();
            assert!(
                fs::read(old.join(&file)).unwrap() == fs::read(new.join(&file)).unwrap(),
                "{name}: {file:?}"
            );
        }
        let weights = Weights::open(&new).unwrap();
        types.push(weights.tensor("model.norm.weight").unwrap().dtype);
    }
    for dtype in [ElementType::F32, ElementType::BF16, ElementType::F16] {
        assert!(types.contains(&dtype), "{dtype:?} among {types:?}");
    }
}

/// A tensor of several pieces, its master and its moments: to the simulated device and back, every byte of both files.
#[test]
fn tensors_copied_in_pieces_are_whole() {
    for dtype in ["bfloat16", "float16", "float32"] {
        let place = Place::new();
        let config = json!({
            "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 140_000,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "hidden_act": "silu",
            "attention_bias": false, "tie_word_embeddings": true, "torch_dtype": dtype,
        });
        let (file, root) = (place.folder.path().join("config.json"), place.folder.path().join("p"));
        fs::write(&file, config.to_string()).unwrap();
        policy::initial::from_config(&root, &file, 3).unwrap();
        const { assert!(140_000 * 16 > 2 * policy::publish::PIECE) };

        let read = |step: &str, file: &str| fs::read(root.join(step).join(file)).unwrap();
        let initial = read("step-000000", "model.safetensors");
        place.update(&format!("--policy p {PLAIN}"), &stream(GOLDEN, &version(&root))).ok();
        assert!(read("step-000001", "model.safetensors") != initial);
        let arguments = format!("update --policy p {PLAIN}");
        let settings = Arguments::try_parse_from(arguments.split(' ')).unwrap().settings().unwrap();
        let settings = settings.training.optimizer;
        let method = settings.method;
        let from = Policy::open(&root).unwrap();
        let config = Config::load(from.model()).unwrap();
        let checkpoint = Checkpoint::open(&from, &config).unwrap();
        let state = checkpoint.state(method, "clip").unwrap();
        let request = MemoryRequest {
            tokens: 8,
            largest: 8,
            rows: 8,
            part: 0,
            positions: 8,
            moments: Some(moment_bytes(method)),
            ranks: 1,
            waiting: 0,
            half: Half::BFloat16,
        };
        let available = DeviceMemory { free: 8 << 30, workspace: 0 };
        let plan = MemoryPlan::new(&config, None, request, available).unwrap();
        let (device, workers) = (Sim::new(1, 0).unwrap(), Workers { ranks: &SingleProcess, threads: 1 });
        let mut learner =
            DeviceLearner::new(device, &plan, &checkpoint, settings, state.as_ref(), workers).unwrap();
        let notes = TrainerState {
            optimizer: record::stage::choice(&method),
            objective: "clip".to_owned(),
            optimizer_steps: learner.optimizer_steps(),
            loss_scale: None,
            settings: Map::new(),
            metrics: "{}".to_owned(),
        };
        let (retention, formats) = (Retention { keep: 9, pinned: &[] }, checkpoint.trained.formats());
        gather_state_on_rank0(&SingleProcess, &formats.layout, &mut learner, method, |state| {
            let (input, change, trainer) = ("again", Change::All, Some(&notes));
            publish_next(&from, &NextVersion { formats, state, input, change, trainer }, &retention)
        })
        .unwrap();
        for file in ["model.safetensors", "optimizer.safetensors"] {
            assert!(read("step-000001", file) == read("step-000002", file), "{dtype}: {file}");
        }
        policy::directory::Policy::open(&root).unwrap().verify().unwrap();
    }
}

/// What another processor computes is what this one computes when it is told to.
#[test]
fn the_instruction_set_that_is_asked_for_gives_the_bytes_of_the_others() {
    let trained = |arguments: &str, dtype: &str| {
        let place = Place::new();
        let root = policy(&place, "p", "F32");
        let input = stream(GOLDEN, &version(&root));
        let done = place.update(&format!("--policy p {PLAIN} --dtype {dtype} {arguments}"), &input);
        (done.code, done.stderr, version(&root))
    };
    for dtype in ["float32", "bfloat16"] {
        let all = ["avx512-bf16", "avx512", "avx2", "portable"]
            .map(|isa| (isa, trained(&format!("--isa {isa}"), dtype)));
        let here: Vec<_> = all.iter().filter(|(_, (code, ..))| *code == 0).collect();
        assert!(!here.is_empty(), "{all:?}");
        let own = trained("", dtype);
        for (isa, (_, stderr, version)) in here.iter().filter(|(isa, _)| *isa != "portable") {
            assert_eq!(*version, own.2, "{isa} in {dtype}: {stderr}");
        }
        for (isa, (code, stderr, version)) in all.iter().filter(|(_, (code, ..))| *code != 0) {
            assert_eq!((*code, version.starts_with("0:")), (69, true), "{isa}: {stderr}");
            assert!(stderr.contains(&format!("--isa {isa}: this processor has no {isa}, only")), "{stderr}");
        }
    }
    let (code, stderr, version) = trained("--isa avx3", "float32");
    assert!(
        (code, version.starts_with("0:")) == (2, true) && stderr.contains("avx512-bf16"),
        "{code} {stderr}"
    );
    let (code, stderr, _) = trained("--isa avx2 --device sim", "float32");
    assert_eq!(code, 2, "a device has instructions of its own: {stderr}");
}
