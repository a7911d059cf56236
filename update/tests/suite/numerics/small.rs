//! Small decoders, random weights and random groups.

use policy::config::{Config, Variant};
use policy::rope::RopeScaling;
use policy::weights::ElementType;
use std::convert::Infallible;
use update::model::{Entry, Model, Parameters, RowLoss};
use update::tree::Tree;

/// A generator of pseudo-random numbers (Knuth's MMIX constants).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit
    }

    /// Uniform in [-1, 1).
    pub fn signed(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn values(&mut self, length: usize) -> Vec<f32> {
        (0..length).map(|_| self.signed()).collect()
    }

    pub fn tokens(&mut self, length: usize, vocabulary: usize) -> Vec<u32> {
        (0..length).map(|_| self.below(vocabulary) as u32).collect()
    }
}

/// A Llama-like decoder: hidden and intermediate size, layers, query and key heads, head size, vocabulary.
pub fn llama(sizes: [usize; 7]) -> Config {
    let [hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size] = sizes;
    Config {
        family: "test",
        hidden_size,
        intermediate_size,
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
        vocab_size,
        rms_norm_eps: 1e-6,
        rope_theta: 1e3,
        rope_scaling: RopeScaling::None,
        tie_word_embeddings: false,
        qk_norm: false,
        attention_bias: false,
        rope_layers: vec![true; num_layers],
        max_positions: 4096,
        variant: Variant::default(),
        dtype: ElementType::F32,
    }
}

/// Decoders like four families, with sizes that divide nothing.
pub fn configs() -> Vec<(&'static str, Config)> {
    let [qwen3, qwen2, smollm3] =
        [[36, 50, 3, 4, 2, 10, 71], [33, 47, 2, 6, 2, 6, 53], [28, 30, 3, 2, 1, 14, 40]].map(llama);
    vec![
        ("qwen3", Config { qk_norm: true, tie_word_embeddings: true, ..qwen3 }),
        ("qwen2", Config { attention_bias: true, ..qwen2 }),
        ("llama", llama([20, 35, 1, 3, 3, 8, 30])),
        ("smollm3", Config { rope_layers: vec![true, false, false], ..smollm3 }),
    ]
}

/// Random weights, large enough that every part of the decoder matters.
pub fn weights(model: &Model, random: &mut Random) -> Parameters {
    let read = |entry: &Entry, values: &mut [f32]| {
        let norm = entry.name.contains("norm");
        let size = if norm { 0.4 } else { 0.35 };
        for value in values {
            *value = f32::from(norm) + size * random.signed();
        }
        Ok::<(), Infallible>(())
    };
    let Ok(parameters) = model.parameters(read);
    parameters
}

/// Prompts and completions: groups with a shared prompt, equal beginnings and equal completions.
pub fn samples(random: &mut Random, vocabulary: usize, groups: usize) -> Vec<Vec<(Vec<u32>, Vec<u32>)>> {
    (0..groups)
        .map(|_| {
            let length = 1 + random.below(20);
            let prompt = random.tokens(length, vocabulary);
            let members = 1 + random.below(4);
            let mut group: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
            for member in 0..members {
                let length = 1 + random.below(9);
                let completion = match member {
                    2 => group[0].1.clone(),
                    3 => [&group[0].1[..1], &random.tokens(length, vocabulary)[..]].concat(),
                    _ => random.tokens(length, vocabulary),
                };
                group.push((prompt.clone(), completion));
            }
            // A sample that goes on where the first ended.
            let longer = [&group[0].0[..], &group[0].1[..]].concat();
            group.push((longer, random.tokens(3, vocabulary)));
            group
        })
        .collect()
}

/// `sum over rows of weight(sequence, index) * logprob`, with weights that look random.
pub struct Weighted;

impl Weighted {
    pub fn weight(tree: usize, sequence: u32, index: u32) -> f32 {
        ((tree * 31 + sequence as usize * 7 + index as usize * 3) as f32 * 0.7).sin()
    }
}

impl RowLoss for Weighted {
    fn rows(&self, tree_index: usize, tree: &Tree, _: &[f32], derivative: &mut [f32]) {
        for (row, derivative) in tree.rows.iter().zip(derivative) {
            *derivative = Weighted::weight(tree_index, row.sequence, row.index);
        }
    }
}

/// `|found - truth| / |truth|` in the Euclidean norm.
pub fn relative(found: &[f32], truth: &[f64]) -> f64 {
    assert_eq!(found.len(), truth.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = square(&mut found.iter().zip(truth).map(|(&a, b)| f64::from(a) - b));
    difference / square(&mut truth.iter().copied()).max(1e-30)
}

/// Cosine of the angle between two vectors.
pub fn cosine(a: &[f32], b: &[f64]) -> f64 {
    let dot: f64 = a.iter().zip(b).map(|(&a, b)| f64::from(a) * b).sum();
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    dot / (norm(&mut a.iter().map(|&a| f64::from(a))) * norm(&mut b.iter().copied()))
}

/// Converts numbers to f64.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
