//! How fast gradients are: forward and backward of a batch of groups, tokens counted as peers count them
//! (every candidate's prompt and completion) and as they are computed (shared prefixes once).
//!
//! `cargo bench -p update --bench update -- [--preset bench|tiny|small|0.6B] [--dtype float32|bfloat16]
//! [--threads N] [--rounds N] [--groups N] [--branches K] [--prompt P] [--completion C] [--separate] [--forward]`
//!
//! CPU seconds cover the whole process; a round is one call of `Model::accumulate`.

use gemm::Precision;
use policy::config::Config;
use std::io::Write;
use std::time::Instant;
use update::model::{Model, RowLoss};
use update::tree::{Sequence, Tree, pack};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn tokens(&mut self, count: usize, vocabulary: usize) -> Vec<u32> {
        (0..count).map(|_| (self.next() % vocabulary as u64) as u32).collect()
    }
}

/// Policy gradient with an advantage of alternating sign.
struct Alternating;

impl RowLoss for Alternating {
    fn rows(&self, _: usize, tree: &Tree, _: &[f32], derivative: &mut [f32]) {
        for (row, derivative) in tree.rows.iter().zip(derivative) {
            *derivative = if row.sequence.is_multiple_of(2) { -1e-4 } else { 1e-4 };
        }
    }
}

fn config(preset: &str) -> Config {
    let (hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary) = match preset {
        "tiny" => (96, 3, 6, 3, 16, 256, 512),
        "small" => (512, 14, 8, 4, 64, 1536, 8192),
        "0.6B" => (1024, 28, 16, 8, 128, 3072, 151_936),
        _ => (256, 4, 4, 2, 64, 768, 512),
    };
    let json = serde_json::json!({
        "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "vocab_size": vocabulary, "max_position_embeddings": 4096, "tie_word_embeddings": true,
    });
    Config::from_value(&json, std::path::Path::new("preset")).unwrap_or_else(|failure| panic!("{failure:?}"))
}

/// Seconds this process has computed, from the kernel's account.
fn cpu_seconds() -> f64 {
    let account = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = account
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0.0))
        .collect();
    // The fields after the name start with the third; user and system time are the 14th and 15th, in ticks
    // of a hundredth of a second.
    fields.get(11..13).map_or(0.0, |times| times.iter().sum::<f64>() / 100.0)
}

/// Largest resident size so far, MB.
fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

fn option<T: std::str::FromStr>(name: &str, default: T) -> T {
    let mut arguments = std::env::args().skip_while(|argument| argument != name).skip(1);
    arguments.next().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Floating-point operations of the linear layers, forward and backward, with what the last layer leaves out.
fn linear_operations(config: &Config, trees: &[Tree]) -> f64 {
    let tokens: usize = trees.iter().map(Tree::len).sum();
    let mut scored = 0;
    for tree in trees {
        let mut nodes: Vec<u32> = tree.rows.iter().map(|row| row.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        scored += nodes.len();
    }
    let key_value = 2 * config.key_width() * config.hidden_size;
    let rest =
        2 * config.query_width() * config.hidden_size + 3 * config.hidden_size * config.intermediate_size;
    let values = (config.num_layers - 1) * tokens * (key_value + rest)
        + tokens * key_value
        + scored * (rest + config.hidden_size * config.vocab_size);
    6.0 * values as f64
}

fn main() -> std::io::Result<()> {
    let preset = option("--preset", "bench".to_owned());
    let tiny = preset == "tiny";
    let groups = option("--groups", if tiny { 400 } else { 32 });
    let branches = option("--branches", if tiny { 8 } else { 4 });
    let (prompt, completion) =
        (option("--prompt", if tiny { 70 } else { 128 }), option("--completion", if tiny { 5 } else { 64 }));
    let (threads, rounds) = (option("--threads", 1), option("--rounds", 5));
    let separate = std::env::args().any(|argument| argument == "--separate");
    let forward = std::env::args().any(|argument| argument == "--forward");

    let config = config(&preset);
    let model = Model::new(config.clone()).rounding(option("--dtype", Precision::Float32));
    let mut random = Random(7);
    let fill = |_: &update::model::Entry, values: &mut [f32]| {
        for value in values {
            *value = (random.next() % 2001) as f32 * 4e-5 - 0.04;
        }
        Ok::<(), std::convert::Infallible>(())
    };
    let Ok(parameters) = model.parameters(fill);
    let mut random = Random(8);
    let trees: Vec<Tree> = (0..groups)
        .map(|_| {
            let start = random.tokens(prompt, config.vocab_size);
            let answers: Vec<Vec<u32>> =
                (0..branches).map(|_| random.tokens(completion, config.vocab_size)).collect();
            let sequences: Vec<Sequence> =
                answers.iter().map(|answer| Sequence { prompt: &start, completion: answer }).collect();
            pack(&sequences, !separate)
        })
        .collect();
    let counted = (groups * branches * (prompt + completion)) as f64;
    let unique: usize = trees.iter().map(Tree::len).sum();
    let operations = linear_operations(&config, &trees);
    let mut gradients = model.gradients();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{preset}: {} parameters, {groups} groups of {branches}, {prompt} + {completion} tokens: {counted} counted, {unique} unique; {threads} threads",
        parameters.values.len()
    )?;
    for round in 0..=rounds {
        gradients.values.fill(0.0);
        let (wall, cpu) = (Instant::now(), cpu_seconds());
        match forward {
            true => drop(model.logprobs(&parameters, &trees, 1.0, threads)),
            false => drop(model.accumulate(&parameters, &trees, 1.0, threads, &mut gradients, &Alternating)),
        }
        let (wall, cpu) = (wall.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let share = if forward { operations / 3.0 } else { operations };
        writeln!(
            out,
            "{} wall {wall:.3} s, cpu {cpu:.2} s: {:.0} counted tokens/CPU-s, {:.0} unique/CPU-s, {:.0} counted/wall-s, {:.1} GFLOP/s per thread in linear layers",
            if round == 0 { "cold " } else { "round" },
            counted / cpu,
            unique as f64 / cpu,
            counted / wall,
            share / wall / threads as f64 / 1e9
        )?;
    }
    writeln!(out, "peak memory {:.0} MB", peak_memory())
}
