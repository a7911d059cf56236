//! The rules against PyTorch's, and the state against itself.

use super::*;
use policy::config::{Config, Variant};
use policy::rope::RopeScaling;
use policy::weights::ElementType;
use serde_json::Value;
use std::collections::BTreeMap;

/// PyTorch's results, made by the script in the folder of the vectors.
fn vectors() -> Value {
    serde_json::from_str(include_str!("../../tests/vectors/vectors.json")).expect("vectors.json")
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().expect("an array").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// Not a number if one of them is none.
fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).expect("numbers")
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
            let piece = TensorSlice { rule, entry: &entry, values, gradient: &gradient, first, second };
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
        let limit = case["limit"].as_f64().expect("limit");
        // A gradient that is to be scaled yet has the norm that it will have.
        for size in [1.0, 8.0, 0.125] {
            let scale = StepScale { gradient: 1.0 / size, norm, rate: 1.0 }.clipped(limit);
            let clipped: Vec<f32> = gradient.iter().map(|g| g * size as f32 * scale).collect();
            let difference = largest_difference(&clipped, &numbers(&case["clipped"]));
            assert!(difference < 2e-7, "{difference:e}");
        }
    }
    let unclipped = StepScale { gradient: 0.25, norm: 50.0, rate: 1.0 }.clipped(0.0);
    assert_eq!(unclipped, 0.25, "0 turns clipping off");
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

/// Clipping scales gradients: half the scale is half the gradient, to the last bit.
#[test]
fn a_scaled_gradient_is_a_smaller_gradient() {
    let shape = |rows, columns| muon::Step { rate: 0.1, decay: 0.01, rows, columns };
    let adamw = adamw::Step { rate: 0.1, betas: (0.9, 0.95), decay: 0.01, step: 2 };
    let gradient: Vec<f32> = (0..6).map(|x| (x as f32).sin()).collect();
    let halved: Vec<f32> = gradient.iter().map(|x| x * 0.5).collect();
    let moved = |scale: f32, gradient: &[f32]| {
        let mut state = [0.3_f32; 30];
        let [a, b, c, d, e] = state.as_chunks_mut::<6>().0 else { unreachable!() };
        adamw::step(&adamw, scale, a, gradient, b, c);
        muon::step(&shape(2, 3), scale, d, gradient, e);
        state
    };
    assert_eq!(moved(0.5, &gradient), moved(1.0, &halved));
    assert_ne!(moved(0.5, &gradient), moved(1.0, &gradient));
}

#[test]
fn the_schedule_scales_the_rate_and_muon_has_another_for_the_rest() {
    let entry = Entry { name: "model.norm.weight".into(), shape: vec![1], range: 0..1 };
    let moved = |method: Method, rule: Rule| {
        let (mut values, mut first, mut second) = ([0.0], [0.0], [0.0]);
        let (values_mut, first, second) = (&mut values[..], &mut first[..], &mut second[..]);
        let piece = TensorSlice { rule, entry: &entry, values: values_mut, gradient: &[4.0], first, second };
        update(&Settings { max_grad_norm: 0.0, ..settings(method) }, 1, 1.0, 0.5, piece);
        values[0]
    };
    // lr 0.01, lr_other 0.02, and half of it by the schedule; AdamW's first step is the gradient's sign.
    let close =
        |found: f32, expected: f32| assert!((found - expected).abs() < 1e-7, "{found} for {expected}");
    close(moved(Method::Sgd, Rule::Sgd), -0.02);
    close(moved(Method::Adamw, Rule::AdamW), -0.005);
    close(moved(Method::Muon, Rule::AdamW), -0.01);
}

#[test]
fn only_a_rule_by_element_is_cut_into_pieces() {
    let length = PIECE + 1;
    let entry = Entry { name: "model.norm.weight".into(), shape: vec![1, length], range: 0..length };
    let sizes = |rule: Rule| {
        let (mut values, gradient) = (vec![0.0; length], vec![0.0; length]);
        let (mut first, mut second) = (vec![0.0; length], vec![0.0; length]);
        let (values, first, second) = (&mut values[..], &mut first[..], &mut second[..]);
        let mut pieces = Vec::new();
        split(TensorSlice { rule, entry: &entry, values, gradient: &gradient, first, second }, &mut pieces);
        pieces
            .iter()
            .map(|piece| [piece.values.len(), piece.gradient.len(), piece.first.len()])
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes(Rule::Muon), [[length; 3]]);
    assert_eq!(sizes(Rule::AdamW), [[PIECE; 3], [1; 3]]);
}

#[test]
fn a_gradient_far_below_epsilon_hardly_moves() {
    let rule = adamw::Step { rate: 1.0, betas: (0.9, 0.95), decay: 0.0, step: 1 };
    let (mut value, mut first, mut second) = ([0.0], [0.0], [0.0]);
    adamw::step(&rule, 1.0, &mut value, &[1e-9], &mut first, &mut second);
    // |g| / (|g| + ε)
    assert!((value[0] + 1.0 / 11.0).abs() < 1e-5, "{}", value[0]);
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

fn scale(gradient: &Gradients) -> StepScale {
    StepScale { gradient: 1.0, norm: norm(gradient), rate: 0.5 }
}

/// Some steps, and between them, if asked, a trip through the saved form.
fn steps(method: Method, threads: usize, reload: bool) -> (Parameters, Optimizer) {
    let layout = small_layout();
    let mut parameters = wavy(&layout, 0.0);
    let mut optimizer = Optimizer::new(settings(method), &layout);
    for step in 0..3 {
        let gradient = wavy(&layout, 1.0 + step as f32);
        optimizer.step(&mut parameters, &gradient, scale(&gradient), threads);
        if reload {
            let saved: BTreeMap<String, Vec<f32>> = tensors(method, &layout)
                .into_iter()
                .map(|kept| (kept.name, optimizer.moment(kept.moment, kept.tensor).to_vec()))
                .collect();
            let mut other = Optimizer::new(settings(method), &layout);
            let read = |name: &str, from: usize, values: &mut [f32]| {
                values.copy_from_slice(&saved[name][from..][..values.len()]);
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
fn slices_hold_everything_once_and_step_to_the_same_bits() {
    let layout = small_layout();
    for method in [Method::Adamw, Method::Sgd, Method::Muon] {
        let (expected, whole) = steps(method, 1, false);
        for count in [1, 2, 4, 8] {
            let slices = slices(method, &layout, count);
            assert_eq!((slices[0].start, slices[count - 1].end), (0, layout.len()));
            assert!(slices.windows(2).all(|pair| pair[0].end == pair[1].start), "{slices:?}");
            let mut parameters = wavy(&layout, 0.0);
            let mut kept = 0;
            for own in &slices {
                let mut optimizer = Optimizer::of_slice(settings(method), &layout, own.clone());
                for step in 0..3 {
                    let gradient = wavy(&layout, 1.0 + step as f32);
                    optimizer.step(&mut parameters, &gradient, scale(&gradient), 2);
                }
                kept += Optimizer::state_bytes(method, &layout, own);
                for StateTensor { tensor, moment, .. } in tensors(method, &layout) {
                    let range = &layout.entries[tensor].range;
                    let own = overlap(range, own);
                    let all = whole.moment(moment, tensor);
                    let part =
                        if own.is_empty() { &[][..] } else { &all[own.start - range.start..][..own.len()] };
                    assert_eq!(optimizer.moment(moment, tensor), part);
                }
            }
            assert_eq!(parameters, expected, "{method:?} in {count} slices");
            assert_eq!(kept, Optimizer::state_bytes(method, &layout, &(0..layout.len())));
        }
    }
}

#[test]
fn vectors_are_not_decayed() {
    let layout = small_layout();
    let mut parameters = wavy(&layout, 0.0);
    let before = parameters.clone();
    let mut optimizer = Optimizer::new(settings(Method::Sgd), &layout);
    let zeros = Parameters::zeros(&layout);
    optimizer.step(&mut parameters, &zeros, StepScale { gradient: 1.0, norm: 0.0, rate: 1.0 }, 1);
    for (entry, values) in parameters.tensors() {
        let old = before.get(&entry.name).expect("the same tensors");
        let factor = if entry.shape.len() == 2 { 1.0 - 0.01 * 0.1 } else { 1.0 };
        let expected: Vec<f32> = old.iter().map(|x| x * factor).collect();
        assert_eq!(values, expected, "{}", entry.name);
    }
}
