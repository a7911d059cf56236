//! One step of plain gradient descent against PyTorch's autograd: the program from stdin to the published weights.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test prints what it measured, and fails where it cannot go on"
)]

mod common;

use common::{Place, golden, stream, version, weights};
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

/// Relative L2 difference of each tensor's step from the gradient's.
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

    let gradient = Weights::open_file(&golden(name).join("gradient.safetensors")).unwrap();
    let after = weights(&root);
    for (tensor, old) in &before {
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

#[test]
fn four_heads_a_key_head() {
    check("qwen3-8-2-untied");
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
        let outcome = place.update("--policy p --check", &input).ok();
        let gap = outcome.metrics()["sampling/logp_difference_max"].as_f64().unwrap();
        println!("{name}: largest gap {gap:e}");
        assert!(gap < 2e-5, "{name}: {gap:e}");
        assert_eq!(outcome.metrics()["check"], true);
        assert!(!root.join("step-000001").exists(), "a check publishes nothing");
    }
}
