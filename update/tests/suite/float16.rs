//! Training in float16 on the simulated device, or the GPU of `TROUPE_TEST_DEVICE`: learning, the loss scale, and refusals.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::common::{self, Place, contents, edited, published, stream, version, weights};
use crate::device::{decoder, device_model_in, trees};
use crate::golden;
use crate::small::{Weighted, cosine, relative, wide};
use policy::weights::ElementType;
use record::failure::Result;
use update::backend::Half;
use update::model::{Entry, Layout, Parameters, Source};
use update::optimizer::on_device::DeviceOptimizer;
use update::optimizer::{Method, Settings, StepScale};

const CALM: &str = "qwen3-4-2-calm";
const F16: &str = "--policy p --dtype float16 --threads 2 --quiet";

fn device() -> String {
    std::env::var(device::TEST_DEVICE).unwrap_or_else(|_| "sim".to_owned())
}

/// `update` in float16.
fn in_f16(place: &Place, flags: &str, input: &str) -> common::Outcome {
    place.update(&format!("{F16} --device {} {flags}", device()), input)
}

/// A policy and its samples, as if it had recorded them.
fn recorded(place: &Place, name: &str) -> (std::path::PathBuf, impl Fn(&Path) -> String + use<>) {
    let root = place.policy("p", name);
    let logprobs = golden::json(&common::golden(name).join("gradient.json"))["logprobs"].clone();
    let name = name.to_owned();
    (root, move |root| {
        edited(&stream(&name, &version(root)), |index, sample| {
            sample["completion_logprobs"] = logprobs[index].clone();
        })
    })
}

fn trainer_state(root: &Path) -> Value {
    serde_json::from_slice(&fs::read(root.join("current/trainer_state.json")).unwrap()).unwrap()
}

/// Replaces the loss scale of a policy's newest version.
fn set_loss_scale(root: &Path, scale: f64) {
    let mut state = trainer_state(root);
    state["loss_scale"] = json!({ "scale": scale, "good_steps": 7 });
    let path = root.join("current/trainer_state.json");
    fs::remove_file(&path).unwrap();
    fs::write(&path, state.to_string()).unwrap();
}

#[test]
fn its_steps_are_those_of_f32() {
    let (processor, simulated) = (Place::new(), Place::new());
    let (cpu, of_cpu) = recorded(&processor, CALM);
    let (sim, of_sim) = recorded(&simulated, CALM);
    let before = weights(&cpu);
    let flags = "--optimizer sgd --lr 0.02 --max-grad-norm 0 --max-logprob-gap 0.3";
    for step in 1..=3u64 {
        let expected = processor.update(&format!("--policy p {flags}"), &of_cpu(&cpu)).ok().metrics();
        let found = in_f16(&simulated, flags, &of_sim(&sim)).ok().metrics();
        let number = |metrics: &Value, field: &str| metrics[field].as_f64().unwrap();
        // An eighth of bf16's bounds.
        for (field, allowed) in [("loss", 2.5e-4), ("entropy", 2.5e-4), ("grad_norm", 2.5e-3)] {
            let (a, b) = (number(&found, field), number(&expected, field));
            println!("step {step} {field}: {a} in f16, {b} in f32");
            assert!((a - b).abs() <= allowed * b.abs().max(1.0), "step {step}: {field}: {a} against {b}");
        }
        assert_eq!(found["loss_scale"], 65_536.0);
        assert_eq!((&found["skipped_steps"], &found["optimizer_steps"]), (&json!(0), &json!(1)));
        assert!(expected.get("loss_scale").is_none() && expected.get("skipped_steps").is_none());
        assert_eq!(trainer_state(&sim)["loss_scale"], json!({ "scale": 65_536.0, "good_steps": step }));
    }
    let moves = |root: &Path| -> Vec<f32> {
        let exact = common::masters(root);
        let moved = |(name, old): (&String, &Vec<f32>)| -> Vec<f32> {
            old.iter().zip(&exact[name]).map(|(old, new)| f32::from_bits(*new) - old).collect()
        };
        before.iter().flat_map(moved).collect()
    };
    let (found, expected) = (moves(&sim), wide(&moves(&cpu)));
    let (error, direction) = (relative(&found, &expected), cosine(&found, &expected));
    println!("moves are {error:.1e} apart, cosine {direction:.6}");
    assert!(error < 1e-2 / 8.0 && direction > 0.99999, "{error:.1e}, {direction:.6}");
}

#[test]
fn it_learns_with_its_loss_scale() {
    let place = Place::new();
    let root = place.policy("p", CALM);
    let mut losses = Vec::new();
    for _ in 0..4 {
        let flags = "--objective nll --lr 3e-3 --minibatches 2";
        let metrics = in_f16(&place, flags, &stream(CALM, &version(&root))).ok().metrics();
        losses.push(metrics["loss"].as_f64().unwrap());
    }
    println!("{losses:?}");
    assert!(losses.windows(2).all(|two| two[1] < two[0]), "{losses:?}");
    assert_eq!(trainer_state(&root)["loss_scale"]["good_steps"], 8);
}

/// With a gradient beyond float16 no weight moves, and the scale is halved. A call that is killed and repeated ends with the
/// same bytes.
#[test]
fn an_overflow_skips_the_step_and_halves_the_scale() {
    let flags = "--lr 1e-2 --max-logprob-gap 0";
    let prepared = || {
        let place = Place::new();
        let (root, samples) = recorded(&place, CALM);
        in_f16(&place, flags, &samples(&root)).ok();
        set_loss_scale(&root, 2f64.powi(40));
        let input = samples(&root);
        (place, root, input)
    };
    let (place, root, input) = prepared();
    let before = (weights(&root), common::masters(&root));
    let metrics = in_f16(&place, flags, &input).ok().metrics();
    assert_eq!((&metrics["optimizer_steps"], &metrics["skipped_steps"]), (&json!(0), &json!(1)), "{metrics}");
    assert_eq!(metrics["loss_scale"], 2f64.powi(39));
    assert_eq!(metrics["optimizer_steps_total"], 1);
    let after = (weights(&root), common::masters(&root));
    assert!(before == after, "a skipped step moved weights");
    assert_eq!(trainer_state(&root)["loss_scale"], json!({ "scale": 2f64.powi(39), "good_steps": 0 }));
    // A repeated call finds its version.
    let again = in_f16(&place, flags, &input).ok();
    assert_eq!(again.metrics()["loss_scale"], 2f64.powi(39));

    let (killed, other, input) = prepared();
    let mut child = killed.spawn(&format!("{F16} --device {} {flags}", device()));
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    in_f16(&killed, flags, &input).ok();
    let bytes = |root: &Path| -> BTreeMap<String, Vec<u8>> {
        let name = |path: &Path| path.strip_prefix(root).unwrap().display().to_string();
        contents(root).into_iter().map(|(path, bytes)| (name(&path), bytes)).collect()
    };
    let (one, two) = (bytes(&root), bytes(&other));
    assert_eq!(one.keys().collect::<Vec<_>>(), two.keys().collect::<Vec<_>>());
    assert!(one.iter().all(|(name, bytes)| two[name] == *bytes), "a repeated call made other bytes");
}

#[test]
fn a_gradient_that_is_too_large_unscaled_ends_the_training() {
    let place = Place::new();
    let (root, samples) = recorded(&place, CALM);
    in_f16(&place, "", &samples(&root)).ok();
    set_loss_scale(&root, 1.0);
    let input = edited(&samples(&root), |index, sample| {
        sample["advantage"] = json!(if index % 2 == 0 { 1e12 } else { -1e12 });
    });
    let outcome = in_f16(&place, "", &input);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    let said = "the gradient is beyond float16 with a loss scale of 1 too";
    assert!(
        outcome.stderr.contains(said) && outcome.stderr.contains("hint: use --dtype bfloat16"),
        "{outcome:?}"
    );
    assert!(!root.join("step-000002").exists());
}

/// Sets every value of a tensor of version 0 to a number.
fn fill(root: &Path, tensor: &str, value: f32) {
    let path = root.join("step-000000/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let [start, end] = [0, 1].map(|at| header[tensor]["data_offsets"][at].as_u64().unwrap() as usize + data);
    match header[tensor]["dtype"].as_str().unwrap() {
        "F32" => bytes[start..end].as_chunks_mut::<4>().0.fill(value.to_le_bytes()),
        _ => bytes[start..end].as_chunks_mut::<2>().0.fill(half::bf16::from_f32(value).to_le_bytes()),
    }
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
}

#[test]
fn numbers_beyond_float16_are_refused_by_name() {
    for (tensor, value, said) in [
        (
            "model.layers.0.mlp.up_proj.weight",
            1.2e5,
            "model.layers.0.mlp.up_proj.weight has 1.20e5, beyond float16",
        ),
        // Weights that are in range, of activations that are not.
        ("model.norm.weight", 6e4, "log-probabilities are not finite"),
    ] {
        let place = Place::new();
        let root = place.policy("p", CALM);
        fill(&root, tensor, value);
        let outcome = in_f16(&place, "", &stream(CALM, &version(&root)));
        assert_eq!(outcome.code, 1, "{outcome:?}");
        let hinted = outcome.stderr.contains("hint: ") && outcome.stderr.contains("bfloat16");
        assert!(outcome.stderr.contains(said) && hinted, "{}", outcome.stderr);
        assert!(!published(&root));
    }
    let place = Place::new();
    let root = place.policy("p", CALM);
    let outcome = place.update("--policy p --dtype float16", &stream(CALM, &version(&root)));
    assert_eq!(outcome.code, 2, "{outcome:?}");
    let said = "--dtype float16 is for devices only: the CPU computes in float32 or bfloat16";
    assert!(outcome.stderr.contains(said) && outcome.stderr.contains("hint: "), "{}", outcome.stderr);
}

/// Weights that are published in bf16.
struct InBf16(Parameters);

impl Source for InBf16 {
    fn layout(&self) -> &Arc<Layout> {
        self.0.layout()
    }

    fn read(&self, entry: &Entry, from: usize, values: &mut [f32]) -> Result<()> {
        self.0.read(entry, from, values)
    }

    fn is_bf16(&self, _: &Entry) -> bool {
        true
    }
}

/// After a step the passes read the published weights rounded to f16, for each published type. Masters come back to the
/// bit, also those too small for f16.
#[test]
fn the_passes_read_the_published_weights_rounded() {
    let (model, mut parameters) = decoder();
    let special = [0.0, -0.0, f32::MIN_POSITIVE, 1e-40, -1e-8, 3e-6, 65_500.0, f32::from_bits(0x3f80_8000)];
    let first = parameters.values.len() - special.len();
    parameters.values[first..].copy_from_slice(&special);
    parameters.values[first + 6] = 0.3;
    for kind in [ElementType::F32, ElementType::BF16, ElementType::F16] {
        let of = |values: Vec<f32>| {
            let mut of = parameters.clone();
            of.values = values;
            of
        };
        let source: Box<dyn Source> = match kind {
            ElementType::BF16 => Box::new(InBf16(parameters.clone())),
            _ => Box::new(parameters.clone()),
        };
        let mut trained = device_model_in(Half::Float16, &model, &*source, 0, 4096, false);
        let mut masters = vec![1.0; parameters.values.len()];
        trained.masters(0, &mut masters).unwrap();
        assert!(masters.iter().zip(&parameters.values).all(|(a, b)| a.to_bits() == b.to_bits()));
        let settings = Settings {
            method: Method::Adamw,
            lr: 1e-2,
            lr_other: 1e-2,
            betas: (0.9, 0.999),
            weight_decay: 0.1,
            max_grad_norm: 1.0,
        };
        let mut optimizer = DeviceOptimizer::new(settings, &mut trained).unwrap();
        trained.accumulate(&trees(true), 1.0, &Weighted).unwrap();
        let norm = trained.gradient_norm().unwrap();
        optimizer.step(&mut trained, StepScale { gradient: 1.0, norm, rate: 1.0 }).unwrap();
        trained.masters(0, &mut masters).unwrap();
        assert!(masters.iter().zip(&parameters.values).any(|(a, b)| a != b), "nothing moved");
        let published = masters.iter().map(|&master| update::weights::published(master, kind)).collect();
        let mut sampled = device_model_in(Half::Float16, &model, &of(published), 0, 4096, false);
        let scores = trained.logprobs(&trees(true), 1.0).unwrap();
        assert!(scores == sampled.logprobs(&trees(true), 1.0).unwrap(), "{kind:?}");
    }
}
