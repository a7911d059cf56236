//! The whole model against a reference in f64, finite differences, itself unpacked, and itself on more threads.

use crate::reference::Reference;
use crate::small::{Random, Weighted, configs, relative, samples, weights};
use gemm::Precision;
use policy::config::Config;
use update::model::{Gradients, Model, Parameters, Scores};
use update::tree::{Sequence, Tree, pack};

type Samples = Vec<Vec<(Vec<u32>, Vec<u32>)>>;

fn trees(samples: &Samples, share: bool) -> Vec<Tree> {
    let pack_group = |group: &Vec<(Vec<u32>, Vec<u32>)>| {
        let sequences: Vec<Sequence> =
            group.iter().map(|(prompt, completion)| Sequence { prompt, completion }).collect();
        pack(&sequences, share)
    };
    samples.iter().map(pack_group).collect()
}

fn gradient(
    model: &Model,
    parameters: &Parameters,
    trees: &[Tree],
    temperature: f32,
    threads: usize,
) -> (Gradients, Vec<Scores>) {
    let mut gradients = model.gradients();
    let scores = model.accumulate(parameters, trees, temperature, threads, &mut gradients, &Weighted);
    (gradients, scores)
}

#[test]
fn logprobs_and_entropies_are_those_of_the_reference() {
    for (name, config) in configs() {
        let mut random = Random(11);
        let model = Model::new(config.clone());
        let parameters = weights(&model, &mut random);
        let samples = samples(&mut random, config.vocab_size, 5);
        let reference = Reference::new(&config, &parameters);
        for temperature in [1.0, 0.7] {
            let truth: Vec<(f64, f64)> = samples
                .iter()
                .flatten()
                .flat_map(|(prompt, completion)| reference.score(prompt, completion, f64::from(temperature)))
                .collect();
            let scores = model.logprobs(&parameters, &trees(&samples, true), temperature, 1);
            let found: Vec<f32> = scores.iter().flat_map(|s| s.logprobs.clone()).collect();
            let entropies: Vec<f32> = scores.iter().flat_map(|s| s.entropies.clone()).collect();
            let logprob = relative(&found, &truth.iter().map(|t| t.0).collect::<Vec<_>>());
            let entropy = relative(&entropies, &truth.iter().map(|t| t.1).collect::<Vec<_>>());
            println!("{name} at {temperature}: logprobs {logprob:.1e}, entropies {entropy:.1e}");
            assert!(logprob < 1e-5 && entropy < 1e-5);
        }
    }
}

#[test]
fn gradients_are_the_slopes_of_the_reference() {
    for (name, config) in configs() {
        let mut random = Random(12);
        let model = Model::new(config.clone());
        let parameters = weights(&model, &mut random);
        let samples = samples(&mut random, config.vocab_size, 3);
        let temperature = 0.9;
        let (gradients, _) = gradient(&model, &parameters, &trees(&samples, true), temperature, 1);
        let reference = Reference::new(&config, &parameters);
        let loss = |reference: &Reference| -> f64 {
            let mut sum = 0.0;
            for (tree, group) in samples.iter().enumerate() {
                for (sequence, (prompt, completion)) in group.iter().enumerate() {
                    let scores = reference.score(prompt, completion, f64::from(temperature));
                    for (index, (logprob, _)) in scores.into_iter().enumerate() {
                        sum += f64::from(Weighted::weight(tree, sequence as u32, index as u32)) * logprob;
                    }
                }
            }
            sum
        };
        // Each tensor by itself, so that a mistake in a small one cannot hide behind a large one.
        for entry in &parameters.layout().entries {
            let mut direction = vec![0.0; parameters.values.len()];
            for value in &mut direction[entry.range.clone()] {
                *value = f64::from(random.signed());
            }
            let step = 1e-5;
            let slope = (loss(&reference.moved(&direction, step))
                - loss(&reference.moved(&direction, -step)))
                / (2.0 * step);
            let own = &gradients.values[entry.range.clone()];
            let found: f64 =
                own.iter().zip(&direction[entry.range.clone()]).map(|(&g, d)| f64::from(g) * d).sum();
            let size = own.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            let error = (found - slope).abs() / size.max(1e-9);
            assert!(error < 1e-4, "{name}: {}: {found} against {slope}, {error:.1e}", entry.name);
        }
    }
}

#[test]
fn a_tree_has_the_gradient_of_its_sequences() {
    for (name, config) in configs() {
        let mut random = Random(13);
        let model = Model::new(config.clone());
        let parameters = weights(&model, &mut random);
        let samples = samples(&mut random, config.vocab_size, 12);
        let (shared, scores) = gradient(&model, &parameters, &trees(&samples, true), 1.0, 1);
        let (separate, separate_scores) = gradient(&model, &parameters, &trees(&samples, false), 1.0, 1);
        for (entry, tensor) in separate.tensors() {
            let truth: Vec<f64> = tensor.iter().map(|&v| f64::from(v)).collect();
            let error = relative(shared.get(&entry.name).unwrap(), &truth);
            assert!(error < 1e-5, "{name}: {}: {error:.1e}", entry.name);
        }
        let flat = |scores: &[Scores]| scores.iter().flat_map(|s| s.logprobs.clone()).collect::<Vec<f32>>();
        let truth: Vec<f64> = flat(&separate_scores).into_iter().map(f64::from).collect();
        assert!(relative(&flat(&scores), &truth) < 1e-6);
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for precision in [Precision::Float32, Precision::BFloat16] {
        threads_do_not_change_a_bit_of(precision);
    }
}

fn threads_do_not_change_a_bit_of(precision: Precision) {
    let (_, config) = configs().swap_remove(0);
    let mut random = Random(14);
    let model = Model::new(config.clone()).rounding(precision);
    let parameters = weights(&model, &mut random);
    // Enough trees for many micro-batches.
    let samples = samples(&mut random, config.vocab_size, 1200);
    let trees = trees(&samples, true);
    let (one, scores) = gradient(&model, &parameters, &trees, 1.0, 1);
    let alone = model.logprobs(&parameters, &trees[7..8], 1.0, 1);
    assert!(alone[0] == scores[7], "scores depend on the micro-batch");
    for threads in [2, 3, 5] {
        let (more, more_scores) = gradient(&model, &parameters, &trees, 1.0, threads);
        assert!(one.values.iter().zip(&more.values).all(|(a, b)| a.to_bits() == b.to_bits()), "{threads}");
        assert!(scores == more_scores);
        assert!(scores == model.logprobs(&parameters, &trees, 1.0, threads));
    }
}

#[test]
fn layers_computed_again_give_the_same_bits() {
    for (name, config) in configs() {
        let mut random = Random(16);
        let model = Model::new(config.clone());
        let parameters = weights(&model, &mut random);
        let trees = trees(&samples(&mut random, config.vocab_size, 6), true);
        let (kept, scores) = gradient(&model, &parameters, &trees, 0.8, 1);
        let (again, scores_again) = gradient(&model.recomputing(), &parameters, &trees, 0.8, 1);
        assert!(scores == scores_again, "{name}");
        assert!(kept.values.iter().zip(&again.values).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}");
    }
}

#[test]
fn nothing_to_score_is_no_gradient() {
    let (_, config) = configs().swap_remove(0);
    let model = Model::new(config);
    let parameters = weights(&model, &mut Random(15));
    let empty = pack(&[Sequence { prompt: &[1, 2], completion: &[] }], true);
    for trees in [vec![], vec![empty.clone()], vec![empty.clone(), empty]] {
        let (gradients, scores) = gradient(&model, &parameters, &trees, 1.0, 2);
        assert!(gradients.values.iter().all(|&value| value == 0.0));
        assert_eq!(scores, vec![Scores::default(); trees.len()]);
        assert_eq!(model.logprobs(&parameters, &trees, 1.0, 2).len(), trees.len());
    }
}

/// With fewer micro-batches than threads some are shared: products, attention and the head are cut. With
/// enough micro-batches each has a separate gradient. One thread adds to the sum at once.
#[test]
fn threads_that_share_a_micro_batch_compute_the_bits_of_one() {
    for (tied, precision) in
        [(true, Precision::Float32), (false, Precision::Float32), (true, Precision::BFloat16)]
    {
        let config = Config::from_value(
            &serde_json::json!({
                "model_type": "qwen3", "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2,
                "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 6000,
                "max_position_embeddings": 1024, "tie_word_embeddings": tied,
            }),
            std::path::Path::new("config"),
        )
        .unwrap();
        let model = Model::new(config).rounding(precision);
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let fill = |_: &update::model::Entry, values: &mut [f32]| {
            values.iter_mut().for_each(|value| *value = (random() % 2001) as f32 * 1e-4 - 0.1);
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(parameters) = model.parameters(fill);
        let mut tokens = |count: usize| (0..count).map(|_| random() % 6000).collect::<Vec<u32>>();
        // Each longer than a block of a product's inner dimension, with tokens that answers repeat; the first has more scored
        // tokens than a block of logits.
        let trees: Vec<Tree> = [240, 140]
            .into_iter()
            .map(|length| {
                let (prompt, answers) = (tokens(60), [tokens(length), tokens(length + 1), tokens(150)]);
                let sequence = |answer| Sequence { prompt: &prompt, completion: answer };
                pack(&answers.iter().map(|answer| sequence(answer)).collect::<Vec<Sequence>>(), true)
            })
            .collect();
        let run = |trees: &[Tree], threads: usize| {
            let (gradients, scores) = gradient(&model, &parameters, trees, 0.7, threads);
            (gradients.values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>(), scores)
        };
        let one = run(&trees, 1);
        for threads in [2, 3, 4, 16] {
            assert!(one == run(&trees, threads), "{threads} threads, tied {tied}, {precision}");
        }
    }
}
