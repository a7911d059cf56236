//! Attention and its gradients against plain f64 loops.

use crate::harness::{GRADIENT, HALF, Host, SINGLE, backend, batches, forest, in_f16, values};
use crate::small::{Random, relative};
use device::Any;
use update::backend::{
    Attention, AttentionGradients, AttentionOutput, Backend, Half, Heads, MicroBatch, Rows,
};

/// Attention and its gradients by queries, keys and values in f64: `[out, lse, d_q, d_k, d_v]`.
fn attention_in_f64(
    batch: &MicroBatch,
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
    let [out, lse, d_q, d_k, d_v] = &mut found;
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
            lse[row * heads.queries + head] = normalizer;
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

fn attention_of(width: usize, queries: usize, keys: usize, batches: Vec<(&'static str, MicroBatch)>) {
    attention_on(width, queries, keys, batches, |_| ());
}

fn attention_on(
    width: usize,
    queries: usize,
    keys: usize,
    batches: Vec<(&'static str, MicroBatch)>,
    restrict: impl Fn(&mut Any),
) {
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
            let mut first: [Option<Vec<Vec<f32>>>; 2] = [None, None];
            let in_bf16 = Any::test_seeds().map(|seed| (Half::BFloat16, seed));
            for (half, seed) in in_bf16.chain([(Half::Float16, 0), (Half::Float16, 3)]) {
                let mut device = Any::for_tests(seed).unwrap();
                restrict(&mut device);
                let gpu = &mut backend(width, device).computing_in(half);
                let prepared = gpu.prepare(batch.clone());
                let (qb, kb, pb, db) = (gpu.put(&q), gpu.put(&k), gpu.put(&p), gpu.put(&d));
                let (mut out, mut lse) =
                    (gpu.put(&vec![0.0; q.len()]), gpu.put_single(&vec![0.0; nodes.len() * queries]));
                let scale = 1.0 / (heads.width as f32).sqrt();
                let op =
                    Attention { rows, heads, scale, window: None, queries: &qb, keys: &kb, key_value: &pb };
                gpu.attention(&prepared, &op, &mut out, &mut lse);
                let (mut d_q, mut d_k) = (gpu.put_single(&q), gpu.put_single(&k));
                let mut d_p = gpu.put(&vec![0.0; p.len()]);
                gpu.attention_backward(
                    &prepared,
                    &op,
                    AttentionOutput { out: &out, lse: &lse, d_out: &db },
                    AttentionGradients { d_queries: &mut d_q, d_keys: &mut d_k, d_key_value: &mut d_p },
                );
                let found = vec![
                    gpu.get(&out, q.len()),
                    gpu.get(&lse, nodes.len() * queries),
                    gpu.get(&d_q, q.len()),
                    gpu.get(&d_k, k.len()),
                    gpu.get(&d_p, p.len()),
                ];
                let expected = [
                    ("out", HALF),
                    ("lse", SINGLE),
                    ("d_queries", GRADIENT),
                    ("d_keys", GRADIENT),
                    ("d_values", GRADIENT),
                ];
                let bound = |allowed| if half == Half::Float16 { in_f16(allowed) } else { allowed };
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
                            "attention {queries}/{keys} x {width} in {half:?}, {name}, {rows:?}: {what} {error:.1e}"
                        );
                    }
                    assert!(
                        error <= bound(*allowed),
                        "{width} in {half:?} {name} {rows:?} seed {seed}: {what} {error:.1e}"
                    );
                }
                assert!(
                    *first[half as usize].get_or_insert_with(|| found.clone()) == found,
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
    attention_on(128, 2, 1, batches(50).split_off(1), Any::without_architecture_kernels);
    attention_of(80, 1, 1, batches(50).split_off(2));
    attention_of(256, 2, 1, batches(50).split_off(1));
}

#[test]
fn attention_of_warpgroups() {
    attention_of(128, 2, 1, batches(50));
    attention_of(128, 3, 3, batches(50).split_off(2));
    // Prompts of more than a tile of 128 keys, which later tiles of rows see whole, skip, or see in part.
    let random = &mut Random(5);
    let trees =
        vec![("trees", forest(random, 50, 150, &[70, 140, 20])), ("prompt", forest(random, 50, 300, &[60]))];
    attention_of(128, 2, 1, trees);
}
