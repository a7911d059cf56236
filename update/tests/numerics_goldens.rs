//! Log-probabilities as `transformers` computes them, and gradients as PyTorch's autograd does, of tiny
//! checkpoints of every family (see `tests/golden/README.md`).

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "numerics/small.rs"]
mod small;

use policy::config::Config;
use policy::weights::Weights;
use serde_json::Value;
use small::relative;
use std::path::{Path, PathBuf};
use update::model::{Model, Parameters, RowLoss, Shape};
use update::tree::{Sequence, Tree, pack};

fn checkpoints(with: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.join(with).exists()).collect();
    found.sort();
    found
}

fn load(directory: &Path) -> (Model, Parameters) {
    let config = Config::load(directory).unwrap();
    let tensors = Weights::open(directory).unwrap();
    let model = Model::new(Shape {
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        layers: config.num_layers,
        heads: config.num_heads,
        kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        vocabulary: config.vocab_size,
        epsilon: config.rms_norm_eps,
        inverse_frequencies: config.inverse_frequencies(),
        qk_norm: config.qk_norm,
        attention_bias: config.attention_bias,
        tied: config.tie_word_embeddings,
    });
    let parameters = model.parameters(|entry, values| {
        let read = tensors.to_f32(&entry.name)?;
        assert_eq!(tensors.tensor(&entry.name)?.shape, entry.shape);
        values.copy_from_slice(&read);
        Ok::<(), record::failure::Failure>(())
    });
    (model, parameters.unwrap())
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn logprobs_are_those_of_transformers() {
    let found = checkpoints("logprobs.json");
    assert!(found.len() >= 3);
    for directory in found {
        let (model, parameters) = load(&directory);
        let cases = json(&directory.join("logprobs.json"));
        let samples: Vec<(Vec<u32>, Vec<u32>, &Value)> = cases["cases"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|case| {
                let completions = case["completions"].as_array().unwrap();
                completions.iter().map(|c| (ids(&case["prompt_ids"]), ids(&c["completion_ids"]), c))
            })
            .collect();
        let sequences: Vec<Sequence> =
            samples.iter().map(|(prompt, completion, _)| Sequence { prompt, completion }).collect();
        let tree = [pack(&sequences, true)];
        for (temperature, field) in [(1.0, "logprobs"), (0.7, "logprobs_temperature_0.7")] {
            let truth: Vec<f64> = samples.iter().flat_map(|(_, _, case)| numbers(&case[field])).collect();
            let scores = model.logprobs(&parameters, &tree, temperature, 1);
            let worst = scores[0]
                .logprobs
                .iter()
                .zip(&truth)
                .map(|(&found, truth)| (f64::from(found) - truth).abs())
                .fold(0.0, f64::max);
            println!("{}: {field}: largest difference {worst:.1e}", directory.display());
            assert_eq!(scores[0].logprobs.len(), truth.len());
            assert!(worst < 1e-4, "{}: {field}: {worst:.1e}", directory.display());
        }
    }
}

/// PPO's clipped objective (arXiv 1707.06347, equation 7), averaged over tokens.
struct Clip {
    /// Behaviour log-probabilities and advantage of each sample.
    samples: Vec<(Vec<f64>, f64)>,
    clip: f64,
    tokens: f64,
}

impl RowLoss for Clip {
    fn rows(&self, _: usize, tree: &Tree, logprobs: &[f32], derivative: &mut [f32]) {
        for ((row, &logprob), derivative) in tree.rows.iter().zip(logprobs).zip(derivative) {
            let (behaviour, advantage) = &self.samples[row.sequence as usize];
            let ratio = (f64::from(logprob) - behaviour[row.index as usize]).exp();
            let clipped = if *advantage > 0.0 { ratio > 1.0 + self.clip } else { ratio < 1.0 - self.clip };
            *derivative = if clipped { 0.0 } else { (-ratio * advantage / self.tokens) as f32 };
        }
    }
}

#[test]
fn gradients_are_those_of_pytorch() {
    let found = checkpoints("gradient.safetensors");
    assert!(found.len() >= 3);
    for directory in found {
        let (model, parameters) = load(&directory);
        let golden = json(&directory.join("gradient.json"));
        let temperature = golden["temperature"].as_f64().unwrap() as f32;
        let stream = std::fs::read_to_string(directory.join("samples.jsonl")).unwrap();
        let lines: Vec<Value> = stream
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|line| line["type"] == "sample")
            .collect();
        let tokens: Vec<(Vec<u32>, Vec<u32>)> =
            lines.iter().map(|line| (ids(&line["prompt_ids"]), ids(&line["completion_ids"]))).collect();
        let sequences: Vec<Sequence> =
            tokens.iter().map(|(prompt, completion)| Sequence { prompt, completion }).collect();
        let loss = Clip {
            samples: lines
                .iter()
                .map(|line| (numbers(&line["completion_logprobs"]), line["advantage"].as_f64().unwrap()))
                .collect(),
            clip: golden["clip"].as_f64().unwrap(),
            tokens: golden["tokens"].as_f64().unwrap(),
        };
        let truth = Weights::open_file(&directory.join("gradient.safetensors")).unwrap();
        for share in [true, false] {
            let tree = [pack(&sequences, share)];
            let mut gradients = model.gradients();
            let scores = model.accumulate(&parameters, &tree, temperature, 1, &mut gradients, &loss);
            let logprobs: Vec<f64> =
                golden["logprobs"].as_array().unwrap().iter().flat_map(numbers).collect();
            let error = relative(&scores[0].logprobs, &logprobs);
            assert!(error < 1e-5, "{}: logprobs {error:.1e}", directory.display());
            let mut worst = 0.0f64;
            for (entry, gradient) in gradients.tensors() {
                let truth: Vec<f64> = truth.to_f32(&entry.name).unwrap().into_iter().map(f64::from).collect();
                let error = relative(gradient, &truth);
                worst = worst.max(error);
                assert!(error < 1e-4, "{}: {}: {error:.1e}", directory.display(), entry.name);
            }
            println!("{}: largest relative difference of a tensor {worst:.1e}", directory.display());
        }
    }
}
