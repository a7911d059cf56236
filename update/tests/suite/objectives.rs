//! The loss of an optimizer batch and its derivatives, against PyTorch's autograd in f64 (`vectors/`).

use record::read::Line;
use record::sample::Sample;
use serde_json::{Value, json};
use update::aggregate::{Aggregate, Mean};
use update::loss::{BatchLoss, LossInputs, ReferenceLogprobs};
use update::loss_config::{Importance, LossConfig, Objective, RatioLevel, WeightLevel};
use update::model::RowLoss;
use update::objective::WeightBounds;
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

/// Clipped token ratios, and nothing else.
fn plain() -> LossConfig {
    LossConfig {
        objective: Objective::Clip,
        clip_range: (0.2, 0.2),
        ratio: RatioLevel::Token,
        kl: 0.0,
        importance: None,
        mask_negative_above: None,
        entropy: 0.0,
    }
}

/// Without log-probabilities under other weights.
fn inputs(config: LossConfig, aggregate: Aggregate, samples: &Samples) -> LossInputs<'_> {
    LossInputs { config, aggregate, samples, logprobs: ReferenceLogprobs::default() }
}

fn truncated(cap: f64) -> Importance {
    Importance { level: WeightLevel::Token, outside: WeightBounds { floor: 0.0, cap, mask: false } }
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
            importance: name.starts_with("cap").then(|| truncated(objectives["cap"].as_f64().unwrap())),
            ..plain()
        };
        let reference_logprobs = ReferenceLogprobs {
            reference: with_kl.then_some(&reference[..]),
            start: (name == "cap+start").then_some(&start[..]),
        };
        let loss = BatchLoss::new(
            LossInputs { logprobs: reference_logprobs, ..inputs(config, aggregate, &samples) },
            &members,
        );
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
    let config = LossConfig { objective: Objective::Nll, ..plain() };
    let aggregate = Aggregate::Token;
    let loss = BatchLoss::new(inputs(config, aggregate, &samples), &members);
    let tree = pack(&[samples.sequence(0)], true);
    let mut new = vec![-1.0; tree.rows.len()];
    new[0] = f32::NAN;
    loss.rows(0, &tree, &new, &mut vec![0.0; new.len()]);
    let token_stats = loss.token_stats();
    assert_eq!((token_stats.tokens, token_stats.not_finite), (samples.rows[0].length(), 1));
}

/// Two samples, whose losses and slopes TRL 1.16's `_compute_loss` and its autograd computed.
struct Pair {
    new: [&'static [f32]; 2],
    start: [&'static [f32]; 2],
    recorded: [&'static [f32]; 2],
    advantages: [f64; 2],
}

const PAIR: Pair = Pair {
    new: [&[-1.0, -0.5, -2.0], &[-0.7, -1.2]],
    start: [&[-1.3, -0.4, -2.1], &[-0.5, -1.0]],
    recorded: [&[-1.35, -0.4, -2.1], &[-0.5, -1.6]],
    advantages: [1.5, -0.75],
};

impl Pair {
    /// The loss, and the slope of each token.
    fn loss(&self, config: LossConfig, aggregate: Aggregate) -> (f64, Vec<f64>) {
        let objectives = json!({"advantages": self.advantages, "old": self.recorded});
        let (samples, members) = (samples(&objectives), vec![vec![1, 0]]);
        let start: Vec<Vec<f32>> = self.start.iter().map(|start| start.to_vec()).collect();
        let logprobs = ReferenceLogprobs { reference: None, start: Some(&start) };
        let loss = BatchLoss::new(LossInputs { logprobs, ..inputs(config, aggregate, &samples) }, &members);
        let sequences: Vec<Sequence> = members[0].iter().map(|&index| samples.sequence(index)).collect();
        let tree = pack(&sequences, true);
        let new: Vec<f32> = tree
            .rows
            .iter()
            .map(|row| self.new[members[0][row.sequence as usize]][row.index as usize])
            .collect();
        let mut slopes = vec![0.0; new.len()];
        loss.rows(0, &tree, &new, &mut slopes);
        let mean = Mean { aggregate, samples: 2, tokens: 5, max_tokens: 8 };
        // The second sample comes first in the tree.
        slopes.rotate_left(2);
        let slopes = slopes.iter().map(|&slope| f64::from(slope) * mean.scale()).collect();
        (loss.token_stats().loss * mean.scale(), slopes)
    }
}

#[test]
fn sequence_ratios_cispo_and_masks_are_those_of_trl() {
    let on_start = Pair { recorded: PAIR.start, ..PAIR };
    // Only the second sample may be masked; it is compared with the recorded values.
    let drifted = Pair { recorded: [PAIR.start[0], PAIR.recorded[1]], ..PAIR };
    let gspo = LossConfig { ratio: RatioLevel::Sequence, ..plain() };
    let weighed = |level, mask| LossConfig {
        importance: Some(Importance { level, outside: WeightBounds { floor: 0.0, cap: 1.5, mask } }),
        ..plain()
    };
    let masked = |bound| LossConfig { mask_negative_above: Some(bound), ..plain() };
    let (token, sequence) = (Aggregate::Token, Aggregate::Sequence);
    let pushed = [0.0, -0.271451, -0.331551];
    let sequence_weighed = [0.0, -0.285369, -0.348550];
    for (name, pair, config, aggregate, loss, first, second) in [
        (
            "clip, sequence",
            &on_start,
            plain(),
            sequence,
            -0.495478,
            [0.0, -0.226209, -0.276293],
            [0.153512, 0.153512],
        ),
        ("clip, token", &on_start, plain(), token, -0.717383, pushed, [0.122810, 0.122810]),
        ("GSPO 0.2", &on_start, gspo, sequence, -0.521854, [-0.276293; 3], [0.153512; 2]),
        (
            "GSPO 3e-4, 4e-4",
            &on_start,
            LossConfig { clip_range: (3e-4, 4e-4), ..gspo },
            sequence,
            -0.375412,
            [0.0; 3],
            [0.0; 2],
        ),
        (
            "CISPO",
            &on_start,
            LossConfig { objective: Objective::Cispo, ..plain() },
            token,
            0.925490,
            [-0.36, -0.271451, -0.331551],
            [0.122810, 0.122810],
        ),
        (
            "TIS token",
            &PAIR,
            weighed(WeightLevel::Token, false),
            token,
            -0.674436,
            pushed,
            [0.122810, 0.184214],
        ),
        ("MIS token", &PAIR, weighed(WeightLevel::Token, true), token, -0.858650, pushed, [0.122810, 0.0]),
        (
            "TIS sequence",
            &PAIR,
            weighed(WeightLevel::Sequence, false),
            token,
            -0.643948,
            sequence_weighed,
            [0.184214; 2],
        ),
        (
            "MIS sequence",
            &PAIR,
            weighed(WeightLevel::Sequence, true),
            token,
            -1.012377,
            sequence_weighed,
            [0.0; 2],
        ),
        ("one-sided", &drifted, masked(-0.2), token, -0.963003, pushed, [0.0; 2]),
        ("one-sided, wide", &on_start, masked(0.3), token, -0.717383, pushed, [0.122810, 0.122810]),
    ] {
        let (found, slopes) = pair.loss(config, aggregate);
        let expected = [&first[..], &second[..]].concat();
        let close = slopes.iter().zip(&expected).all(|(slope, expected)| (slope - expected).abs() < 1e-6);
        assert!(
            (found - loss).abs() < 1e-6 && close,
            "{name}: {found:.6} {slopes:.6?}, not {loss} {expected:?}"
        );
    }
}

/// Finite differences of the loss by each token's log-probability, where every flag is at work.
#[test]
fn slopes_are_the_derivatives_of_the_loss() {
    let importance =
        |level| Some(Importance { level, outside: WeightBounds { floor: 0.0, cap: 1.5, mask: false } });
    for config in [
        LossConfig { ratio: RatioLevel::Sequence, importance: importance(WeightLevel::Token), ..plain() },
        LossConfig { ratio: RatioLevel::Sequence, importance: importance(WeightLevel::Sequence), ..plain() },
        LossConfig {
            importance: importance(WeightLevel::Sequence),
            mask_negative_above: Some(0.5),
            ..plain()
        },
    ] {
        for aggregate in [Aggregate::Token, Aggregate::Sequence] {
            let (_, slopes) = PAIR.loss(config, aggregate);
            let mut place = 0;
            for sample in 0..2 {
                for index in 0..PAIR.new[sample].len() {
                    let at = |step: f32| {
                        let mut moved: Vec<Vec<f32>> = PAIR.new.iter().map(|new| new.to_vec()).collect();
                        moved[sample][index] += step;
                        let moved: Vec<&'static [f32]> = moved.into_iter().map(|new| &*new.leak()).collect();
                        let step = f64::from(moved[sample][index]);
                        (step, Pair { new: [moved[0], moved[1]], ..PAIR }.loss(config, aggregate).0)
                    };
                    let ((above, more), (below, less)) = (at(1e-3), at(-1e-3));
                    let numeric = (more - less) / (above - below);
                    assert!(
                        (slopes[place] - numeric).abs() < 1e-5,
                        "{config:?} {place}: {} {numeric}",
                        slopes[place]
                    );
                    place += 1;
                }
            }
        }
    }
}

/// The entropy lowers the loss by its weight times the mean, and each row's derivative is its share.
#[test]
fn the_entropy_counts_as_the_aggregate_says() {
    let objectives = json!({"advantages": PAIR.advantages, "old": PAIR.recorded});
    let (samples, members) = (samples(&objectives), vec![vec![0, 1]]);
    let sequences: Vec<Sequence> = members[0].iter().map(|&index| samples.sequence(index)).collect();
    let tree = pack(&sequences, true);
    let entropies = [0.5, 1.0, 1.5, 2.0, 4.0];
    for (aggregate, term, slopes) in [
        (Aggregate::Token, -0.1 * 9.0 / 5.0, [-0.02; 5]),
        (Aggregate::Sequence, -0.1 * (1.0 + 3.0) / 2.0, [-0.1 / 6.0, -0.1 / 6.0, -0.1 / 6.0, -0.025, -0.025]),
    ] {
        let config = LossConfig { entropy: 0.1, ..plain() };
        let loss = BatchLoss::new(inputs(config, aggregate, &samples), &members);
        let scale = Mean { aggregate, samples: 2, tokens: 5, max_tokens: 8 }.scale();
        assert!((loss.entropy_term(0, &tree, &entropies) * scale - term).abs() < 1e-9);
        let mut found = vec![0.0; 5];
        assert!(loss.entropies(0, &tree, &mut found) && loss.by_row().is_none());
        let close =
            found.iter().zip(slopes).all(|(found, slope)| (f64::from(*found) * scale - slope).abs() < 1e-8);
        assert!(close, "{aggregate:?}: {found:?} {slopes:?}");
    }
    let loss = BatchLoss::new(inputs(plain(), Aggregate::Token, &samples), &members);
    assert!(!loss.entropies(0, &tree, &mut [0.0; 5]) && loss.by_row().is_some());
}
