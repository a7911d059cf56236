//! One step of plain gradient descent against PyTorch's autograd: the program from stdin to the published weights.

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{Place, golden, stream, version, weights};
use policy::weights::Weights;
use serde_json::Value;

/// Large, so that (before - after) / rate is the gradient and not the rounding of the weights.
const RATE: f64 = 10.0;
const PLAIN: &str = "--optimizer sgd --lr 10 --weight-decay 0 --max-grad-norm 0";

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(golden(name).join("gradient.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn close(seen: &Value, wanted: &Value, what: &str) {
    let (seen, wanted) = (seen.as_f64().unwrap(), wanted.as_f64().unwrap());
    let difference = (seen - wanted).abs() / wanted.abs();
    println!("{what}: {seen} against {wanted}, relative {difference:e}");
    assert!(difference < 1e-5, "{what}: {seen} instead of {wanted}");
}

fn check(name: &str) {
    let place = Place::new();
    let root = place.policy("p", name);
    let before = weights(&root);
    let outcome = place.update(&format!("--policy p {PLAIN}"), &stream(name, &version(&root))).ok();
    let (metrics, expected) = (outcome.metrics(), expected(name));
    close(&metrics["loss"], &expected["loss"], "loss");
    close(&metrics["grad_norm"], &expected["gradient_norm"], "grad_norm");
    close(&metrics["clip_ratio"], &expected["clip_ratio"], "clip_ratio");
    close(&metrics["clip_ratio/high_mean"], &expected["clip_ratio_high"], "clip_ratio/high_mean");
    close(&metrics["clip_ratio/low_mean"], &expected["clip_ratio_low"], "clip_ratio/low_mean");
    let recorded = stream(name, &version(&root));
    let recorded = recorded.lines().filter_map(|line| {
        serde_json::from_str::<Value>(line).unwrap()["completion_logprobs"].as_array().cloned()
    });
    let new = expected["logprobs"].as_array().unwrap().iter().map(|values| values.as_array().unwrap());
    let numbers = |values: &[Value]| values.iter().map(|value| value.as_f64().unwrap()).collect::<Vec<_>>();
    let pairs: Vec<(f64, f64)> =
        recorded.zip(new).flat_map(|(old, new)| numbers(&old).into_iter().zip(numbers(new))).collect();
    let mean = |of: &dyn Fn(f64, f64) -> f64| -> Value {
        (pairs.iter().map(|&(old, new)| of(old, new)).sum::<f64>() / pairs.len() as f64).into()
    };
    close(
        &metrics["sampling/logp_difference_mean"],
        &mean(&|old, new| (new - old).abs()),
        "logp_difference_mean",
    );
    let ratio = "sampling/importance_sampling_ratio_mean";
    close(&metrics[ratio], &mean(&|old, new| (new - old).exp()), ratio);

    check_step(&before, &root, &golden(name).join("gradient.safetensors"), name);
}

/// Relative L2 difference of each tensor's step from the gradient in a file.
fn check_step(before: &BTreeMap<String, Vec<f32>>, root: &Path, gradient: &Path, name: &str) {
    let gradient = Weights::open_file(gradient).unwrap();
    let after = weights(root);
    for (tensor, old) in before {
        let wanted = gradient.to_f32(tensor).unwrap();
        let (mut squares, mut total) = (0.0, 0.0);
        for ((&old, &new), &wanted) in old.iter().zip(&after[tensor]).zip(&wanted) {
            let step = (f64::from(old) - f64::from(new)) / RATE;
            squares += (step - f64::from(wanted)).powi(2);
            total += f64::from(wanted).powi(2);
        }
        let difference = (squares / total).sqrt();
        println!("{name} {tensor}: relative L2 {difference:e}");
        assert!(difference <= 1e-4, "{name} {tensor}: relative L2 {difference:e}");
    }
}

#[test]
fn tied_head() {
    check("qwen3-2-1-tied");
}

#[test]
fn untied_head_in_shards_at_another_temperature() {
    check("qwen3-6-3-untied");
}

/// (1/N) sum of -A · sum of log π(token), the loss of MAGRPO: autograd in f64, see `vectors/make_policy_gradient.py`.
#[test]
fn constant_over_one_token_is_the_policy_gradient_summed_over_tokens() {
    let name = "qwen3-2-1-tied";
    let place = Place::new();
    let root = place.policy("p", name);
    let before = weights(&root);
    let logprobs = expected(name)["logprobs"].clone();
    let on_policy = common::edited(&stream(name, &version(&root)), |index, sample| {
        sample["completion_logprobs"] = logprobs[index].clone();
    });
    let arguments = format!("--policy p {PLAIN} --aggregate constant=1");
    place.update(&arguments, &on_policy).ok();
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/policy_gradient.safetensors");
    check_step(&before, &root, &vectors, name);
}

#[test]
fn four_heads_a_key_head() {
    check("qwen3-8-2-untied");
}

#[test]
fn windows_biases_and_scaled_rotary_positions() {
    check("qwen2-2-1-layer-window");
    check("llama-2-1-biases");
    check("smollm3-2-1-yarn");
}

#[test]
fn fused_projections_are_published_as_they_were() {
    check("phi3-2-1-partial");
    check("phi3-2-1-long-rope");
}

#[test]
fn four_norms_a_layer() {
    check("gemma3-2-1-local");
}

#[test]
fn experts() {
    check("qwen3-moe-2-1");
    check("qwen3-moe-4-2-dense-first");
}

#[test]
fn other_objectives_and_aggregations() {
    for name in ["qwen3-2-1-tied", "qwen3-6-3-untied", "qwen3-8-2-untied"] {
        let expected = expected(name);
        for other in expected["others"].as_array().unwrap() {
            let place = Place::new();
            let root = place.policy("p", name);
            let (objective, aggregate) =
                (other["objective"].as_str().unwrap(), other["aggregate"].as_str().unwrap());
            let mut input = stream(name, &version(&root));
            if objective == "nll" {
                // The golden likelihood is not weighted.
                input = common::edited(&input, |_, sample| {
                    sample.as_object_mut().unwrap().remove("advantage");
                });
            }
            let arguments = format!("--policy p {PLAIN} --objective {objective} --aggregate {aggregate}");
            let metrics = place.update(&arguments, &input).ok().metrics();
            close(&metrics["loss"], &other["loss"], &format!("{name} {objective} {aggregate} loss"));
            close(
                &metrics["grad_norm"],
                &other["gradient_norm"],
                &format!("{name} {objective} {aggregate} norm"),
            );
        }
    }
}

#[test]
fn the_step_is_no_longer_than_the_clipped_norm_times_the_rate() {
    let name = "qwen3-2-1-tied";
    let whole = expected(name)["gradient_norm"].as_f64().unwrap();
    for (limit, wanted) in [(0.1, 0.1), (2.0 * whole, whole)] {
        let place = Place::new();
        let root = place.policy("p", name);
        let before = weights(&root);
        let arguments = format!("--policy p --optimizer sgd --lr 0.5 --max-grad-norm {limit}");
        let metrics = place.update(&arguments, &stream(name, &version(&root))).ok().metrics();
        close(&metrics["grad_norm"], &whole.into(), "the norm before clipping");
        let after = weights(&root);
        let step = before.iter().flat_map(|(tensor, old)| old.iter().zip(&after[tensor]));
        let length = step.map(|(old, new)| f64::from(old - new).powi(2)).sum::<f64>().sqrt();
        assert!((length / (0.5 * wanted) - 1.0).abs() < 1e-3, "{limit}: a step of {length}");
    }
}

#[test]
fn a_cosine_spans_all_steps_of_the_call() {
    let name = "qwen3-2-1-tied";
    let place = Place::new();
    let root = place.policy("p", name);
    let arguments = "--policy p --lr 1e-4 --schedule cosine --lr-warmup 3 --minibatches 3 --epochs 2";
    let metrics = place.update(arguments, &stream(name, &version(&root))).ok().metrics();
    // The last of six steps, of which three warm up: a tenth, plus the rest after five sixths.
    let factor = 0.1 + 0.9 * 0.5 * (1.0 + (std::f64::consts::PI * 5.0 / 6.0).cos());
    close(&metrics["lr"], &(1e-4 * factor).into(), "lr");
    assert_eq!(metrics["optimizer_steps"], 6);
}

/// They are not computed, and count in the samples and tokens that an average is over.
#[test]
fn flat_groups_count_in_every_average() {
    for name in ["qwen3-2-1-tied", "qwen3-6-3-untied", "qwen3-8-2-untied"] {
        let expected = expected(name);
        let flat = expected["flat_groups"].as_array().unwrap();
        for case in expected["flat"].as_array().unwrap() {
            let place = Place::new();
            let root = place.policy("p", name);
            let input = common::edited(&stream(name, &version(&root)), |_, sample| {
                if flat.contains(&sample["group"]) {
                    sample["advantage"] = 0.0.into();
                }
            });
            let aggregate = case["aggregate"].as_str().unwrap();
            let metrics =
                place.update(&format!("--policy p {PLAIN} --aggregate {aggregate}"), &input).ok().metrics();
            close(&metrics["loss"], &case["loss"], &format!("{name} {aggregate} loss"));
            close(&metrics["grad_norm"], &case["gradient_norm"], &format!("{name} {aggregate} norm"));
            assert_eq!(metrics["flat_groups"], flat.len(), "{metrics}");
        }
    }
}

#[test]
fn check_agrees_with_transformers() {
    for name in ["qwen3-2-1-tied", "qwen3-6-3-untied", "qwen3-8-2-untied"] {
        let place = Place::new();
        let root = place.policy("p", name);
        let logprobs = expected(name)["logprobs"].clone();
        let input = common::edited(&stream(name, &version(&root)), |index, sample| {
            sample["completion_logprobs"] = logprobs[index].clone();
        });
        let file = root.with_file_name("tokens");
        let outcome = place.update(&format!("--policy p --check={}", file.display()), &input).ok();
        let gap = outcome.metrics()["sampling/logp_difference_max"].as_f64().unwrap();
        println!("{name}: largest gap {gap:e}");
        assert!(gap < 2e-5, "{name}: {gap:e}");
        assert_eq!(outcome.metrics()["check"], true);
        assert!(!root.join("step-000001").exists(), "a check publishes nothing");
        // Every token is in the file, the one that is furthest off among them.
        let text = std::fs::read_to_string(&file).unwrap();
        let tokens: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let recorded: Vec<&Value> =
            logprobs.as_array().unwrap().iter().flat_map(|one| one.as_array().unwrap()).collect();
        assert_eq!(tokens.len(), recorded.len());
        let off = |token: &Value| {
            (token["recorded"].as_f64().unwrap() - token["recomputed"].as_f64().unwrap()).abs()
        };
        assert_eq!(tokens.iter().map(off).fold(0.0, f64::max), gap);
        assert!(tokens.iter().all(|token| token["policy"] == "p" && token["position"].as_u64() > Some(0)));
    }
}
