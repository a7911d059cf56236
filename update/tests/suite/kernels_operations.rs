//! Every operation of the GPU backend in the simulator, under several schedules, against the CPU backend on
//! the same bf16 inputs; attention against plain f64 loops as well. Sizes leave tiles, warps and blocks unfilled.
//!
//! Results in bf16 are off by their rounding, a relative L2 of 1.7e-3; results in f32 must agree to 1e-5.

use crate::harness::{HALF, Host, Results, SINGLE, batches, compare, forest, simulated, values};
use crate::small::{Random, relative, wide};
use update::backend::{
    Activation, Backend, Dense, Embedding, Linear, LmHead, MicroBatch, QkNormRope, RmsNorm, RowScores, Rows,
    ScoreGradient,
};

macro_rules! compare_both {
    ($name:expr, $width:expr, $operation:expr) => {
        compare($name, $width, |backend| $operation(backend), |backend| $operation(backend))
    };
}

#[test]
fn embedding() {
    let (vocabulary, hidden) = (23, 40);
    for (name, batch) in batches(vocabulary) {
        let mut random = Random(1);
        let weights = values(&mut random, 8 + vocabulary * hidden);
        let d_out = values(&mut random, batch.tokens() * hidden);
        let before = random.values(weights.len());
        let table = Dense { offset: 8, outputs: vocabulary, inputs: hidden };
        fn run<B: Host>(
            b: &mut B,
            batch: &MicroBatch,
            weights: &[f32],
            d_out: &[f32],
            before: &[f32],
            table: Dense,
        ) -> Results {
            let prepared = b.prepare(batch.clone());
            let (weights, d, mut g) = (b.put(weights), b.put_single(d_out), b.put_single(before));
            let mut out = b.put_single(&vec![0.0; d_out.len()]);
            let embedding = Embedding { table, scale: 1.0 };
            b.embed(&prepared, &weights, embedding, &mut out);
            b.embed_backward(&prepared, &d, &mut g, embedding);
            vec![("out", b.get(&out, d_out.len()), 0.0), ("gradient", b.get(&g, before.len()), SINGLE)]
        }
        compare_both!(&format!("embedding, {name}"), 16, |b| run(
            b, &batch, &weights, &d_out, &before, table
        ));
    }
}

#[test]
fn rms_norm() {
    // Up to 8192 columns stay in registers. With 800 rows a block of narrow rows has two, with 100 rows a
    // block of wide ones.
    for (rows, width) in [(3, 40), (800, 24), (1, 8), (2, 1096), (2, 8192), (100, 8200)] {
        let mut random = Random(2);
        let (x, weights) = (random.values(rows * width), values(&mut random, 8 + width));
        let (d_out, passing) = (random.values(rows * width), random.values(rows * width));
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
            let (xb, wb, db, mut d_x) = (b.put_single(x), b.put(w), b.put_single(d), b.put_single(passing));
            let (mut out, mut g) = (b.put(&vec![0.0; x.len()]), b.put_single(before));
            let norm =
                RmsNorm { rows, width, x: &xb, weights: &wb, offset: 8, epsilon: 1e-3, minus_one: false };
            b.rms_norm(&norm, &mut out);
            b.rms_norm_backward(&norm, &db, &mut d_x, Some(&mut g));
            vec![
                ("out", b.get(&out, x.len()), HALF),
                ("d_x", b.get(&d_x, x.len()), SINGLE),
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
        let weight = Dense { offset: 8, outputs, inputs };
        let (x, w) = (values(&mut random, rows * inputs), values(&mut random, 8 + outputs * inputs));
        let (residual, d_out) = (random.values(rows * outputs), values(&mut random, rows * outputs));
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
            let (xb, wb, rb, db) = (b.put(x), b.put(w), b.put_single(residual), b.put(d));
            let (mut plain, mut onto) = (b.put(residual), b.put(d));
            let mut added = b.put_single(&vec![0.0; residual.len()]);
            let (mut d_x, mut g) = (b.put(x), b.put_single(w));
            let linear = Linear { rows, weights: &wb, weight };
            b.linear(&linear, &xb, None, &mut plain);
            b.linear(&linear, &xb, Some(&rb), &mut added);
            b.linear_add(&linear, &xb, &mut onto);
            b.linear_backward_input(&linear, &db, true, &mut d_x);
            b.linear_backward_weight(rows, &db, &xb, &mut g, weight);
            vec![
                ("plain", b.get(&plain, residual.len()), HALF),
                ("added", b.get(&added, residual.len()), SINGLE),
                ("onto", b.get(&onto, d.len()), HALF),
                ("d_x", b.get(&d_x, x.len()), HALF),
                ("gradient", b.get(&g, w.len()), SINGLE),
            ]
        }
        compare_both!(&format!("linear {rows} x {inputs} -> {outputs}"), 16, |b| run(
            b, rows, weight, &x, &w, &residual, &d_out
        ));
    }
}

/// The operation over weights in another backend's memory.
fn with_weights<'a, T>(op: &QkNormRope<'_, Vec<f32>>, weights: &'a T) -> QkNormRope<'a, T> {
    let QkNormRope { rows, heads, width, stride, bias, norm, epsilon, minus_one, rope, .. } = *op;
    QkNormRope { rows, weights, heads, width, stride, bias, norm, epsilon, minus_one, rope }
}

#[test]
fn qk_norm_rope() {
    // A few heads of every width, enough for warps of the backward kernel to have two.
    let heads_of = [(8, 3, 2), (8, 128, 0), (16, 2, 2), (64, 2, 0), (80, 1, 1), (128, 1, 1), (256, 1, 1)];
    for (width, heads, others) in heads_of {
        for (bias, norm) in [(false, false), (true, false), (false, true), (true, true)] {
            for rows in [Rows::All, Rows::Scored] {
                let mut random = Random(4);
                let batch = forest(&mut random, 20, 9, &[4, 7]);
                let count = if rows == Rows::All { batch.tokens() } else { batch.scored.len() };
                let stride = (heads + others) * width;
                let (bias_at, norm_at) = (8, 8 + stride);
                let weights = values(&mut random, norm_at + width);
                // One layer without positions (NoPE) for each variant.
                let rope = (rows != Rows::All || width != 64).then_some(0);
                let op = QkNormRope {
                    rows,
                    weights: &weights,
                    heads,
                    width,
                    stride,
                    bias: bias.then_some(bias_at),
                    norm: norm.then_some(norm_at),
                    epsilon: 1e-3,
                    minus_one: false,
                    rope,
                };
                let projection = values(&mut random, count * stride);
                let (d_out, d_rest) =
                    (values(&mut random, count * heads * width), values(&mut random, count * stride));
                fn run<B: Host>(
                    b: &mut B,
                    batch: &MicroBatch,
                    op: &QkNormRope<'_, Vec<f32>>,
                    p: &[f32],
                    d: &[f32],
                    rest: &[f32],
                ) -> Results {
                    let prepared = b.prepare(batch.clone());
                    let (wb, mut pb, db) = (b.put(op.weights), b.put(p), b.put_single(d));
                    let (mut out, mut d_p, mut g) =
                        (b.put(&vec![0.0; d.len()]), b.put(rest), b.put_single(op.weights));
                    let weights = op.weights.len();
                    let op = with_weights(op, &wb);
                    b.qk_norm_rope(&prepared, &op, &mut pb, &mut out);
                    let first = b.get(&out, d.len());
                    b.qk_norm_rope(&prepared, &op.recompute(), &mut pb, &mut out);
                    let recomputed = b.get(&out, d.len());
                    let error = relative(&recomputed, &wide(&first));
                    assert!(error <= 1e-6, "recomputed is not the same: {error}");
                    b.qk_norm_rope_backward(&prepared, &op, &pb, &db, &mut d_p, Some(&mut g));
                    // The gradient of a norm is read from a projection that was rounded after its bias.
                    let exact = if op.bias.is_some() { HALF } else { SINGLE };
                    vec![
                        ("projection", b.get(&pb, p.len()), HALF),
                        ("out", first, HALF),
                        ("d_projection", b.get(&d_p, p.len()), HALF),
                        ("gradient", b.get(&g, weights), exact),
                    ]
                }
                let name = format!(
                    "qk-norm + RoPE {heads} + {others} of {width}, bias {bias}, norm {norm}, RoPE {rope:?}, {rows:?}"
                );
                compare_both!(&name, width, |b| run(b, &batch, &op, &projection, &d_out, &d_rest));
            }
        }
    }
}

#[test]
fn swiglu() {
    for (rows, width) in [(3, 40), (70, 16), (1, 8), (2, 2088)] {
        let mut random = Random(5);
        let gate_up: Vec<f32> = values(&mut random, 2 * rows * width).iter().map(|x| x * 4.0).collect();
        let d_out = values(&mut random, rows * width);
        fn run<B: Host>(b: &mut B, rows: usize, width: usize, gate_up: &[f32], d: &[f32]) -> Results {
            let (mut gu, db) = (b.put(gate_up), b.put_single(d));
            let (mut out, mut again) = (b.put(&vec![0.0; d.len()]), b.put(&vec![0.0; d.len()]));
            b.swiglu(Activation::Silu, rows, width, &gu, &mut out);
            b.swiglu_backward(Activation::Silu, rows, width, &mut gu, &db, &mut again);
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
        fn run<B: Host>(b: &mut B, batch: &MicroBatch, width: usize, x: &[f32], rows: &[f32]) -> Results {
            let prepared = b.prepare(batch.clone());
            let (mut xb, rb, mut out) = (b.put(x), b.put(rows), b.put(rows));
            b.gather(&prepared, width, &xb, &mut out);
            b.scatter_add(&prepared, width, &rb, &mut xb);
            // The residual stream and its gradient, and what products read of them.
            let (mut stream, d_stream, mut gathered_stream) =
                (b.put_single(x), b.put_single(rows), b.put_single(rows));
            b.gather(&prepared, width, &stream, &mut gathered_stream);
            b.scatter_add(&prepared, width, &d_stream, &mut stream);
            let mut copy = b.put(&vec![0.0; x.len()]);
            let read = b.cast_for_gemm(x.len(), &stream, &mut copy);
            vec![
                ("gathered", b.get(&out, rows.len()), 0.0),
                ("scattered", b.get(&xb, x.len()), HALF),
                ("gathered_stream", b.get(&gathered_stream, rows.len()), 0.0),
                ("read by products", b.get(read, x.len()), HALF),
                ("stream", b.get(&stream, x.len()), SINGLE),
            ]
        }
        compare_both!(&format!("rows, {name}"), 16, |b| run(b, &batch, width, &x, &rows));
    }
}

/// Enough scored nodes for several chunks of logits: scoring that differentiates at once gives the bits of two passes.
#[test]
fn scored_rows_with_their_gradient() {
    let (vocabulary, hidden, nodes) = (16, 8, 2_500);
    let mut random = Random(9);
    let scored: Vec<u32> = (0..nodes).collect();
    let mut rows: Vec<(u32, u32)> = scored.iter().map(|&node| (node, node % vocabulary as u32)).collect();
    rows.extend((0..nodes).step_by(7).map(|node| (node, (node + 3) % vocabulary as u32)));
    let mut by_node: Vec<u32> = (0..rows.len() as u32).collect();
    by_node.sort_by_key(|&row| rows[row as usize].0);
    let (ids, positions) = (vec![0; scored.len()], vec![0; scored.len()]);
    let batch = MicroBatch { ids, positions, ends: vec![nodes; scored.len()], scored, rows, by_node };
    let weight = Dense { offset: 8, outputs: vocabulary, inputs: hidden };
    let w = values(&mut random, 8 + vocabulary * hidden);
    let x = values(&mut random, nodes as usize * hidden);
    let slopes = random.values(batch.rows.len());
    let derivative = |row: usize, logprob: f32| slopes[row] * logprob;
    let run = |at_once: bool| {
        let mut gpu = simulated(16, 0);
        let prepared = gpu.prepare(batch.clone());
        let (wb, xb, mut d_x, mut g) = (gpu.put(&w), gpu.put(&x), gpu.put_single(&x), gpu.put_single(&w));
        let (mut logprobs, mut entropies) = (vec![0.0; slopes.len()], vec![0.0; slopes.len()]);
        let head = LmHead { hidden: &xb, weights: &wb, weight, temperature: 0.9 };
        if at_once {
            let scores = RowScores { logprobs: &mut logprobs, entropies: &mut entropies };
            assert!(gpu.score_with_gradient(&prepared, &head, scores, &derivative, &mut d_x, Some(&mut g)));
        } else {
            gpu.score(&prepared, &head, &mut logprobs, &mut entropies);
            let d: Vec<f32> =
                logprobs.iter().enumerate().map(|(row, &value)| derivative(row, value)).collect();
            gpu.score_backward(&prepared, &head, ScoreGradient::of_logprobs(&d), &mut d_x, Some(&mut g));
        }
        [logprobs, entropies, gpu.get(&d_x, x.len()), gpu.get(&g, w.len())]
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn scored_rows() {
    for (vocabulary, hidden, temperature) in [(97, 16, 0.7), (1003, 8, 1.0), (8, 8, 1.3)] {
        for (name, batch) in batches(vocabulary) {
            let mut random = Random(8);
            let weight = Dense { offset: 8, outputs: vocabulary, inputs: hidden };
            let weights = values(&mut random, 8 + vocabulary * hidden);
            let x: Vec<f32> =
                values(&mut random, batch.scored.len() * hidden).iter().map(|x| x * 2.0).collect();
            let d = random.values(batch.rows.len());
            fn run<B: Host>(
                b: &mut B,
                batch: &MicroBatch,
                (weight, temperature): (Dense, f32),
                w: &[f32],
                x: &[f32],
                d: &[f32],
            ) -> Results {
                let prepared = b.prepare(batch.clone());
                let (wb, xb, mut d_x, mut g) = (b.put(w), b.put(x), b.put_single(x), b.put_single(w));
                let (mut logprobs, mut entropies) = (vec![0.0; d.len()], vec![0.0; d.len()]);
                let head = LmHead { hidden: &xb, weights: &wb, weight, temperature };
                b.score(&prepared, &head, &mut logprobs, &mut entropies);
                b.score_backward(&prepared, &head, ScoreGradient::of_logprobs(d), &mut d_x, Some(&mut g));
                // With an entropy term, of weights that are those of the log-probabilities the other way round.
                let (mut d_x_both, mut g_both) = (b.put_single(x), b.put_single(w));
                b.score(&prepared, &head, &mut logprobs, &mut entropies);
                let spreads: Vec<f32> = d.iter().rev().copied().collect();
                let both = ScoreGradient { logprobs: d, entropies: Some((&spreads, &entropies)) };
                b.score_backward(&prepared, &head, both, &mut d_x_both, Some(&mut g_both));
                vec![
                    ("d_hidden with entropies", b.get(&d_x_both, x.len()), HALF),
                    ("gradient with entropies", b.get(&g_both, w.len()), HALF),
                    ("logprobs", logprobs, SINGLE),
                    ("entropies", entropies, SINGLE),
                    ("d_hidden", b.get(&d_x, x.len()), HALF),
                    ("gradient", b.get(&g, w.len()), HALF),
                ]
            }
            compare_both!(&format!("score over {vocabulary}, {name}"), 16, |b| run(
                b,
                &batch,
                (weight, temperature),
                &weights,
                &x,
                &d
            ));
        }
    }
}
