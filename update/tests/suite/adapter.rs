//! Low-rank adapters against PEFT and autograd (tests/golden/make_adapter_goldens.py), on the simulated device against the
//! CPU, and what a step leaves alone.

use crate::common::{Place, contents, edited, golden, stream, version};
use crate::golden::load;
use crate::small::{Random, Weighted, relative, samples};
use device::{Device, Sim};
use policy::adapter::{Adapter, Target};
use policy::config::Config;
use policy::directory::Policy;
use policy::initial::from_base;
use policy::weights::Weights;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use update::backend::Half;
use update::checkpoint::Checkpoint;
use update::model::{
    DeviceMemory, DeviceModel, LoraAdapter, MemoryPlan, MemoryRequest, Model, Parameters, Scores,
};
use update::tree::{Sequence, Tree, pack};

const PLAIN: &str = "--optimizer sgd --lr 10 --weight-decay 0 --max-grad-norm 0";

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn adapters() -> Vec<String> {
    let entries = fs::read_dir(golden("adapters")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The base's name, and a policy directory with a golden adapter over a copy of it.
fn policy(place: &Place, name: &str, adapter: &str) -> (String, PathBuf) {
    let source = golden("adapters").join(adapter);
    let base = read(&source.join("logprobs.json"))["base"].as_str().unwrap().to_owned();
    let folder = place.folder.path();
    if !folder.join("base").exists() {
        place.policy("base", &base);
    }
    let files = folder.join(name).join("step-000000");
    fs::create_dir_all(&files).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(source.join(file), files.join(file)).unwrap();
    }
    let root = folder.join(name);
    std::os::unix::fs::symlink("step-000000", root.join("current")).unwrap();
    std::os::unix::fs::symlink("../base/step-000000", root.join("base")).unwrap();
    (base, root)
}

#[test]
fn logprobs_are_those_of_peft() {
    assert!(adapters().len() >= 5);
    for adapter in adapters() {
        let place = Place::new();
        let policy = Policy::open(&policy(&place, "p", &adapter).1).unwrap();
        let config = Config::load(policy.model()).unwrap();
        let (model, weights) = Checkpoint::open(&policy, &config).unwrap().on_host().unwrap();
        let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        let mut worst = 0.0_f32;
        for case in
            read(&golden("adapters").join(&adapter).join("logprobs.json"))["cases"].as_array().unwrap()
        {
            let prompt = ids(&case["prompt_ids"]);
            for item in case["completions"].as_array().unwrap() {
                let completion = ids(&item["completion_ids"]);
                let tree = [pack(&[Sequence { prompt: &prompt, completion: &completion }], true)];
                for (temperature, key) in [(1.0, "logprobs"), (0.7, "logprobs_temperature_0.7")] {
                    let found = model.logprobs(weights.forward(), &tree, temperature, 1);
                    let wanted: Vec<f32> = serde_json::from_value(item[key].clone()).unwrap();
                    assert_eq!(found[0].logprobs.len(), wanted.len());
                    for (found, wanted) in found[0].logprobs.iter().zip(wanted) {
                        worst = std::cmp::max_by(worst, (found - wanted).abs(), f32::total_cmp);
                    }
                }
            }
        }
        println!("{adapter}: largest difference {worst:e}");
        assert!(worst <= 1e-4, "{adapter}: {worst:e}");
    }
}

#[test]
fn a_step_is_the_gradient_of_autograd_and_leaves_the_base_alone() {
    for adapter in ["all", "some", "mistral", "smollm3", "biases", "phi3", "gemma3", "moe"] {
        let place = Place::new();
        let (base, root) = policy(&place, "p", adapter);
        let (before_base, files) = (contents(&place.folder.path().join("base")), root.join("step-000000"));
        let outcome = place.update(&format!("--policy p {PLAIN}"), &stream(&base, &version(&root))).ok();
        let expected = read(&golden("adapters").join(adapter).join("gradient.json"));
        let loss = outcome.metrics()["loss"].as_f64().unwrap();
        assert!((loss - expected["loss"].as_f64().unwrap()).abs() < 1e-5, "{adapter}: loss {loss}");

        let weights = |files: &Path| Weights::open_file(&files.join("adapter_model.safetensors")).unwrap();
        let (before, after) = (weights(&files), weights(&root.join("current")));
        let gradient =
            Weights::open_file(&golden("adapters").join(adapter).join("gradient.safetensors")).unwrap();
        let mut worst = 0.0_f64;
        for name in before.names() {
            let wanted = gradient.to_f32(name).unwrap();
            let (mut squares, mut total) = (0.0, 0.0);
            for ((old, new), wanted) in
                before.to_f32(name).unwrap().iter().zip(after.to_f32(name).unwrap()).zip(wanted)
            {
                let step = (f64::from(*old) - f64::from(new)) / 10.0;
                squares += (step - f64::from(wanted)).powi(2);
                total += f64::from(wanted).powi(2);
            }
            let difference = (squares / total).sqrt();
            worst = worst.max(difference);
            assert!(difference <= 1e-4, "{adapter} {name}: relative L2 {difference:e}");
        }
        println!("{adapter}: largest relative difference of a tensor {worst:e}");
        assert_eq!(gradient.names().count(), before.names().count());
        assert!(contents(&place.folder.path().join("base")) == before_base, "the base was written to");
        // What PEFT reads is all there, and the version names its base.
        let made = Policy::open(&root).unwrap();
        assert_eq!(made.version.step, 1);
        made.verify().unwrap();
        assert_eq!(read(&made.files.join("adapter_config.json")), read(&files.join("adapter_config.json")));
        assert!(!made.files.join("model.safetensors").exists());
        assert_eq!(read(&made.files.join("version.json"))["base"].as_str().unwrap().len(), 64);
    }
}

#[test]
fn roles_with_adapters_of_one_base_train_in_one_call() {
    let place = Place::new();
    let (base, first) = policy(&place, "first", "all");
    let (_, second) = policy(&place, "second", "some");
    let mut lines = String::new();
    for (agent, root) in [("a", &first), ("b", &second)] {
        let own = edited(&stream(&base, &version(root)), |_, sample| {
            for key in ["id", "group", "episode"] {
                sample[key] = json!(format!("{agent}{}", sample[key].as_str().unwrap()));
            }
            sample["agent"] = json!(agent);
        });
        lines.extend(
            own.lines()
                .filter(|line| agent == "b" || !line.contains("\"end\""))
                .map(|line| format!("{line}\n")),
        );
    }
    let plans = place.update("--policy a=first --policy b=second --dry-run", &lines).ok().of_type("plan");
    let count =
        |weights: Weights| -> usize { weights.names().map(|name| weights.to_f32(name).unwrap().len()).sum() };
    let frozen = count(Weights::open(&golden(&base)).unwrap());
    for (plan, root) in plans.iter().zip([&first, &second]) {
        let own = count(Weights::open_file(&root.join("current/adapter_model.safetensors")).unwrap());
        assert_eq!(plan["trainable_parameters"], own, "{plan}");
        assert_eq!(plan["parameters"], frozen + own, "{plan}");
    }
    let outcome = place.update("--policy a=first --policy b=second --lr 1e-3", &lines).ok();
    assert_eq!(outcome.of_type("metrics").len(), 2);
    assert!(version(&first).starts_with("1:") && version(&second).starts_with("1:"));
    // The optimizer's state is the adapter's, and goes on.
    let state = Weights::open_file(&first.join("current/optimizer.safetensors")).unwrap();
    assert!(state.names().all(|name| name.contains("lora_")), "state of frozen weights was kept");
}

#[test]
fn an_adapter_over_other_weights_is_refused() {
    let place = Place::new();
    let (base, root) = policy(&place, "p", "all");
    place.update("--policy p --lr 1e-3", &stream(&base, &version(&root))).ok();
    let shard = place.folder.path().join("base/step-000000/model-00001-of-00003.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let outcome = place.update("--policy p --check", &stream(&base, "1:00000000"));
    assert_eq!(outcome.code, 65, "{outcome:?}");
    assert!(outcome.stderr.contains("has other weights than this adapter was made for"), "{outcome:?}");
}

/// An adapter of rank 8, which devices take, over a golden base, and random values for it; all numbers are bf16's.
fn random_adapter(name: &str) -> (Model, Parameters) {
    let (model, mut base) = load(&golden(name));
    // Where a part of a joint projection is adapted and the rest is not.
    let targets = vec![Target::Query, Target::Value, Target::Output, Target::Gate, Target::Down];
    let adapter = Adapter::new(8, 16.0, targets);
    let low_rank = LoraAdapter::new(&adapter, model.config());
    let round = |values: &mut [f32]| {
        values.iter_mut().for_each(|value| *value = half::bf16::from_f32(*value).to_f32());
    };
    round(&mut base.values);
    let model = model.adapted(low_rank, Arc::new(base));
    let mut random = Random(31);
    let Ok(trained) = model.parameters(|_, values| {
        values.iter_mut().for_each(|value| *value = 0.2 * random.signed());
        round(values);
        Ok::<(), std::convert::Infallible>(())
    });
    (model, trained)
}

#[test]
fn a_device_computes_what_the_processor_does() {
    for name in ["qwen3-6-3-untied", "qwen2-2-1-bias"] {
        let (model, trained) = random_adapter(name);
        let groups = samples(&mut Random(32), model.config().vocab_size, 4);
        let trees: Vec<Tree> = groups
            .iter()
            .map(|group| {
                let sequences: Vec<Sequence> =
                    group.iter().map(|(prompt, completion)| Sequence { prompt, completion }).collect();
                pack(&sequences, true)
            })
            .collect();
        let mut wanted = model.gradients();
        let wanted_scores = model.accumulate(&trained, &trees, 0.8, 1, &mut wanted, &Weighted);
        let largest = trees.iter().map(Tree::len).max().unwrap();
        let wide = |values: &[f32]| -> Vec<f64> { values.iter().map(|&value| f64::from(value)).collect() };
        let mut bits: Option<Vec<f32>> = None;
        let cases = [(4096, false, 0), (4096, true, 1), (1, false, 2)];
        let cases = cases.map(|(tokens, recompute, seed)| (tokens, recompute, seed, Half::BFloat16));
        for (tokens, recompute, seed, half) in cases.into_iter().chain([(4096, false, 3, Half::Float16)]) {
            let request = MemoryRequest {
                tokens,
                largest,
                rows: 4096,
                part: 0,
                positions: 128,
                moments: Some(8),
                ranks: 1,
                waiting: 0,
                half,
            };
            let available = DeviceMemory { free: 8 << 30, workspace: 0 };
            let (adapter, base) = model.adapter().unwrap();
            let plan = MemoryPlan::new(model.config(), Some(adapter), request, available).unwrap();
            // One byte less than everything kept takes is layers computed again.
            let available = DeviceMemory { free: (1 << 30) + plan.bytes.total - 1, workspace: 0 };
            let tight = MemoryPlan::new(model.config(), Some(adapter), request, available);
            let plan = if recompute { tight.unwrap() } else { plan };
            assert_eq!(plan.recompute, recompute);
            let device = Sim::new(2, seed).unwrap();
            let spec = Some((adapter, &trained.values[..]));
            let mut device_model = DeviceModel::new(device, model.config(), spec, base, &plan).unwrap();
            let scores = device_model.accumulate(&trees, 0.8, &Weighted).unwrap();
            let mut found = model.gradients();
            device_model.gradients(&mut found.values).unwrap();
            let error = relative(&found.values, &wide(&wanted.values));
            let all = |scores: &[Scores]| -> Vec<f32> {
                scores.iter().flat_map(|scores| scores.logprobs.clone()).collect()
            };
            let logprobs = relative(&all(&scores), &wide(&all(&wanted_scores)));
            println!(
                "{name} in {half:?}, {tokens} tokens, recompute {recompute}: gradient {error:.1e}, logprobs {logprobs:.1e}"
            );
            // The bounds of whole decoders, see device.rs.
            let share = if half == Half::Float16 { 1.0 / 8.0 } else { 1.0 };
            assert!(
                error <= 2.5e-2 * share && logprobs <= 1.5e-2 * share,
                "{name}: {error:.1e}, {logprobs:.1e}"
            );
            assert_eq!(
                device_model.device().arena().unwrap().usage().1,
                plan.bytes.total,
                "not what was planned"
            );
            // Layers computed again give the same bits, unless the micro-batches are other ones.
            if plan.tokens >= 4096 && half == Half::BFloat16 {
                assert!(*bits.get_or_insert_with(|| found.values.clone()) == found.values);
            }
            // Other values are other log-probabilities.
            device_model.set_adapter(&vec![0.0; trained.values.len()]).unwrap();
            assert!(all(&device_model.logprobs(&trees, 0.8).unwrap()) != all(&scores));
        }
    }
}

#[test]
fn the_program_trains_an_adapter_on_the_simulated_device() {
    let name = "qwen3-6-3-untied";
    let new = Adapter::new(8, 16.0, Target::ALL.to_vec());
    let run = |device: &str| {
        let place = Place::new();
        let base = place.policy("base", name);
        let root = place.folder.path().join("p");
        let made = from_base(&root, &base, &new, 5).unwrap();
        let before = contents(&base);
        let arguments = format!("--policy p --lr 1e-3 --epochs 3 {device}");
        let metrics = place.update(&arguments, &stream(name, &made.version.to_string())).ok().metrics();
        assert!(contents(&base) == before, "the base was written to");
        let again = place.update(&format!("--policy p --lr 1e-3 {device}"), &stream(name, &version(&root)));
        assert_eq!(again.ok().metrics()["optimizer_state"], "continued");
        let norm = metrics["grad_norm"].as_f64().unwrap();
        let weights = Weights::open_file(&root.join("step-000001/adapter_model.safetensors")).unwrap();
        let moved: Vec<f32> = weights
            .names()
            .filter(|name| name.ends_with("lora_B.weight"))
            .flat_map(|name| weights.to_f32(name).unwrap())
            .collect();
        (norm, moved)
    };
    let ((wanted_norm, wanted), (norm, found)) = (run(""), run("--device sim --threads 2"));
    assert!((norm / wanted_norm - 1.0).abs() < 2e-2, "{norm} against {wanted_norm}");
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum() };
    let cosine = dot(&found, &wanted) / (dot(&found, &found) * dot(&wanted, &wanted)).sqrt();
    println!("cosine of the moves of B: {cosine:.4}");
    assert!(cosine > 0.97, "{cosine}");
}

#[test]
fn a_rank_that_devices_do_not_take_is_refused() {
    let place = Place::new();
    let (base, root) = policy(&place, "p", "all");
    let outcome = place.update("--policy p --device sim", &stream(&base, &version(&root)));
    assert_eq!(outcome.code, 2, "{outcome:?}");
    assert!(outcome.stderr.contains("its rank is not a multiple of 8"), "{outcome:?}");
}
