//! The engine against the oracle, over geometries, instruction sets and ways to batch.

use super::oracle::Oracle;
use super::support::{BENCH, Geometry, TINY, engine, instruction_sets, runtime, tokens};

/// log-softmax of one logit, in f64.
fn logprob(logits: &[f32], id: u32) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    (f64::from(logits[id as usize] - largest) - total.ln()) as f32
}

const fn geometry(family: &'static str, heads: usize, kv_heads: usize, head_size: usize) -> Geometry {
    Geometry { family, hidden: 72, layers: 2, heads, kv_heads, head_size, intermediate: 88 }
}

#[test]
fn every_geometry_agrees_with_group_query_attention() {
    runtime();
    let geometries = [
        TINY,
        BENCH,
        geometry("qwen3", 2, 1, 16),
        geometry("qwen3", 6, 2, 32),
        geometry("qwen3", 4, 4, 64),
        geometry("qwen3", 8, 2, 96),
        geometry("qwen3", 3, 1, 128),
        geometry("qwen3", 2, 2, 48),
        geometry("qwen3", 2, 1, 80),
        geometry("qwen2", 4, 2, 64),
        geometry("qwen2", 7, 1, 32),
        geometry("llama", 8, 1, 16),
        geometry("llama", 4, 2, 128),
        geometry("mistral", 4, 2, 32),
        geometry("smollm3", 4, 1, 64),
        geometry("phi3", 4, 2, 64),
        geometry("gemma3_text", 4, 2, 64),
    ];
    for shape in geometries {
        let made = shape.policy();
        let mut oracle = Oracle::open(&made.policy);
        // Prompts of one token, of exactly a block, and longer than a chunk of scores; a group larger than the rows
        // that the kernels take at a time.
        let groups = [(1, 2, 20), (16, 3, 17), (37, 70, 3), (300, 2, 18)];
        let sequences: Vec<(Vec<u32>, Vec<Vec<u32>>)> = groups
            .iter()
            .map(|&(prompt, branches, length)| {
                let name = format!("{prompt}");
                let completions = (0..branches).map(|branch| tokens(&name, branch, length)).collect();
                (tokens(&name, 1000, prompt), completions)
            })
            .collect();
        let expected: Vec<Vec<Vec<f32>>> = sequences
            .iter()
            .map(|(prompt, completions)| {
                let score = |completion: &Vec<u32>| {
                    let sequence = [prompt.as_slice(), completion].concat();
                    let logits = oracle.logits(&sequence, prompt.len() - 1);
                    completion.iter().zip(&logits).map(|(&id, logits)| logprob(logits, id)).collect()
                };
                completions.iter().map(score).collect()
            })
            .collect();
        for isa in instruction_sets() {
            let mut decoder = engine(&made.policy, isa, 64).decoder();
            let mut worst = 0.0_f32;
            for ((prompt, completions), expected) in sequences.iter().zip(&expected) {
                let scored = decoder.score(None, prompt, completions, 1.0);
                for (a, b) in scored.iter().flatten().zip(expected.iter().flatten()) {
                    worst = worst.max(if a.is_finite() { (a - b).abs() } else { f32::INFINITY });
                }
            }
            println!("{shape:?} {isa:?}: largest difference {worst:.2e}");
            assert!(worst <= 1e-4, "{shape:?} {isa:?}: {worst:.2e}");
        }
    }
}
