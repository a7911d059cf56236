//! The rules against PyTorch's, and the state against itself.

use super::*;
use policy::config::{Config, RopeScaling, Variant};
use policy::weights::ElementType;
use serde_json::Value;
use std::collections::BTreeMap;

/// What PyTorch computed; made by the script beside it.
fn vectors() -> Value {
    serde_json::from_str(include_str!("../../tests/vectors/vectors.json")).expect("vectors.json")
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().expect("an array").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn every_rule_moves_as_in_pytorch() {
    for case in vectors()["optimizers"].as_array().expect("cases") {
        let name = case["optimizer"].as_str().expect("a name");
        let (rows, columns) =
            (case["rows"].as_u64().expect("rows"), case["columns"].as_u64().expect("columns"));
        let (rate, decay) = (case["lr"].as_f64().expect("lr"), case["weight_decay"].as_f64().expect("decay"));
        let settings = Settings {
            method: match name {
                "adamw" => Method::Adamw,
                "sgd" => Method::Sgd,
                _ => Method::Muon,
            },
            lr: rate,
            lr_other: rate,
            betas: (0.9, 0.98),
            weight_decay: decay,
            max_grad_norm: 0.0,
        };
        let entry = Entry {
            name: "model.layers.0.mlp.up_proj.weight".into(),
            shape: vec![rows as usize, columns as usize],
            range: 0..(rows * columns) as usize,
        };
        let mut values = numbers(&case["start"]);
        let (mut first, mut second) = (vec![0.0; values.len()], vec![0.0; values.len()]);
        for (index, gradient) in case["gradients"].as_array().expect("gradients").iter().enumerate() {
            let gradient = numbers(gradient);
            let rule = rule(settings.method, &entry);
            let (values, first, second) = (&mut values[..], &mut first[..], &mut second[..]);
            let piece = Piece { rule, entry: &entry, values, gradient: &gradient, first, second };
            update(&settings, index as u64 + 1, 1.0, 1.0, piece);
        }
        let difference = largest_difference(&values, &numbers(&case["end"]));
        println!("{name} {rows}x{columns}: largest difference {difference:e}");
        // Muon's iteration amplifies the order of summation of its products.
        assert!(
            difference < if name == "muon" { 2e-6 } else { 3e-7 },
            "{name} {rows}x{columns}: {difference:e}"
        );
    }
}

#[test]
fn gradients_are_clipped_as_in_pytorch() {
    for case in vectors()["clipping"].as_array().expect("cases") {
        let gradient = numbers(&case["gradient"]);
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let scale = clipping(norm, case["limit"].as_f64().expect("limit"));
        let clipped: Vec<f32> = gradient.iter().map(|g| g * scale).collect();
        let difference = largest_difference(&clipped, &numbers(&case["clipped"]));
        assert!(difference < 2e-7, "{difference:e}");
    }
    assert_eq!(clipping(50.0, 0.0), 1.0, "0 turns clipping off");
}

#[test]
fn muon_takes_the_matrices_of_layers_only() {
    let entry = |name: &str, shape: &[usize]| Entry { name: name.into(), shape: shape.to_vec(), range: 0..0 };
    let ruled = |name: &str, shape: &[usize]| rule(Method::Muon, &entry(name, shape));
    assert_eq!(ruled("model.layers.3.self_attn.q_proj.weight", &[4, 4]), Rule::Muon);
    assert_eq!(ruled("model.embed_tokens.weight", &[9, 4]), Rule::AdamW);
    assert_eq!(ruled("lm_head.weight", &[9, 4]), Rule::AdamW);
    assert_eq!(ruled("model.layers.3.self_attn.q_proj.bias", &[4]), Rule::AdamW);
    assert_eq!(ruled("model.layers.3.self_attn.q_norm.weight", &[4]), Rule::AdamW);
    assert_eq!(ruled("model.norm.weight", &[4]), Rule::AdamW);
}

fn small_layout() -> Arc<Layout> {
    Arc::new(Layout::new(&Config {
        family: "test",
        hidden_size: 16,
        intermediate_size: 24,
        num_layers: 2,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 8,
        vocab_size: 30,
        rms_norm_eps: 1e-6,
        rope_theta: 1e3,
        rope_scaling: RopeScaling::None,
        tie_word_embeddings: true,
        qk_norm: true,
        attention_bias: false,
        rope_layers: vec![true; 2],
        max_positions: 4096,
        variant: Variant::default(),
        dtype: ElementType::F32,
    }))
}

fn wavy(layout: &Arc<Layout>, phase: f32) -> Parameters {
    let mut values = Parameters::zeros(layout);
    values.values.iter_mut().enumerate().for_each(|(index, x)| *x = (index as f32 * 0.7 + phase).sin());
    values
}

fn settings(method: Method) -> Settings {
    Settings { method, lr: 0.01, lr_other: 0.02, betas: (0.9, 0.95), weight_decay: 0.1, max_grad_norm: 1.0 }
}

/// Some steps, and between them, if asked, a trip through the saved form.
fn steps(method: Method, threads: usize, reload: bool) -> (Parameters, Optimizer) {
    let layout = small_layout();
    let mut parameters = wavy(&layout, 0.0);
    let mut optimizer = Optimizer::new(settings(method), &layout);
    for step in 0..3 {
        let gradient = wavy(&layout, 1.0 + step as f32);
        let norm = norm(&gradient);
        optimizer.step(&mut parameters, &gradient, norm, 0.5, threads);
        if reload {
            let saved: BTreeMap<String, Vec<f32>> = tensors(method, &layout)
                .into_iter()
                .map(|kept| (kept.name, optimizer.moment(kept.moment, kept.tensor).to_vec()))
                .collect();
            let mut other = Optimizer::new(settings(method), &layout);
            let read = |name: &str, values: &mut [f32]| {
                values.copy_from_slice(&saved[name]);
                Ok(())
            };
            other.restore(optimizer.steps(), read).expect("all tensors are there");
            assert_eq!(other, optimizer);
            optimizer = other;
        }
    }
    (parameters, optimizer)
}

#[test]
fn neither_threads_nor_saving_change_a_bit() {
    for method in [Method::Adamw, Method::Sgd, Method::Muon] {
        let (expected, _) = steps(method, 1, false);
        assert_ne!(expected, wavy(&small_layout(), 0.0));
        for (threads, reload) in [(1, true), (2, false), (5, true)] {
            assert_eq!(steps(method, threads, reload).0, expected, "{method:?}, {threads} threads");
        }
    }
}

#[test]
fn vectors_are_not_decayed() {
    let layout = small_layout();
    let mut parameters = wavy(&layout, 0.0);
    let before = parameters.clone();
    let mut optimizer = Optimizer::new(settings(Method::Sgd), &layout);
    optimizer.step(&mut parameters, &Parameters::zeros(&layout), 0.0, 1.0, 1);
    for (entry, values) in parameters.tensors() {
        let old = before.get(&entry.name).expect("the same tensors");
        let factor = if entry.shape.len() == 2 { 1.0 - 0.01 * 0.1 } else { 1.0 };
        let expected: Vec<f32> = old.iter().map(|x| x * factor).collect();
        assert_eq!(values, expected, "{}", entry.name);
    }
}
