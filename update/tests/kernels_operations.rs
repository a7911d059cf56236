//! Every operation of the device backend in the simulator, under several schedules, against the processor backend on
//! the same bf16 inputs; attention against plain f64 loops as well. Sizes leave tiles, warps and blocks unfilled.
//!
//! Results in bf16 are off by their rounding, a relative L2 of 1.7e-3; results in f32 must agree to 1e-5.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and prints figures"
)]

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "numerics/small.rs"]
mod small;

use device::{Any, Device};
use half::bf16;
use small::{Random, relative};
use update::backend::{Backend, Batch, Cpu, Dense, Gpu, Head, Heads, Rotated, Rows, Values};
use update::tree::{LossRow, Sequence, Tree, pack};

const SEEDS: std::ops::Range<u64> = 0..4;
/// Allowed relative L2 of results in bf16, of attention's gradients, and of results in f32.
const HALF: f64 = 4e-3;
const GRADIENT: f64 = 1e-2;
const SINGLE: f64 = 1e-5;

/// A backend whose buffers can be filled and read.
trait Host: Backend {
    fn put(&mut self, values: &[f32]) -> Self::Buffer;
    fn put_single(&mut self, values: &[f32]) -> Self::Buffer;
    fn get(&mut self, buffer: &Self::Buffer, length: usize) -> Vec<f32>;
}

impl Host for Cpu {
    fn put(&mut self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }
    fn put_single(&mut self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }
    fn get(&mut self, buffer: &Vec<f32>, length: usize) -> Vec<f32> {
        buffer[..length].to_vec()
    }
}

impl Host for Gpu<Any> {
    fn put(&mut self, values: &[f32]) -> Values {
        let mut buffer = self.buffer();
        self.write(values, &mut buffer);
        buffer
    }
    fn put_single(&mut self, values: &[f32]) -> Values {
        let mut buffer = self.statistics();
        self.write(values, &mut buffer);
        buffer
    }
    fn get(&mut self, buffer: &Values, length: usize) -> Vec<f32> {
        let mut values = vec![0.0; length];
        self.read(buffer, &mut values);
        self.outcome().unwrap();
        values
    }
}

fn frequencies(width: usize) -> Vec<f32> {
    (0..width / 2).map(|pair| 1e3f32.powf(-2.0 * pair as f32 / width as f32)).collect()
}

fn simulated(width: usize, seed: u64) -> Gpu<Any> {
    let mut device = Any::for_tests(seed).unwrap();
    device.reserve(256 << 20).unwrap();
    Gpu::new(device, &frequencies(width))
}

/// Random values that bf16 holds exactly.
fn values(random: &mut Random, length: usize) -> Vec<f32> {
    (0..length).map(|_| bf16::from_f32(random.signed()).to_f32()).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// What an operation produced, by name, and how exact it should be.
type Results = Vec<(&'static str, Vec<f32>, f64)>;

/// Runs an operation on the processor and in the simulator, and compares what they produced.
fn compare(
    name: &str,
    width: usize,
    on_processor: impl Fn(&mut Cpu) -> Results,
    on_device: impl Fn(&mut Gpu<Any>) -> Results,
) {
    let truth = on_processor(&mut Cpu::new(&frequencies(width)));
    let mut first: Option<Results> = None;
    for seed in SEEDS {
        let found = on_device(&mut simulated(width, seed));
        for ((what, truth, _), (_, found, allowed)) in truth.iter().zip(&found) {
            let error = relative(found, &wide(truth));
            if seed == 0 {
                println!("{name}: {what} {error:.1e}");
            }
            assert!(error <= *allowed, "{name} seed {seed}: {what} {error:.1e}");
        }
        // Whatever the order of threads, the same bits.
        let first = first.get_or_insert_with(|| found.clone());
        assert!(*first == found, "{name}: seed {seed} differs from seed 0");
    }
}

macro_rules! compare_both {
    ($name:expr, $width:expr, $operation:expr) => {
        compare($name, $width, |backend| $operation(backend), |backend| $operation(backend))
    };
}

/// A forest: a group with a shared prompt of `prompt` tokens and answers of `answers`, and another small tree.
fn forest(random: &mut Random, vocabulary: usize, prompt: usize, answers: &[usize]) -> Batch {
    let shared = random.tokens(prompt, vocabulary);
    let answers: Vec<Vec<u32>> = answers.iter().map(|&length| random.tokens(length, vocabulary)).collect();
    let sequences: Vec<Sequence> =
        answers.iter().map(|answer| Sequence { prompt: &shared, completion: answer }).collect();
    let other = random.tokens(11, vocabulary);
    let second = pack(&[Sequence { prompt: &other[..4], completion: &other[4..] }], true);
    Batch::new(&[pack(&sequences, true), second])
}

/// One node that predicts one token.
fn single() -> Batch {
    let rows = vec![LossRow { node: 0, target: 3, sequence: 0, index: 0 }];
    Batch::new(&[Tree { ids: vec![5], positions: vec![0], ends: vec![1], rows }])
}

/// Batches of all kinds: branches over several tiles, one token, one completion, an empty one among others.
fn batches(vocabulary: usize) -> Vec<(&'static str, Batch)> {
    let mut random = Random(7);
    vec![
        ("branches", forest(&mut random, vocabulary, 75, &[40, 61, 3, 40])),
        ("one completion", forest(&mut random, vocabulary, 20, &[9])),
        ("an empty completion", forest(&mut random, vocabulary, 5, &[6, 0, 2])),
        ("a token", single()),
    ]
}

#[test]
fn embedding() {
    let (vocabulary, hidden) = (23, 40);
    for (name, batch) in batches(vocabulary) {
        let mut random = Random(1);
        let weights = values(&mut random, 8 + vocabulary * hidden);
        let d_out = values(&mut random, batch.tokens() * hidden);
        let before = random.values(weights.len());
        let table = Dense { at: 8, outputs: vocabulary, inputs: hidden };
        fn run<B: Host>(
            b: &mut B,
            batch: &Batch,
            weights: &[f32],
            d_out: &[f32],
            before: &[f32],
            table: Dense,
        ) -> Results {
            let prepared = b.prepare(batch.clone());
            let (weights, d, mut g) = (b.put(weights), b.put(d_out), b.put_single(before));
            let mut out = b.put(&vec![0.0; d_out.len()]);
            b.embed(&prepared, &weights, table, &mut out);
            b.embed_backward(&prepared, &d, &mut g, table);
            vec![("out", b.get(&out, d_out.len()), 0.0), ("gradient", b.get(&g, before.len()), SINGLE)]
        }
        compare_both!(&format!("embedding, {name}"), 16, |b| run(
            b, &batch, &weights, &d_out, &before, table
        ));
    }
}

#[test]
fn rms_norm() {
    for (rows, width) in [(3, 40), (300, 24), (1, 8), (2, 1096)] {
        let mut random = Random(2);
        let (x, weights) = (values(&mut random, rows * width), values(&mut random, 8 + width));
        let (d_out, passing) = (values(&mut random, rows * width), values(&mut random, rows * width));
        let before = random.values(8 + width);
        #[allow(clippy::too_many_arguments)]
        fn run<B: Host>(
            b: &mut B,
            rows: usize,
            width: usize,
            x: &[f32],
            w: &[f32],
            d: &[f32],
            passing: &[f32],
            before: &[f32],
        ) -> Results {
            let (xb, wb, db, mut d_x) = (b.put(x), b.put(w), b.put(d), b.put(passing));
            let (mut out, mut g) = (b.put(&vec![0.0; x.len()]), b.put_single(before));
            b.rms_norm(rows, width, &xb, &wb, 8, 1e-3, &mut out);
            b.rms_norm_backward(rows, width, &xb, &wb, 8, 1e-3, &db, &mut d_x, Some(&mut g));
            vec![
                ("out", b.get(&out, x.len()), HALF),
                ("d_x", b.get(&d_x, x.len()), HALF),
                ("gradient", b.get(&g, before.len()), SINGLE),
            ]
        }
        compare_both!(&format!("rms_norm {rows} x {width}"), 16, |b| run(
            b, rows, width, &x, &weights, &d_out, &passing, &before
        ));
    }
}

#[test]
fn products() {
    for (rows, inputs, outputs) in [(5, 24, 40), (70, 8, 16), (1, 16, 8)] {
        let mut random = Random(3);
        let weight = Dense { at: 8, outputs, inputs };
        let (x, w) = (values(&mut random, rows * inputs), values(&mut random, 8 + outputs * inputs));
        let (residual, d_out) = (values(&mut random, rows * outputs), values(&mut random, rows * outputs));
        #[allow(clippy::too_many_arguments)]
        fn run<B: Host>(
            b: &mut B,
            rows: usize,
            weight: Dense,
            x: &[f32],
            w: &[f32],
            residual: &[f32],
            d: &[f32],
        ) -> Results {
            let (xb, wb, rb, db) = (b.put(x), b.put(w), b.put(residual), b.put(d));
            let (mut plain, mut added) = (b.put(residual), b.put(&vec![0.0; residual.len()]));
            let (mut d_x, mut g) = (b.put(x), b.put_single(w));
            b.linear(rows, &xb, &wb, weight, None, &mut plain);
            b.linear(rows, &xb, &wb, weight, Some(&rb), &mut added);
            b.linear_backward_input(rows, &db, &wb, weight, true, &mut d_x);
            b.linear_backward_weight(rows, &db, &xb, &mut g, weight);
            vec![
                ("plain", b.get(&plain, residual.len()), HALF),
                ("added", b.get(&added, residual.len()), HALF),
                ("d_x", b.get(&d_x, x.len()), HALF),
                ("gradient", b.get(&g, w.len()), SINGLE),
            ]
        }
        compare_both!(&format!("linear {rows} x {inputs} -> {outputs}"), 16, |b| run(
            b, rows, weight, &x, &w, &residual, &d_out
        ));
    }
}

#[test]
fn rotated_heads() {
    for (width, heads, others) in [(8, 3, 2), (16, 2, 2), (64, 2, 0), (80, 1, 1), (128, 1, 1), (256, 1, 1)] {
        for (bias, norm) in [(false, false), (true, false), (false, true), (true, true)] {
            for rows in [Rows::All, Rows::Scored] {
                let mut random = Random(4);
                let batch = forest(&mut random, 20, 9, &[4, 7]);
                let count = if rows == Rows::All { batch.tokens() } else { batch.scored.len() };
                let stride = (heads + others) * width;
                let (bias_at, norm_at) = (8, 8 + stride);
                let rotated = Rotated {
                    heads,
                    width,
                    stride,
                    bias: bias.then_some(bias_at),
                    norm: norm.then_some(norm_at),
                    epsilon: 1e-3,
                };
                let weights = values(&mut random, norm_at + width);
                let projection = values(&mut random, count * stride);
                let (d_out, d_rest) =
                    (values(&mut random, count * heads * width), values(&mut random, count * stride));
                #[allow(clippy::too_many_arguments)]
                fn run<B: Host>(
                    b: &mut B,
                    batch: &Batch,
                    rows: Rows,
                    rotated: Rotated,
                    w: &[f32],
                    p: &[f32],
                    d: &[f32],
                    rest: &[f32],
                ) -> Results {
                    let prepared = b.prepare(batch.clone());
                    let (wb, mut pb, db) = (b.put(w), b.put(p), b.put(d));
                    let (mut out, mut d_p, mut g) =
                        (b.put(&vec![0.0; d.len()]), b.put(rest), b.put_single(w));
                    b.rotate(&prepared, rows, rotated, &wb, &mut pb, &mut out);
                    let first = b.get(&out, d.len());
                    b.rotate_again(&prepared, rows, rotated, &wb, &pb, &mut out);
                    let again = b.get(&out, d.len());
                    let error = relative(&again, &wide(&first));
                    assert!(error <= 1e-6, "again is not the same: {error}");
                    b.rotate_backward(&prepared, rows, rotated, &wb, &pb, &db, &mut d_p, Some(&mut g));
                    // The gradient of a norm is read from a projection that was rounded after its bias.
                    let exact = if rotated.bias.is_some() { HALF } else { SINGLE };
                    vec![
                        ("projection", b.get(&pb, p.len()), HALF),
                        ("out", first, HALF),
                        ("d_projection", b.get(&d_p, p.len()), HALF),
                        ("gradient", b.get(&g, w.len()), exact),
                    ]
                }
                let name =
                    format!("rotate {heads} + {others} of {width}, bias {bias}, norm {norm}, {rows:?}");
                compare_both!(&name, width, |b| run(
                    b,
                    &batch,
                    rows,
                    rotated,
                    &weights,
                    &projection,
                    &d_out,
                    &d_rest
                ));
            }
        }
    }
}

#[test]
fn swiglu() {
    for (rows, width) in [(3, 40), (70, 16), (1, 8)] {
        let mut random = Random(5);
        let gate_up: Vec<f32> = values(&mut random, 2 * rows * width).iter().map(|x| x * 4.0).collect();
        let d_out = values(&mut random, rows * width);
        fn run<B: Host>(b: &mut B, rows: usize, width: usize, gate_up: &[f32], d: &[f32]) -> Results {
            let (mut gu, db) = (b.put(gate_up), b.put(d));
            let (mut out, mut again) = (b.put(&vec![0.0; d.len()]), b.put(&vec![0.0; d.len()]));
            b.swiglu(rows, width, &gu, &mut out);
            b.swiglu_backward(rows, width, &mut gu, &db, &mut again);
            let out = b.get(&out, d.len());
            let error = relative(&b.get(&again, d.len()), &wide(&out));
            assert!(error <= 1e-6, "again is not the same: {error}");
            vec![("out", out, HALF), ("d_gate_up", b.get(&gu, gate_up.len()), HALF)]
        }
        compare_both!(&format!("swiglu {rows} x {width}"), 16, |b| run(b, rows, width, &gate_up, &d_out));
    }
}

#[test]
fn rows_are_gathered_and_scattered() {
    let width = 24;
    for (name, batch) in batches(20) {
        let mut random = Random(6);
        let x = values(&mut random, batch.tokens() * width);
        let rows = values(&mut random, batch.scored.len() * width);
        fn run<B: Host>(b: &mut B, batch: &Batch, width: usize, x: &[f32], rows: &[f32]) -> Results {
            let prepared = b.prepare(batch.clone());
            let (mut xb, rb, mut out) = (b.put(x), b.put(rows), b.put(rows));
            b.gather(&prepared, width, &xb, &mut out);
            b.scatter_add(&prepared, width, &rb, &mut xb);
            vec![("gathered", b.get(&out, rows.len()), 0.0), ("scattered", b.get(&xb, x.len()), HALF)]
        }
        compare_both!(&format!("rows, {name}"), 16, |b| run(b, &batch, width, &x, &rows));
    }
}

#[test]
fn scored_rows() {
    for (vocabulary, hidden, temperature) in [(97, 16, 0.7), (1003, 8, 1.0), (8, 8, 1.3)] {
        for (name, batch) in batches(vocabulary) {
            let mut random = Random(8);
            let head = Head { weight: Dense { at: 8, outputs: vocabulary, inputs: hidden }, temperature };
            let weights = values(&mut random, 8 + vocabulary * hidden);
            let x: Vec<f32> =
                values(&mut random, batch.scored.len() * hidden).iter().map(|x| x * 2.0).collect();
            let d = random.values(batch.rows.len());
            fn run<B: Host>(
                b: &mut B,
                batch: &Batch,
                head: Head,
                w: &[f32],
                x: &[f32],
                d: &[f32],
            ) -> Results {
                let prepared = b.prepare(batch.clone());
                let (wb, xb, mut d_x, mut g) = (b.put(w), b.put(x), b.put(x), b.put_single(w));
                let (mut logprobs, mut entropies) = (vec![0.0; d.len()], vec![0.0; d.len()]);
                b.score(&prepared, &xb, &wb, head, &mut logprobs, &mut entropies);
                b.score_backward(&prepared, &xb, &wb, head, d, &mut d_x, Some(&mut g));
                vec![
                    ("logprobs", logprobs, SINGLE),
                    ("entropies", entropies, SINGLE),
                    ("d_hidden", b.get(&d_x, x.len()), HALF),
                    ("gradient", b.get(&g, w.len()), HALF),
                ]
            }
            compare_both!(&format!("score over {vocabulary}, {name}"), 16, |b| run(
                b, &batch, head, &weights, &x, &d
            ));
        }
    }
}

/// Attention and its gradients by queries, keys and values in f64: `[out, normalizers, d_q, d_k, d_v]`.
fn attention_in_f64(
    batch: &Batch,
    nodes: &[u32],
    heads: Heads,
    q: &[f32],
    k: &[f32],
    p: &[f32],
    d: &[f32],
) -> [Vec<f64>; 5] {
    let (width, value_row) = (heads.width, 2 * heads.keys * heads.width);
    let scale = 1.0 / (width as f64).sqrt();
    let mut found =
        [q.len(), nodes.len() * heads.queries, q.len(), k.len(), p.len()].map(|length| vec![0.0; length]);
    let [out, normalizers, d_q, d_k, d_v] = &mut found;
    for (row, &node) in nodes.iter().enumerate() {
        for head in 0..heads.queries {
            let kh = head * heads.keys / heads.queries;
            let at = (row * heads.queries + head) * width;
            let key = |j: usize| (j * heads.keys + kh) * width;
            let value = |j: usize| j * value_row + (heads.keys + kh) * width;
            let seen: Vec<usize> = (0..=node as usize).filter(|&j| node < batch.ends[j]).collect();
            let dot = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
            };
            let scores: Vec<f64> =
                seen.iter().map(|&j| scale * dot(&q[at..at + width], &k[key(j)..key(j) + width])).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let normalizer = top + scores.iter().map(|s| (s - top).exp()).sum::<f64>().ln();
            normalizers[row * heads.queries + head] = normalizer;
            let weights: Vec<f64> = scores.iter().map(|s| (s - normalizer).exp()).collect();
            let slopes: Vec<f64> =
                seen.iter().map(|&j| dot(&d[at..at + width], &p[value(j)..value(j) + width])).collect();
            let mean: f64 = weights.iter().zip(&slopes).map(|(w, s)| w * s).sum();
            for ((&j, weight), slope) in seen.iter().zip(&weights).zip(&slopes) {
                let ds = weight * (slope - mean) * scale;
                for c in 0..width {
                    out[at + c] += weight * f64::from(p[value(j) + c]);
                    d_v[value(j) + c] += weight * f64::from(d[at + c]);
                    d_q[at + c] += ds * f64::from(k[key(j) + c]);
                    d_k[key(j) + c] += ds * f64::from(q[at + c]);
                }
            }
        }
    }
    found
}

fn attention_of(width: usize, queries: usize, keys: usize, batches: Vec<(&'static str, Batch)>) {
    let heads = Heads { queries, keys, width };
    for (name, batch) in batches {
        for rows in [Rows::All, Rows::Scored] {
            let mut random = Random(9);
            let all: Vec<u32> = (0..batch.tokens() as u32).collect();
            let nodes = if rows == Rows::All { &all } else { &batch.scored };
            let (q, k) = (
                values(&mut random, nodes.len() * queries * width),
                values(&mut random, batch.tokens() * keys * width),
            );
            let (p, d) = (values(&mut random, 2 * k.len()), values(&mut random, q.len()));
            let truth = attention_in_f64(&batch, nodes, heads, &q, &k, &p, &d);
            let mut first: Option<Vec<Vec<f32>>> = None;
            for seed in SEEDS {
                let gpu = &mut simulated(width, seed);
                let prepared = gpu.prepare(batch.clone());
                let (qb, kb, pb, db) = (gpu.put(&q), gpu.put(&k), gpu.put(&p), gpu.put(&d));
                let (mut out, mut normalizers) =
                    (gpu.put(&vec![0.0; q.len()]), gpu.put_single(&vec![0.0; nodes.len() * queries]));
                gpu.attention(&prepared, rows, heads, &qb, &kb, &pb, &mut out, &mut normalizers);
                let (mut d_q, mut d_k, mut d_p) = (gpu.put(&q), gpu.put(&k), gpu.put(&vec![0.0; p.len()]));
                gpu.attention_backward(
                    &prepared,
                    rows,
                    heads,
                    &qb,
                    &kb,
                    &pb,
                    &out,
                    &normalizers,
                    &db,
                    &mut d_q,
                    &mut d_k,
                    &mut d_p,
                );
                let found = vec![
                    gpu.get(&out, q.len()),
                    gpu.get(&normalizers, nodes.len() * queries),
                    gpu.get(&d_q, q.len()),
                    gpu.get(&d_k, k.len()),
                    gpu.get(&d_p, p.len()),
                ];
                let expected = [
                    ("out", HALF),
                    ("normalizers", SINGLE),
                    ("d_queries", GRADIENT),
                    ("d_keys", GRADIENT),
                    ("d_values", GRADIENT),
                ];
                for (((what, allowed), found), truth) in expected.iter().zip(&found).zip(&truth) {
                    // The gradient of a softmax over one key is zero: then rounding is all there is to see.
                    let size = truth.iter().map(|t| t * t).sum::<f64>().sqrt();
                    if size < 1e-9 {
                        assert!(found.iter().all(|x| x.abs() < 1e-2), "{what}");
                        continue;
                    }
                    let error = relative(found, truth);
                    if seed == 0 {
                        println!(
                            "attention {queries}/{keys} x {width}, {name}, {rows:?}: {what} {error:.1e}"
                        );
                    }
                    assert!(error <= *allowed, "{width} {name} {rows:?} seed {seed}: {what} {error:.1e}");
                }
                assert!(
                    *first.get_or_insert_with(|| found.clone()) == found,
                    "{name}: seed {seed} differs from seed 0"
                );
            }
        }
    }
}

#[test]
fn attention_of_narrow_heads() {
    attention_of(16, 4, 2, batches(50));
    attention_of(8, 3, 3, batches(50).split_off(1));
    attention_of(32, 2, 1, batches(50).split_off(1));
}

#[test]
fn attention_of_wide_heads() {
    attention_of(64, 2, 2, batches(50));
    attention_of(128, 2, 1, batches(50).split_off(1));
    attention_of(80, 1, 1, batches(50).split_off(2));
    attention_of(256, 2, 1, batches(50).split_off(1));
}
