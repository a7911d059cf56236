//! The loss of an optimizer batch and its derivatives, against PyTorch's autograd in f64 (`vectors/`).

use record::read::Line;
use record::sample::Sample;
use serde_json::{Value, json};
use update::aggregate::{Aggregate, Mean};
use update::arguments::Objective;
use update::loss::{BatchLoss, LossConfig, ReferenceLogprobs};
use update::model::RowLoss;
use update::samples::{Needs, Samples};
use update::tree::{Sequence, pack};

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn samples(objectives: &Value) -> Samples {
    let needs = Needs { logprobs: true, advantage: true, full_distribution: true };
    let mut samples = Samples::default();
    for (index, advantage) in numbers(&objectives["advantages"]).into_iter().enumerate() {
        let old: Vec<f32> = numbers(&objectives["old"][index]).into_iter().map(|x| x as f32).collect();
        let ids: Vec<u32> = (0..old.len() as u32).collect();
        let text = json!({
            "type": "sample", "v": 1, "agent": "a", "policy_version": "0:00000000", "prompt_ids": [7, 7, index],
            "completion_ids": ids, "completion_logprobs": old, "advantage": advantage,
            "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "greedy": false, "seed": 1},
        });
        let line = Line::parse("test", index as u64 + 1, text.to_string()).unwrap();
        samples.push(&Sample::parse(&line).unwrap(), &line, needs).unwrap();
    }
    samples
}

#[test]
fn losses_and_slopes_are_those_of_autograd() {
    let vectors: Value = serde_json::from_str(include_str!("../vectors/vectors.json")).unwrap();
    let objectives = &vectors["objectives"];
    let samples = samples(objectives);
    let recorded = |what: &str| -> Vec<Vec<f32>> {
        let of = |index| numbers(&objectives[what][index]).into_iter().map(|x| x as f32).collect();
        (0..4).map(of).collect()
    };
    let (reference, start) = (recorded("reference"), recorded("start"));
    // Two trees, so that sums over trees are part of the test.
    let members = vec![vec![2, 0], vec![1, 3]];
    for case in objectives["cases"].as_array().unwrap() {
        let name = case["objective"].as_str().unwrap();
        let aggregate = match case["aggregate"].as_str().unwrap() {
            "token" => Aggregate::Token,
            "sequence" => Aggregate::Sequence,
            _ => Aggregate::Constant,
        };
        let max_tokens = objectives["max_tokens"].as_u64().unwrap() as usize;
        let mean = Mean { aggregate, samples: samples.rows.len(), tokens: samples.tokens(), max_tokens };
        let with_kl = name == "clip+kl";
        let config = LossConfig {
            objective: if name == "nll" { Objective::Nll } else { Objective::Clip },
            clip_range: (objectives["low"].as_f64().unwrap(), objectives["high"].as_f64().unwrap()),
            kl: if with_kl { objectives["kl"].as_f64().unwrap() } else { 0.0 },
            importance_cap: name.starts_with("cap").then(|| objectives["cap"].as_f64().unwrap()),
        };
        let reference_logprobs = ReferenceLogprobs {
            reference: with_kl.then_some(&reference[..]),
            start: (name == "cap+start").then_some(&start[..]),
        };
        let loss = BatchLoss::new(config, &samples, &members, aggregate, reference_logprobs);
        let mut largest = 0.0f64;
        for (tree_index, members) in members.iter().enumerate() {
            let sequences: Vec<Sequence> = members.iter().map(|&index| samples.sequence(index)).collect();
            let tree = pack(&sequences, true);
            let place = |row: &update::tree::LossRow| (members[row.sequence as usize], row.index as usize);
            let new: Vec<f32> = tree
                .rows
                .iter()
                .map(|row| numbers(&objectives["new"][place(row).0])[place(row).1] as f32)
                .collect();
            let mut slopes = vec![0.0; new.len()];
            loss.rows(tree_index, &tree, &new, &mut slopes);
            // A backend that scores row by row gets the same from one row.
            let by_row = loss.by_row().unwrap();
            for (index, (&new, &slope)) in new.iter().zip(&slopes).enumerate() {
                assert_eq!(by_row.derivative(tree_index, &tree, index, new), slope, "{name}: row {index}");
            }
            for (row, &slope) in tree.rows.iter().zip(&slopes) {
                let expected = numbers(&case["slopes"][place(row).0])[place(row).1];
                largest = std::cmp::max_by(
                    largest,
                    (f64::from(slope) * mean.scale() - expected).abs(),
                    f64::total_cmp,
                );
            }
        }
        let token_stats = loss.token_stats();
        assert_eq!((token_stats.tokens, token_stats.not_finite), (samples.tokens(), 0), "{name}");
        assert_eq!(
            token_stats.truncated > 0,
            name.starts_with("cap"),
            "{name}: {} truncated",
            token_stats.truncated
        );
        let difference = (token_stats.loss * mean.scale() - case["loss"].as_f64().unwrap()).abs();
        println!("{name} {aggregate:?}: loss off by {difference:e}, slopes by up to {largest:e}");
        assert!(difference < 1e-12, "{name} {aggregate:?}: loss off by {difference:e}");
        assert!(largest < 1e-7, "{name} {aggregate:?}: slopes off by {largest:e}");
    }
}

/// A weighted log-likelihood has no recorded log-probability to compare with, and counts its tokens all the same.
#[test]
fn log_likelihood_counts_tokens_and_what_is_no_number() {
    let vectors: Value = serde_json::from_str(include_str!("../vectors/vectors.json")).unwrap();
    let samples = samples(&vectors["objectives"]);
    let members = vec![vec![0]];
    let config =
        LossConfig { objective: Objective::Nll, clip_range: (0.2, 0.2), kl: 0.0, importance_cap: None };
    let aggregate = Aggregate::Token;
    let loss = BatchLoss::new(config, &samples, &members, aggregate, ReferenceLogprobs::default());
    let tree = pack(&[samples.sequence(0)], true);
    let mut new = vec![-1.0; tree.rows.len()];
    new[0] = f32::NAN;
    loss.rows(0, &tree, &new, &mut vec![0.0; new.len()]);
    let token_stats = loss.token_stats();
    assert_eq!((token_stats.tokens, token_stats.not_finite), (samples.rows[0].length(), 1));
}
