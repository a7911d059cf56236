//! Memory matches its plan: to the byte on a device, refused before anything is read if it cannot fit, and
//! printed for any geometry by `--dry-run`.

use crate::common;

use std::fs;

use crate::common::{GOLDEN, Place, one, published, stream, version};
use crate::golden::{Case, load};
use crate::small::Weighted;
use device::{Device, Sim};
use serde_json::{Value, json};
use update::backend::Half;
use update::model::{DeviceMemory, DeviceModel, MemoryPlan, MemoryRequest};
use update::optimizer::on_device::{DeviceOptimizer, moment_bytes};
use update::optimizer::{Method, Moment, Settings, StepScale};
use update::tree::pack;

#[test]
fn planned_memory_equals_the_memory_taken() {
    for name in ["qwen3-6-3-untied", "qwen2-2-1-bias", "llama-4-1-f16"] {
        let (model, parameters) = load(&common::golden(name));
        let case = Case::read(&common::golden(name));
        let sequences = case.sequences();
        let trees = [pack(&sequences, true)];
        let all = trees[0].len();
        let longest = sequences.iter().map(|s| s.prompt.len() + s.completion.len()).max().unwrap();
        for (method, recompute) in [
            (Some(Method::Adamw), false),
            (Some(Method::Adamw), true),
            (Some(Method::Sgd), true),
            (None, true),
        ] {
            let request = MemoryRequest {
                tokens: all,
                largest: all,
                rows: trees[0].rows.len(),
                part: 0,
                positions: longest,
                moments: method.map(moment_bytes),
                ranks: 1,
                waiting: 0,
                half: Half::BFloat16,
            };
            let plan_with = |free: u64| {
                MemoryPlan::new(model.config(), None, request, DeviceMemory { free, workspace: 0 })
            };
            let roomy = plan_with(8 << 30).unwrap();
            // One byte less than everything kept takes is layers computed again.
            let plan =
                if recompute { plan_with((1 << 30) + roomy.bytes.total - 1).unwrap_or(roomy) } else { roomy };
            assert_eq!(plan.recompute, recompute, "{name}: {plan:?}");
            let mut device_model =
                DeviceModel::new(Sim::new(2, 0).unwrap(), model.config(), None, &parameters, &plan).unwrap();
            match method {
                Some(method) => {
                    let settings = Settings {
                        method,
                        lr: 1e-3,
                        lr_other: 1e-3,
                        betas: (0.9, 0.99),
                        weight_decay: 0.0,
                        max_grad_norm: 0.0,
                    };
                    let mut moved = DeviceOptimizer::new(settings, &mut device_model).unwrap();
                    device_model.accumulate(&trees, 1.0, &Weighted).unwrap();
                    let norm = device_model.gradient_norm().unwrap();
                    moved.step(&mut device_model, StepScale { gradient: 1.0, norm, rate: 1.0 }).unwrap();
                    let mut masters = parameters.clone();
                    device_model.masters(0, &mut masters.values).unwrap();
                    moved.moment(&mut device_model, Moment::First, 0, 0, &mut masters.values[..8]).unwrap();
                }
                None => drop(device_model.logprobs(&trees, 1.0).unwrap()),
            }
            let (_, peak) = device_model.device().arena().unwrap().usage();
            println!(
                "{name} {method:?} recompute {recompute}: {} bytes planned, {peak} taken",
                plan.bytes.total
            );
            assert_eq!(peak, plan.bytes.total, "{name} {method:?} recompute {recompute}: {plan:?}");
        }
    }
}

/// With several ranks, in parts of one micro-batch and of several.
#[test]
fn planned_memory_of_ranks_is_taken_by_the_first() {
    let models = ["qwen3-6-3-untied", "qwen2-2-1-bias"].into_iter();
    for (name, half) in models.flat_map(|name| [(name, Half::BFloat16), (name, Half::Float16)]) {
        let (model, parameters) = load(&common::golden(name));
        let case = Case::read(&common::golden(name));
        let sequences = case.sequences();
        let trees = [pack(&sequences, true)];
        let all = trees[0].len();
        let longest = sequences.iter().map(|s| s.prompt.len() + s.completion.len()).max().unwrap();
        let mut before = u64::MAX;
        for (ranks, part, waiting) in [(1, all, 0), (2, 2 * all, 0), (2, all, 1), (4, all, 2)] {
            let request = MemoryRequest {
                tokens: all,
                largest: all,
                rows: trees[0].rows.len(),
                part,
                positions: longest,
                moments: Some(moment_bytes(Method::Adamw)),
                ranks,
                waiting,
                half,
            };
            let available = DeviceMemory { free: 8 << 30, workspace: 0 };
            let plan = MemoryPlan::new(model.config(), None, request, available).unwrap();
            assert_eq!(plan.windows, ranks > 1 && part <= all);
            assert_eq!(plan.waiting_on_device(), waiting);
            let weights = parameters.layout().len() as u64;
            let sim = Sim::new(2, 0).unwrap();
            let mut device_model = DeviceModel::new(sim, model.config(), None, &parameters, &plan).unwrap();
            let settings = Settings {
                method: Method::Adamw,
                lr: 1e-3,
                lr_other: 1e-3,
                betas: (0.9, 0.99),
                weight_decay: 0.0,
                max_grad_norm: 0.0,
            };
            let mut moved = DeviceOptimizer::new(settings, &mut device_model).unwrap();
            device_model.clear_gradients().unwrap();
            for _ in 0..2 {
                device_model.accumulate(&trees, 1.0, &Weighted).unwrap();
            }
            moved.step(&mut device_model, StepScale { gradient: 1.0, norm: 1.0, rate: 1.0 }).unwrap();
            let (_, peak) = device_model.device().arena().unwrap().usage();
            assert_eq!(peak, plan.bytes.total, "{name} {half:?} {ranks} ranks: {plan:?}");
            let waits = 4 * (waiting * device_model.share().len()) as u64;
            let state = plan.bytes.weights + plan.bytes.gradients + plan.bytes.moments - waits;
            println!("{name} {half:?} {ranks} ranks: {} bytes a weight", state as f64 / weights as f64);
            // The smaller model saves nothing with windows: they and the share of the sum are larger than its whole gradient,
            // and its layers have two pieces of the norm, which four ranks cannot divide further.
            let saves = name != "qwen2-2-1-bias" || !plan.windows;
            assert!(state < before || !saves, "{name} {half:?} {ranks} ranks: {plan:?}");
            before = state;
        }
    }
}

#[test]
fn the_program_takes_what_its_plan_says() {
    let (place, _, input) = one();
    let arguments = "--policy p --device sim --threads 2 --minibatches 2";
    let plan = place.update(&format!("{arguments} --dry-run"), &input).ok().of_type("plan").remove(0);
    let bytes = plan["bytes"].as_object().unwrap();
    let parts: u64 =
        bytes.iter().filter(|(name, _)| *name != "total").map(|(_, n)| n.as_u64().unwrap()).sum();
    assert_eq!(bytes["total"].as_u64().unwrap(), parts);
    let timing = place.update(arguments, &input).ok().metrics()["timing"].clone();
    assert_eq!(timing["device_memory_bytes"], bytes["total"], "{plan}");
}

#[test]
fn a_device_too_small_is_refused() {
    let (place, root, input) = one();
    let outcome = place.update("--policy p --device sim --device-memory 1.0738", &input);
    assert_eq!(outcome.code, 69, "{outcome:?}");
    assert!(outcome.stderr.contains("weights take"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("of which 1.1 GB are free\nhint: "), "{}", outcome.stderr);
    assert_eq!(outcome.end()["ok"], false);
    assert!(!published(&root));
    place.update("--policy p --device sim --device-memory 2", &input).ok();
    assert!(published(&root));
    let outcome = place.update("--policy p --device-memory 2", &input);
    assert_eq!(outcome.code, 2, "{outcome:?}");
    assert!(outcome.stderr.contains("--device-memory has no effect with --device cpu"), "{}", outcome.stderr);
}

/// Qwen3-8B's published configuration, without weights.
fn qwen3_8b(place: &Place) {
    let folder = place.folder.path().join("qwen3-8b");
    fs::create_dir(&folder).unwrap();
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151_936, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "tie_word_embeddings": false,
        "max_position_embeddings": 40_960, "torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": false,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn any_geometry_is_planned_without_weights_samples_or_a_gpu() {
    let place = Place::new();
    qwen3_8b(&place);
    let ask = |arguments: &str| {
        place.update(&format!("--policy qwen3-8b --dry-run --max-tokens-per-batch 32768 {arguments}"), "")
    };
    let plan = ask("--device sim --device-memory 150.2").ok().of_type("plan").remove(0);
    let bytes = |plan: &Value, name: &str| plan["bytes"][name].as_u64().unwrap();
    assert_eq!(plan["parameters"], 8_190_735_360u64);
    assert_eq!(plan["trainable_parameters"], plan["parameters"]);
    let state = bytes(&plan, "weights") + bytes(&plan, "gradients") + bytes(&plan, "moments");
    assert_eq!(state, 16 * 8_190_735_360);
    // On their way to the device and back weights and moments are in pieces.
    assert_eq!(plan["host_bytes"], json!(16 << 20));
    assert!(bytes(&plan, "total") <= 150_200_000_000, "{plan}");
    assert!(plan["tokens_at_once"].as_u64().unwrap() >= 4096, "{plan}");
    println!("{plan}");

    let outcome = ask("--device sim --device-memory 80");
    assert_eq!(outcome.code, 69, "{outcome:?}");
    assert!(outcome.stderr.contains("(131.1 GB for weights, gradients and moments"), "{}", outcome.stderr);
    assert!(outcome.of_type("plan").is_empty() && outcome.end()["ok"] == false);

    // On eight cards of 80 GB each has all weights in bf16 and an eighth of the rest, cut where pieces of the norm end.
    let outcome = ask("--device sim --device-memory 80 --parts 8 --ranks 8");
    let plan = outcome.ok().of_type("plan").remove(0);
    assert!(bytes(&plan, "moments").abs_diff(8_190_735_360) < 2 << 20, "{plan}");
    let state = bytes(&plan, "weights") + bytes(&plan, "gradients") + bytes(&plan, "moments");
    assert!(state <= 35_000_000_000, "{plan}");
    // With 32 parts, shares of two sums wait: on the card where there is room, on the host where micro-batches would shrink.
    let host_bytes = |plan: &Value| plan["host_bytes"].as_u64().unwrap();
    for (memory, on_card) in [(80, true), (60, false)] {
        let of = |parts: usize| {
            let outcome = ask(&format!("--device sim --device-memory {memory} --parts {parts} --ranks 8"));
            outcome.ok().of_type("plan").remove(0)
        };
        let (less, more) = (of(8), of(32));
        let gradients = bytes(&more, "gradients") - bytes(&less, "gradients");
        let waiting = [gradients, host_bytes(&more) - host_bytes(&less)];
        let [here, elsewhere] = if on_card { waiting } else { [waiting[1], waiting[0]] };
        assert!(here.abs_diff(2 * 4 * 8_190_735_360 / 8) < 2 << 20 && elsewhere == 0, "{less} {more}");
        assert_eq!(more["tokens_at_once"], less["tokens_at_once"], "{less} {more}");
    }
    assert!(host_bytes(&plan) < 160 << 20, "{plan}");
    assert!(bytes(&plan, "total") <= 80_000_000_000, "{plan}");
    assert!(plan["tokens_at_once"].as_u64().unwrap() >= 1024, "{plan}");
    for (wrong, code) in [("--parts 4 --ranks 8", 2), ("--parts 4 --ranks 4 --device-memory 48", 69)] {
        assert_eq!(ask(&format!("--device sim {wrong}")).code, code, "{wrong}");
    }

    // No machine of ours has what its threads would need on the CPU.
    let outcome = ask("--threads 1000");
    assert_eq!(outcome.code, 69, "{outcome:?}");
    assert!(outcome.stderr.contains("and this machine has"), "{}", outcome.stderr);

    // A GPU that is not there is planned for all the same.
    if device::cuda::open_library(device::cuda::Library::Driver).is_err() {
        let plan = ask("--device cuda").ok().of_type("plan").remove(0);
        assert_eq!(plan["memory"], "no GPU here: memory of an H200");
        assert!(bytes(&plan, "other") > device::GEMM_WORKSPACE, "{plan}");
    }
}

#[test]
fn a_policy_is_planned_with_its_samples_and_without() {
    let place = Place::new();
    let root = place.policy("p", GOLDEN);
    let input = stream(GOLDEN, &version(&root));
    for device in ["cpu", "sim", "cuda"] {
        let with = place.update(&format!("--policy p --dry-run --device {device}"), &input).ok();
        let without = place.update(&format!("--policy p --dry-run --device {device}"), "").ok();
        let (with, without) = (with.of_type("plan").remove(0), without.of_type("plan").remove(0));
        assert_eq!(with["bytes"]["weights"], without["bytes"]["weights"]);
        assert_eq!((&with["samples"], &without["samples"]), (&json!(15), &Value::Null));
        assert!(with["device"].as_str().unwrap().starts_with(device), "{with}");
    }
}
