//! Log-probabilities and entropies of the CPU backend and their gradients, against f64 loops and finite differences.

use update::backend::{Backend, Cpu, Dense, LmHead, MicroBatch, ScoreGradient};
use update::tree::{Sequence, pack};

use crate::numerics_operations::{FREQUENCIES, batch, compare, wide};
use crate::small::{Random, relative};

/// Log-probabilities and entropies, and the gradient of the former.
fn score(seed: u64, batch: MicroBatch, vocabulary: usize, hidden: usize, check_weights: bool) {
    let mut random = Random(seed);
    let mut cpu = Cpu::new(&FREQUENCIES);
    let (rows, scored) = (batch.rows.clone(), batch.scored.len());
    let prepared = cpu.prepare(batch);
    let (x, weights) = (random.values(scored * hidden), random.values(1 + vocabulary * hidden));
    let weight = Dense { offset: 1, outputs: vocabulary, inputs: hidden };
    let head = LmHead { hidden: &x, weights: &weights, weight, temperature: 0.8 };
    let (mut logprobs, mut entropies) = (vec![0.0; rows.len()], vec![0.0; rows.len()]);
    cpu.score(&prepared, &head, &mut logprobs, &mut entropies);
    let d_logprobs = random.values(rows.len());
    let (mut d_x, mut gradients) = (vec![f32::NAN; x.len()], vec![0.0; weights.len()]);
    cpu.score_backward(
        &prepared,
        &head,
        ScoreGradient::of_logprobs(&d_logprobs),
        &mut d_x,
        Some(&mut gradients),
    );
    let distribution = |v: &[Vec<f64>], node: u32| -> Vec<f64> {
        let x = &v[0][node as usize * hidden..][..hidden];
        let logits: Vec<f64> = v[1][1..]
            .chunks(hidden)
            .map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() / f64::from(head.temperature))
            .collect();
        let total = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        logits.iter().map(|logit| logit - total).collect()
    };
    let function = |v: &[Vec<f64>]| {
        rows.iter().map(|&(node, target)| distribution(v, node)[target as usize]).collect::<Vec<_>>()
    };
    if check_weights {
        compare("score", &[&x, &weights], function, &logprobs, &d_logprobs, &[&d_x, &gradients]);
        // A loss of the entropies, too.
        let d_entropies = random.values(rows.len());
        let (mut d_x, mut gradients) = (vec![f32::NAN; x.len()], vec![0.0; weights.len()]);
        cpu.score(&prepared, &head, &mut logprobs, &mut entropies);
        let both = ScoreGradient { logprobs: &d_logprobs, entropies: Some((&d_entropies, &entropies)) };
        cpu.score_backward(&prepared, &head, both, &mut d_x, Some(&mut gradients));
        let scores = |v: &[Vec<f64>]| {
            let entropy = |&(node, _): &(u32, u32)| -> f64 {
                distribution(v, node).iter().map(|logprob| -logprob * logprob.exp()).sum()
            };
            [function(v), rows.iter().map(entropy).collect()].concat()
        };
        let (found, weighed) =
            ([logprobs.clone(), entropies.clone()].concat(), [&d_logprobs[..], &d_entropies].concat());
        compare("score and entropy", &[&x, &weights], scores, &found, &weighed, &[&d_x, &gradients]);
    } else {
        let inputs = [wide(&x), wide(&weights)];
        assert!(relative(&logprobs, &function(&inputs)) < 1e-5);
        // One direction for all, as there are too many weights to move each.
        let (along_x, along_w) = (random.values(x.len()), random.values(weights.len()));
        let loss = |step: f64| {
            let moved = |values: &[f64], along: &[f32]| -> Vec<f64> {
                values.iter().zip(along).map(|(v, &d)| v + step * f64::from(d)).collect()
            };
            let at = [moved(&inputs[0], &along_x), moved(&inputs[1], &along_w)];
            function(&at).iter().zip(&d_logprobs).map(|(y, &w)| y * f64::from(w)).sum::<f64>()
        };
        let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let found = dot(&d_x, &along_x) + dot(&gradients, &along_w);
        assert!((found - slope).abs() < 1e-4 * slope.abs().max(1.0), "{found} against {slope}");
    }
    let inputs = [wide(&x), wide(&weights)];
    let truth: Vec<f64> = rows
        .iter()
        .map(|&(node, _)| distribution(&inputs, node).iter().map(|logprob| -logprob * logprob.exp()).sum())
        .collect();
    let error = relative(&entropies, &truth);
    assert!(error < 1e-5, "entropies {error:.1e}");
}

/// The derivative of the entropy by logits of 1, 0 and -1, against an independent script's.
#[test]
fn the_entropy_of_three_tokens_has_its_derivative() {
    for (temperature, entropy, slopes) in
        [(1.0, 0.832396, [-0.282587, 0.140770, 0.141817]), (0.7, 0.650573, [-0.430035, 0.274006, 0.156030])]
    {
        let mut cpu = Cpu::new(&FREQUENCIES);
        let sequence = Sequence { prompt: &[0], completion: &[1] };
        let prepared = cpu.prepare(MicroBatch::new(&[pack(&[sequence], true)]));
        let (x, weights) = (vec![1.0], vec![1.0, 0.0, -1.0]);
        let weight = Dense { offset: 0, outputs: 3, inputs: 1 };
        let head = LmHead { hidden: &x, weights: &weights, weight, temperature };
        let (mut logprobs, mut entropies) = (vec![0.0], vec![0.0]);
        cpu.score(&prepared, &head, &mut logprobs, &mut entropies);
        let (mut d_x, mut gradients) = (vec![0.0], vec![0.0; 3]);
        let of_entropy = ScoreGradient { logprobs: &[0.0], entropies: Some((&[1.0], &entropies)) };
        cpu.score_backward(&prepared, &head, of_entropy, &mut d_x, Some(&mut gradients));
        assert!((entropies[0] - entropy).abs() < 1e-6, "{entropies:?}");
        let close = gradients.iter().zip(slopes).all(|(found, slope)| (found - slope).abs() < 1e-6);
        assert!(close, "{gradients:?} {slopes:?}");
    }
}

#[test]
fn scores() {
    score(8, batch(&mut Random(8), 19), 19, 7, true);
    // More of the vocabulary than one chunk, kept for the backward pass.
    score(9, batch(&mut Random(9), 9000), 9000, 5, false);
}

#[test]
fn scores_too_many_to_keep() {
    let mut random = Random(10);
    let vocabulary = 5000;
    let (prompt, completion) = (random.tokens(1, vocabulary), random.tokens(600, vocabulary));
    let tree = pack(&[Sequence { prompt: &prompt, completion: &completion }], true);
    score(10, MicroBatch::new(&[tree]), vocabulary, 3, false);
}
