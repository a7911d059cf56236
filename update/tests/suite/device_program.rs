//! The program with `--device`: training, checks and refusals in the simulator, or on the GPU that
//! `TROUPE_TEST_DEVICE` names, compared with the CPU.

use crate::common;
use crate::golden;

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{Place, stream, version, weights};
use crate::small::{cosine, relative, wide};

type Weights = BTreeMap<String, Vec<f32>>;

/// The device of the tests, as the program takes it.
fn device() -> String {
    std::env::var(device::TEST_DEVICE).unwrap_or_else(|_| "sim".to_owned())
}

/// Where every weight went.
fn moves(before: &Weights, after: &Weights) -> Vec<f32> {
    before.iter().flat_map(|(name, old)| old.iter().zip(&after[name]).map(|(a, b)| b - a)).collect()
}

#[test]
fn three_steps_are_those_of_the_processor() {
    let (processor, simulated) = (Place::new(), Place::new());
    let name = "qwen3-4-2-calm";
    let (cpu, sim) = (processor.policy("p", name), simulated.policy("p", name));
    let before = weights(&cpu);
    // The optimizer's exact weights; the published ones are rounded.
    let exact = |root: &Path| -> Weights {
        let floats = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect();
        common::masters(root).into_iter().map(|(name, bits)| (name, floats(bits))).collect()
    };
    // Recorded by the policy itself, as in training: ratios begin at 1, so that rounding does not decide the
    // clipping.
    let logprobs = golden::json(&common::golden(name).join("gradient.json"))["logprobs"].clone();
    let recorded = |root: &Path| {
        common::edited(&stream(name, &version(root)), |index, sample| {
            sample["completion_logprobs"] = logprobs[index].clone();
        })
    };
    let arguments = "--policy p --optimizer sgd --lr 0.02 --max-grad-norm 0 --max-logprob-gap 0.3";
    let number = |metrics: &serde_json::Value, field: &str| metrics[field].as_f64().unwrap();
    for step in 0..3 {
        let expected = processor.update(arguments, &recorded(&cpu)).ok().metrics();
        let on_device = format!("{arguments} --device {} --threads 2", device());
        let found = simulated.update(&on_device, &recorded(&sim)).ok().metrics();
        for (field, allowed) in [
            ("loss", 1e-3),
            ("entropy", 2e-3),
            ("grad_norm", 2e-2),
            ("sampling/importance_sampling_ratio_mean", 2e-3),
        ] {
            let (a, b) = (number(&found, field), number(&expected, field));
            println!("step {step} {field}: {a} on the device, {b} on the processor");
            assert!((a - b).abs() <= allowed * b.abs().max(1.0), "step {step}: {field}: {a} against {b}");
        }
        for field in ["samples", "tokens", "unique_tokens", "groups", "optimizer_steps_total"] {
            assert_eq!(found[field], expected[field], "{field}");
        }
        let (found, expected) = (moves(&before, &exact(&sim)), wide(&moves(&before, &exact(&cpu))));
        let (error, direction) = (relative(&found, &expected), cosine(&found, &expected));
        println!("step {step}: moves are {error:.1e} apart, cosine {direction:.5}");
        assert!(error < 1e-2 && direction > 0.9999, "step {step}: {error:.1e}, {direction:.5}");
    }
}

#[test]
fn the_program_trains_on_the_simulated_device() {
    let name = "qwen2-4-2-calm";
    let (processor, simulated) = (Place::new(), Place::new());
    let run = |place: &Place, device: &str| {
        let root = place.policy("p", name);
        let before = weights(&root);
        let arguments = format!(
            "--policy p --lr 1e-3 --minibatches 2 --epochs 2 --kl 0.1 --reference p --entropy 0.05 {device}"
        );
        let metrics = place.update(&arguments, &stream(name, &version(&root))).ok().metrics();
        // The published version can be trained again from the state in its folder.
        let again = place.update(&format!("--policy p --lr 1e-3 {device}"), &stream(name, &version(&root)));
        assert_eq!(again.ok().metrics()["optimizer_state"], "continued");
        (before, weights(&root), metrics)
    };
    let (before, expected, wanted) = run(&processor, "");
    let (_, found, metrics) = run(&simulated, &format!("--device {} --threads 2", device()));
    assert_eq!(metrics["timing"]["device"], device());
    // AdamW's first steps have the sign of gradients, which rounding decides for tiny gradients; later
    // gradients then belong to weights that moved elsewhere.
    for (field, allowed) in [("loss", 1e-3), ("grad_norm", 1e-2)] {
        let (a, b) = (metrics[field].as_f64().unwrap(), wanted[field].as_f64().unwrap());
        println!("{field}: {a} on the device, {b} on the processor");
        // The surrogate and the entropy term nearly cancel in the loss, so its error is measured by its terms.
        let terms = b.abs() + 0.05 * wanted["entropy"].as_f64().unwrap();
        assert!((a - b).abs() < allowed * if field == "loss" { terms } else { b.abs() }, "{field}: {a}, {b}");
    }
    let direction = cosine(&moves(&before, &found), &wide(&moves(&before, &expected)));
    println!("cosine of the moves: {direction:.4}");
    assert!(direction > 0.99, "{direction}");
}

/// The state kept in host memory between the parts of `--resident` equals the state that separate calls read
/// from the disk: for f32 weights the moments, for bf16 weights also the lower halves, for float16 also the loss scale.
#[test]
fn the_optimizers_state_waits_in_memory() {
    for (name, dtype) in
        [("qwen3-2-1-tied", "bfloat16"), ("qwen3-4-2-bf16", "bfloat16"), ("qwen3-4-2-bf16", "float16")]
    {
        let (apart, resident) = (Place::new(), Place::new());
        let (root, other) = (apart.policy("p", name), resident.policy("p", name));
        let arguments =
            format!("--policy p --lr 1e-2 --max-logprob-gap 0 --dtype {dtype} --device {}", device());
        let mut parts = String::new();
        for _ in 0..3 {
            let part = stream(name, &version(&root));
            let metrics = apart.update(&arguments, &part).ok().metrics();
            assert_eq!(metrics["optimizer_steps"], 1, "{name}: nothing was learned");
            parts += &part;
        }
        resident.update(&format!("{arguments} --resident --save-every 100"), &parts).ok();
        let newest = |root: &Path, name: &str| std::fs::read(root.join("step-000003").join(name)).unwrap();
        for file in ["version.json", "optimizer.safetensors", "trainer_state.json"] {
            assert!(newest(&other, file) == newest(&root, file), "{name}: {file} differs");
        }
    }
}

#[test]
fn the_program_checks_and_refuses_on_devices() {
    let name = "qwen3-2-1-tied";
    let place = Place::new();
    let root = place.policy("p", name);
    let input = stream(name, &version(&root));
    let outcome =
        place.update(&format!("--policy p --device {} --optimizer muon --lr-other 1e-3", device()), &input);
    assert_eq!(outcome.code, 2, "{outcome:?}");
    assert!(outcome.stderr.contains("--optimizer muon runs on the CPU only"), "{}", outcome.stderr);
    let expected = golden::json(&common::golden(name).join("gradient.json"));
    let recorded = common::edited(&input, |index, sample| {
        sample["completion_logprobs"] = expected["logprobs"][index].clone();
    });
    let check = format!("--policy p --device {} --check --max-logprob-gap 0.5", device());
    let outcome = place.update(&check, &recorded).ok();
    let gap = outcome.metrics()["sampling/logp_difference_max"].as_f64().unwrap();
    println!("largest gap on the device {gap:.1e}");
    assert!(gap > 0.0 && gap < 0.5);
}

#[test]
fn a_machine_without_a_gpu_is_told_so_before_anything_is_read() {
    if device::cuda::open_library(device::cuda::Library::Driver).is_ok() {
        println!("this machine has a driver");
        return;
    }
    let name = "qwen3-2-1-tied";
    let place = Place::new();
    place.policy("p", name);
    // stdin stays open: whoever read it first would wait.
    let child = place.spawn("--policy p --device cuda:1");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{text}");
    assert!(text.contains("driver") && text.contains("hint: "), "{text}");
}

#[test]
fn a_check_allows_what_the_arithmetic_does() {
    for (name, device, allowed) in
        [("qwen3-2-1-tied", "cpu", 1e-3), ("qwen3-4-2-calm", "cpu", 0.5), ("qwen3-4-2-calm", "sim", 0.5)]
    {
        let place = Place::new();
        let root = place.policy("p", name);
        let logprobs = golden::json(&common::golden(name).join("gradient.json"))["logprobs"].clone();
        let by = |shift: f64| {
            common::edited(&stream(name, &version(&root)), |index, sample| {
                sample["completion_logprobs"] = logprobs[index].clone();
                let first = sample["completion_logprobs"][0].as_f64().unwrap();
                sample["completion_logprobs"][0] = serde_json::json!(first - shift);
            })
        };
        let arguments = format!("--policy p --check --device {device} --threads 2");
        let metrics = place.update(&arguments, &by(0.5 * allowed)).ok().metrics();
        assert_eq!(metrics["sampling/logp_difference_allowed"], allowed, "{name} on {device}");
        assert_eq!(place.update(&arguments, &by(2.0 * allowed)).code, 1, "{name} on {device}");
    }
}
