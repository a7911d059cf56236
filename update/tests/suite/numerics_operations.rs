//! Every operation of the CPU backend, forward and backward, against plain f64 loops whose gradient is
//! taken by finite differences, at sizes that divide nothing.

use crate::small::{Random, relative};
use update::backend::{
    Activation, Attention, AttentionGradients, AttentionOutput, Backend, Cpu, Dense, Embedding, Experts,
    Heads, Linear, MicroBatch, QkNormRope, RmsNorm, Rows, Variants,
};
use update::tree::{Sequence, Tree, pack};

pub const FREQUENCIES: [f32; 3] = [1.0, 0.3, 0.05];

/// Two trees with branches, of 32 nodes or so; the first has an unscored beginning.
pub fn batch(random: &mut Random, vocabulary: usize) -> MicroBatch {
    let trees: Vec<Tree> = (0..2)
        .map(|_| {
            let prompt = random.tokens(7, vocabulary);
            let answers: Vec<Vec<u32>> = (0..3).map(|member| random.tokens(3 + member, vocabulary)).collect();
            let sequences: Vec<Sequence> =
                answers.iter().map(|answer| Sequence { prompt: &prompt, completion: answer }).collect();
            pack(&sequences, true)
        })
        .collect();
    MicroBatch::new(&trees)
}

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Compares a result and its gradients with a function in f64.
///
/// `found` is the result; `gradients[i]` is the gradient of `sum(result * weights)` in `inputs[i]`.
pub fn compare(
    name: &str,
    inputs: &[&[f32]],
    function: impl Fn(&[Vec<f64>]) -> Vec<f64>,
    found: &[f32],
    weights: &[f32],
    gradients: &[&[f32]],
) {
    let mut at: Vec<Vec<f64>> = inputs.iter().map(|input| wide(input)).collect();
    let forward = relative(found, &function(&at));
    eprintln!("{name}: forward {forward:.1e}");
    assert!(forward < 1e-5, "{name}: forward {forward:.1e}");
    let weights = wide(weights);
    let loss = |at: &[Vec<f64>]| function(at).iter().zip(&weights).map(|(y, w)| y * w).sum::<f64>();
    for (index, gradient) in gradients.iter().enumerate() {
        let step = 1e-5;
        let slopes: Vec<f64> = (0..at[index].len())
            .map(|element| {
                let value = at[index][element];
                at[index][element] = value + step;
                let above = loss(&at);
                at[index][element] = value - step;
                let below = loss(&at);
                at[index][element] = value;
                (above - below) / (2.0 * step)
            })
            .collect();
        let error = relative(gradient, &slopes);
        eprintln!("{name}: gradient {index} {error:.1e}");
        assert!(error < 1e-4, "{name}: gradient {index} {error:.1e}");
    }
}

#[test]
fn embedding() {
    for scale in [1.0, 2.5] {
        scaled_embedding(scale);
    }
}

fn scaled_embedding(scale: f32) {
    let mut random = Random(1);
    let (vocabulary, hidden) = (9, 5);
    let mut cpu = Cpu::new(&FREQUENCIES);
    let batch = batch(&mut random, vocabulary);
    let ids = batch.ids.clone();
    let prepared = cpu.prepare(batch);
    let table = Dense { offset: 3, outputs: vocabulary, inputs: hidden };
    let weights = random.values(3 + vocabulary * hidden);
    let mut out = vec![0.0; ids.len() * hidden];
    let embedding = Embedding { table, scale };
    cpu.embed(&prepared, &weights, embedding, &mut out);
    let d_out = random.values(out.len());
    let mut gradients = vec![0.0; weights.len()];
    cpu.embed_backward(&prepared, &d_out, &mut gradients, embedding);
    let function = |x: &[Vec<f64>]| -> Vec<f64> {
        let rows = ids.iter().flat_map(|&id| &x[0][3 + id as usize * hidden..][..hidden]);
        rows.map(|value| f64::from(scale) * value).collect()
    };
    compare("embedding", &[&weights], function, &out, &d_out, &[&gradients]);
}

#[test]
fn rms_norm() {
    for (rows, width, minus_one) in [(3, 37, false), (5, 96, true), (1, 1, false)] {
        let mut random = Random(2);
        let mut cpu = Cpu::new(&FREQUENCIES);
        let (x, weights) = (random.values(rows * width), random.values(2 + width));
        let epsilon = 1e-3;
        let mut out = vec![0.0; rows * width];
        let norm = RmsNorm { rows, width, x: &x, weights: &weights, offset: 2, epsilon, minus_one };
        cpu.rms_norm(&norm, &mut out);
        let d_out = random.values(out.len());
        let passing = random.values(out.len());
        let (mut d_x, mut gradients) = (passing.clone(), vec![0.0; weights.len()]);
        cpu.rms_norm_backward(&norm, &d_out, &mut d_x, Some(&mut gradients));
        let own: Vec<f32> = d_x.iter().zip(&passing).map(|(a, b)| a - b).collect();
        let function = |v: &[Vec<f64>]| -> Vec<f64> {
            v[0].chunks(width)
                .flat_map(|x| {
                    let mean = x.iter().map(|x| x * x).sum::<f64>() / width as f64;
                    let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
                    let weight = |w: &f64| w + f64::from(minus_one);
                    x.iter().zip(&v[1][2..]).map(|(x, w)| x * scale * weight(w)).collect::<Vec<f64>>()
                })
                .collect()
        };
        compare("rms norm", &[&x, &weights], function, &out, &d_out, &[&own, &gradients]);
    }
}

#[test]
fn linear() {
    for (rows, outputs, inputs) in [(5, 7, 3), (15, 33, 17)] {
        let mut random = Random(3);
        let mut cpu = Cpu::new(&FREQUENCIES);
        let weight = Dense { offset: 4, outputs, inputs };
        let (x, weights) = (random.values(rows * inputs), random.values(4 + outputs * inputs));
        let residual = random.values(rows * outputs);
        let mut out = vec![0.0; rows * outputs];
        let linear = Linear { rows, weights: &weights, weight };
        cpu.linear(&linear, &x, Some(&residual), &mut out);
        let d_out = random.values(out.len());
        let passing = random.values(x.len());
        let (mut d_x, mut added, mut gradients) =
            (vec![0.0; x.len()], passing.clone(), vec![0.0; weights.len()]);
        cpu.linear_backward_input(&linear, &d_out, false, &mut d_x);
        cpu.linear_backward_input(&linear, &d_out, true, &mut added);
        cpu.linear_backward_weight(rows, &d_out, &x, &mut gradients, weight);
        let own: Vec<f32> = added.iter().zip(&passing).map(|(a, b)| a - b).collect();
        assert!(relative(&own, &wide(&d_x)) < 1e-5);
        let function = |v: &[Vec<f64>]| -> Vec<f64> {
            let mut out = v[2].clone();
            for (place, value) in out.iter_mut().enumerate() {
                let (row, column) = (place / outputs, place % outputs);
                *value +=
                    (0..inputs).map(|i| v[0][row * inputs + i] * v[1][4 + column * inputs + i]).sum::<f64>();
            }
            out
        };
        compare("linear", &[&x, &weights, &residual], function, &out, &d_out, &[&d_x, &gradients, &d_out]);
    }
}

#[test]
fn qk_norm_rope() {
    let (all, some) = (FREQUENCIES.len(), 2);
    for (bias, norm, rows, pairs) in [
        (None, None, Rows::All, all),
        (Some(2), None, Rows::Scored, all),
        (None, Some(1), Rows::Scored, all),
        (Some(9), Some(0), Rows::All, all),
        (None, None, Rows::All, 0),
        (Some(9), Some(0), Rows::Scored, 0),
        // Some elements of a head are not rotated.
        (None, None, Rows::All, some),
        (Some(9), Some(0), Rows::Scored, some),
    ] {
        let mut random = Random(4);
        let mut cpu = Cpu::new(&FREQUENCIES[..pairs]);
        let (rope, minus_one) = ((pairs > 0).then_some(0), pairs == some);
        let batch = batch(&mut random, 9);
        let (heads, width, stride) = (2, 6, 17);
        let positions: Vec<u32> = match rows {
            Rows::All => batch.positions.clone(),
            Rows::Scored => batch.scored.iter().map(|&node| batch.positions[node as usize]).collect(),
        };
        let prepared = cpu.prepare(batch);
        let (weights, epsilon) = (random.values(30), 1e-3);
        let op = QkNormRope {
            rows,
            weights: &weights,
            heads,
            width,
            stride,
            bias,
            norm,
            epsilon,
            minus_one,
            rope,
        };
        let raw = random.values(positions.len() * stride);
        let (mut projection, mut out) = (raw.clone(), vec![0.0; positions.len() * heads * width]);
        cpu.qk_norm_rope(&prepared, &op, &mut projection, &mut out);
        let mut recomputed = vec![0.0; out.len()];
        cpu.qk_norm_rope(&prepared, &op.recompute(), &mut projection, &mut recomputed);
        assert_eq!(out, recomputed);
        // The columns after the heads are read by somebody else, who gives their gradient.
        let rest = stride - heads * width;
        let (d_out, d_rest) = (random.values(out.len()), random.values(positions.len() * rest));
        let (mut d_projection, mut gradients) = (vec![0.0; raw.len()], vec![0.0; weights.len()]);
        for (row, d_rest) in d_projection.chunks_mut(stride).zip(d_rest.chunks(rest)) {
            row[heads * width..].copy_from_slice(d_rest);
        }
        cpu.qk_norm_rope_backward(
            &prepared,
            &op,
            &projection,
            &d_out,
            &mut d_projection,
            Some(&mut gradients),
        );
        let function = |v: &[Vec<f64>]| -> Vec<f64> {
            let mut rotated_heads = Vec::new();
            let mut others = Vec::new();
            for (row, &position) in v[0].chunks(stride).zip(&positions) {
                let mut row = row.to_vec();
                if let Some(at) = bias {
                    row.iter_mut().zip(&v[1][at..]).for_each(|(value, bias)| *value += bias);
                }
                others.extend_from_slice(&row[heads * width..]);
                for head in row[..heads * width].chunks(width) {
                    let mut head = head.to_vec();
                    if let Some(at) = norm {
                        let mean = head.iter().map(|x| x * x).sum::<f64>() / width as f64;
                        let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
                        let weight = |w: &f64| w + f64::from(minus_one);
                        head.iter_mut().zip(&v[1][at..]).for_each(|(x, w)| *x *= scale * weight(w));
                    }
                    let turn = |i: usize, sign: f64| {
                        let angle = f64::from(FREQUENCIES[i % pairs]) * f64::from(position);
                        head[i] * angle.cos() + sign * head[(i + pairs) % (2 * pairs)] * angle.sin()
                    };
                    rotated_heads.extend((0..pairs).map(|i| turn(i, -1.0)));
                    rotated_heads.extend((pairs..2 * pairs).map(|i| turn(i, 1.0)));
                    rotated_heads.extend(&head[2 * pairs..]);
                }
            }
            [rotated_heads, others].concat()
        };
        let others: Vec<f32> =
            projection.chunks(stride).flat_map(|row| row[heads * width..].to_vec()).collect();
        let (found, d_found) = ([&out[..], &others].concat(), [&d_out[..], &d_rest].concat());
        compare(
            "qk-norm + RoPE",
            &[&raw, &weights],
            function,
            &found,
            &d_found,
            &[&d_projection, &gradients],
        );
    }
}

#[test]
fn attention() {
    for (rows, window) in [
        (Rows::All, None),
        (Rows::Scored, None),
        (Rows::All, Some(4)),
        (Rows::Scored, Some(4)),
        (Rows::All, Some(2)),
    ] {
        let mut random = Random(5);
        let mut cpu = Cpu::new(&FREQUENCIES).with_windows(window.into_iter().collect());
        let batch = batch(&mut random, 9);
        let (ends, positions, tokens) = (batch.ends.clone(), batch.positions.clone(), batch.tokens());
        let nodes: Vec<usize> = match rows {
            Rows::All => (0..tokens).collect(),
            Rows::Scored => batch.scored.iter().map(|&node| node as usize).collect(),
        };
        let prepared = cpu.prepare(batch);
        let heads = Heads { queries: 4, keys: 2, width: 5 };
        let (q_width, k_width) = (heads.queries * heads.width, heads.keys * heads.width);
        let queries: Vec<f32> = random.values(nodes.len() * q_width).iter().map(|v| 3.0 * v).collect();
        let (keys, projection) = (random.values(tokens * k_width), random.values(tokens * 2 * k_width));
        let mut out = vec![0.0; queries.len()];
        let mut lse = vec![0.0; nodes.len() * heads.queries];
        let scale = 0.3;
        let (q, k) = (&queries, &keys);
        let op = Attention { rows, heads, scale, window, queries: q, keys: k, key_value: &projection };
        cpu.attention(&prepared, &op, &mut out, &mut lse);
        let d_out = random.values(out.len());
        let (mut d_queries, mut d_keys) = (vec![f32::NAN; queries.len()], vec![f32::NAN; keys.len()]);
        let mut d_projection = vec![0.0; projection.len()];
        for row in d_projection.chunks_mut(2 * k_width) {
            row[k_width..].fill(f32::NAN);
        }
        cpu.attention_backward(
            &prepared,
            &op,
            AttentionOutput { out: &out, lse: &lse, d_out: &d_out },
            AttentionGradients {
                d_queries: &mut d_queries,
                d_keys: &mut d_keys,
                d_key_value: &mut d_projection,
            },
        );
        let function = |v: &[Vec<f64>]| -> Vec<f64> {
            let mut out = Vec::new();
            for (row, &node) in nodes.iter().enumerate() {
                for head in 0..heads.queries {
                    let key_head = head / (heads.queries / heads.keys) * heads.width;
                    let query = &v[0][row * q_width + head * heads.width..][..heads.width];
                    let near = |key: usize| {
                        window.is_none_or(|window| positions[node] - positions[key] < window as u32)
                    };
                    let visible: Vec<usize> =
                        (0..=node).filter(|&key| node < ends[key] as usize && near(key)).collect();
                    let scores: Vec<f64> = visible
                        .iter()
                        .map(|&key| {
                            let key = &v[1][key * k_width + key_head..];
                            let dot: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                            (dot * f64::from(scale)).exp()
                        })
                        .collect();
                    let total: f64 = scores.iter().sum();
                    out.extend((0..heads.width).map(|i| {
                        let values =
                            visible.iter().map(|&key| v[2][key * 2 * k_width + k_width + key_head + i]);
                        scores.iter().zip(values).map(|(score, value)| score / total * value).sum::<f64>()
                    }));
                }
            }
            out
        };
        let inputs: [&[f32]; 3] = [&queries, &keys, &projection];
        compare("attention", &inputs, function, &out, &d_out, &[&d_queries, &d_keys, &d_projection]);
    }
}

#[test]
fn swiglu() {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gelu =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    gated(Activation::Silu, silu);
    gated(Activation::Gelu, gelu);
}

fn gated(activation: Activation, bent: fn(f64) -> f64) {
    let mut random = Random(6);
    let mut cpu = Cpu::new(&FREQUENCIES);
    let (rows, width) = (3, 37);
    let gate_up: Vec<f32> = random.values(rows * 2 * width).iter().map(|v| 6.0 * v).collect();
    let mut out = vec![0.0; rows * width];
    cpu.swiglu(activation, rows, width, &gate_up, &mut out);
    let d_out = random.values(out.len());
    let (mut d_gate_up, mut again) = (gate_up.clone(), vec![0.0; out.len()]);
    cpu.swiglu_backward(activation, rows, width, &mut d_gate_up, &d_out, &mut again);
    assert!(relative(&again, &wide(&out)) < 1e-6);
    let function = |v: &[Vec<f64>]| -> Vec<f64> {
        let inner = |row: &[f64]| {
            let (gate, up) = row.split_at(width);
            gate.iter().zip(up).map(|(&g, u)| bent(g) * u).collect::<Vec<f64>>()
        };
        v[0].chunks(2 * width).flat_map(inner).collect()
    };
    compare("swiglu", &[&gate_up], function, &out, &d_out, &[&d_gate_up]);
}

#[test]
fn gather_and_scatter() {
    let mut random = Random(7);
    let mut cpu = Cpu::new(&FREQUENCIES);
    let batch = batch(&mut random, 9);
    let (scored, tokens, width) = (batch.scored.clone(), batch.tokens(), 3);
    assert!(scored.len() < tokens);
    let prepared = cpu.prepare(batch);
    let x = random.values(tokens * width);
    let mut out = vec![0.0; scored.len() * width];
    cpu.gather(&prepared, width, &x, &mut out);
    let d_out = random.values(out.len());
    let mut d_x = vec![f32::NAN; x.len()];
    cpu.zero(tokens * width, &mut d_x);
    cpu.scatter_add(&prepared, width, &d_out, &mut d_x);
    let function = |v: &[Vec<f64>]| -> Vec<f64> {
        scored.iter().flat_map(|&node| v[0][node as usize * width..][..width].to_vec()).collect()
    };
    compare("gather", &[&x], function, &out, &d_out, &[&d_x]);
}

#[test]
fn experts() {
    for (per_token, normalized) in [(2, true), (2, false), (4, true), (1, false)] {
        let mut random = Random(8);
        let mut cpu = Cpu::new(&FREQUENCIES);
        let (rows, hidden, width, count) = (9, 5, 3, 4);
        let size = 3 * width * hidden;
        let (x, residual) = (random.values(rows * hidden), random.values(rows * hidden));
        let weights = random.values(2 + count * hidden + count * size);
        let router = Dense { offset: 2, outputs: count, inputs: hidden };
        let settings = policy::experts::Experts { count, per_token, width, normalized, layers: vec![true] };
        let op = Experts { rows, weights: &weights, router, settings: &settings };
        let mut out = vec![0.0; x.len()];
        cpu.experts(&op, &x, &residual, &mut out);
        let d_out = random.values(out.len());
        let (mut d_x, mut gradients) = (vec![f32::NAN; x.len()], vec![0.0; weights.len()]);
        cpu.experts_backward(&op, &x, &d_out, &mut d_x, Some(&mut gradients));
        let function = |v: &[Vec<f64>]| -> Vec<f64> {
            let product = |matrix: &[f64], x: &[f64]| -> Vec<f64> {
                matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
            };
            let row = |(x, residual): (&[f64], &[f64])| {
                let logits = product(&v[1][2..][..count * hidden], x);
                let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
                let mut taken: Vec<(f64, usize)> =
                    logits.iter().enumerate().map(|(expert, logit)| (logit.exp() / total, expert)).collect();
                taken.sort_by(|a, b| b.0.total_cmp(&a.0));
                taken.truncate(per_token);
                let sum: f64 = if normalized { taken.iter().map(|(weight, _)| weight).sum() } else { 1.0 };
                let mut out = residual.to_vec();
                for (weight, expert) in taken {
                    let own = &v[1][2 + count * hidden + expert * size..][..size];
                    let gate_up = product(&own[..2 * width * hidden], x);
                    let gated: Vec<f64> = (0..width)
                        .map(|i| gate_up[i] / (1.0 + (-gate_up[i]).exp()) * gate_up[width + i])
                        .collect();
                    let down = product(&own[2 * width * hidden..], &gated);
                    out.iter_mut().zip(down).for_each(|(out, down)| *out += weight / sum * down);
                }
                out
            };
            v[0].chunks(hidden).zip(v[2].chunks(hidden)).flat_map(row).collect()
        };
        compare("experts", &[&x, &weights, &residual], function, &out, &d_out, &[&d_x, &gradients, &d_out]);
    }
}
