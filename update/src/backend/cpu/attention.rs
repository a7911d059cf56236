//! Attention under the tree mask, as dense products over blocks of queries and the keys they can see.
//!
//! Depth-first order makes what a block of queries cannot see contiguous: a subtree that ended before them is
//! stepped over whole. The keys left are gathered once and serve every query head of their group, so a prompt
//! shared by K branches is read from cache by all of them, and the cost follows the visible pairs. Scores of a
//! block exist only while it is worked on; the backward pass computes them again from the log-sum-exp
//! (FlashAttention-2, arXiv 2307.08691).

use super::products::Products;
use super::vector::{dot, exp, exponentials, maximum, vectorised};
use crate::backend::{Batch, Heads};
use gemm::{Onto, View};
use std::ops::Range;

/// Queries of a block at most.
const QUERIES: usize = 64;
/// Queries after which a block ends where a branch does.
const ENOUGH: usize = 32;

/// Queries that are worked on together, and the keys that some of them see.
#[derive(Clone, Debug)]
struct Block {
    /// Rows of the operation.
    rows: Range<usize>,
    /// Visible keys: runs of nodes, ascending.
    runs: Vec<Range<u32>>,
    /// Number of keys in all runs.
    keys: usize,
    /// Leading keys that every query of the block sees.
    common: usize,
}

/// The blocks of one micro-batch for one choice of rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// Node of each row, ascending.
    nodes: Vec<u32>,
    blocks: Vec<Block>,
}

impl Plan {
    pub(super) fn new(batch: &Batch, nodes: Vec<u32>) -> Plan {
        let mut blocks = Vec::new();
        let mut start = 0;
        // End of the tree that the block is in. Blocks keep to one, so that what is computed for a tree does
        // not depend on the others of its micro-batch.
        let mut tree = 0;
        while start < nodes.len() {
            while tree <= nodes[start] {
                tree = batch.ends[tree as usize];
            }
            let mut end = start + 1;
            while end < nodes.len() && end - start < QUERIES {
                let leaves_branch = batch.ends[nodes[end - 1] as usize] <= nodes[end];
                if nodes[end] >= tree || leaves_branch && end - start >= ENOUGH {
                    break;
                }
                end += 1;
            }
            blocks.push(block(batch, &nodes, start..end));
            start = end;
        }
        Plan { nodes, blocks }
    }
}

fn block(batch: &Batch, nodes: &[u32], rows: Range<usize>) -> Block {
    let (first, last) = (nodes[rows.start], nodes[rows.end - 1]);
    let mut runs: Vec<Range<u32>> = Vec::new();
    let (mut keys, mut common, mut all_common) = (0, 0, true);
    let mut key = 0;
    while key <= last {
        let end = batch.ends[key as usize];
        if end <= first {
            key = end;
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == key => run.end += 1,
            _ => runs.push(key..key + 1),
        }
        all_common &= key <= first && end > last;
        keys += 1;
        common += usize::from(all_common);
        key += 1;
    }
    Block { rows, runs, keys, common }
}

/// Where one kind of head lies: rows of `stride` values, the head's at `offset`.
#[derive(Clone, Copy)]
struct Place {
    stride: usize,
    offset: usize,
    width: usize,
}

/// Gathered operands and scores of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    out: Vec<f32>,
    d_out: Vec<f32>,
    d_scores: Vec<f32>,
    d_keys: Vec<f32>,
    /// Row sums in the forward pass; log-sum-exp in the backward pass.
    normalizers: Vec<f32>,
}

/// Makes `buffer` at least `length` long and returns so much of it.
fn room(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

vectorised! {
    /// Copies one head of each key in the runs to adjacent rows.
    fn gather_keys(runs: &[Range<u32>], place: Place, source: &[f32], target: &mut [f32]) {
        let mut rows = target.chunks_exact_mut(place.width);
        for run in runs {
            for (node, target) in run.clone().zip(&mut rows) {
                let at = node as usize * place.stride + place.offset;
                target.copy_from_slice(&source[at..at + place.width]);
            }
        }
    }
}

vectorised! {
    /// Adds adjacent rows to one head of each key in the runs.
    fn scatter_keys(runs: &[Range<u32>], place: Place, source: &[f32], target: &mut [f32]) {
        let mut rows = source.chunks_exact(place.width);
        for run in runs {
            for (node, source) in run.clone().zip(&mut rows) {
                let at = node as usize * place.stride + place.offset;
                for (target, &value) in target[at..at + place.width].iter_mut().zip(source) {
                    *target += value;
                }
            }
        }
    }
}

vectorised! {
    /// Copies rows of `heads` adjacent heads to one row a head, head by head, times `factor`.
    fn gather_rows(
        rows: Range<usize>,
        heads: usize,
        place: Place,
        factor: f32,
        source: &[f32],
        target: &mut [f32],
    ) {
        let mut targets = target.chunks_exact_mut(place.width);
        for head in 0..heads {
            for (row, target) in rows.clone().zip(&mut targets) {
                let at = row * place.stride + place.offset + head * place.width;
                for (target, &value) in target.iter_mut().zip(&source[at..at + place.width]) {
                    *target = value * factor;
                }
            }
        }
    }
}

vectorised! {
    /// The reverse of [`gather_rows`], with a factor for each gathered row.
    fn scatter_rows(
        rows: Range<usize>,
        heads: usize,
        place: Place,
        factors: &[f32],
        source: &[f32],
        target: &mut [f32],
    ) {
        let mut sources = source.chunks_exact(place.width).zip(factors);
        for head in 0..heads {
            for (row, (source, &factor)) in rows.clone().zip(&mut sources) {
                let at = row * place.stride + place.offset + head * place.width;
                for (target, &value) in target[at..at + place.width].iter_mut().zip(source) {
                    *target = value * factor;
                }
            }
        }
    }
}

vectorised! {
    /// Turns scores into `exp(score - largest)`, zero where the mask hides the key. Row sums go to `sums`,
    /// log-sum-exps to `normalizers`.
    fn softmax(
        keys: usize,
        common: usize,
        masked: &[(u32, u32)],
        nodes: &[u32],
        scores: &mut [f32],
        sums: &mut [f32],
        normalizers: &mut [f32],
    ) {
        for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
            let node = nodes[row % nodes.len()];
            for (score, &(key, end)) in scores[common..].iter_mut().zip(masked) {
                *score = if key <= node && node < end { *score } else { f32::NEG_INFINITY };
            }
            let largest = maximum(scores);
            let sum = exponentials(scores, largest);
            sums[row] = sum;
            normalizers[row] = largest + sum.ln();
        }
    }
}

vectorised! {
    /// Turns scores into probabilities and `d_scores` (gradients of probabilities) into gradients of scores.
    fn softmax_backward(
        keys: usize,
        common: usize,
        masked: &[(u32, u32)],
        nodes: &[u32],
        normalizers: &[f32],
        width: usize,
        out: &[f32],
        d_out: &[f32],
        scores: &mut [f32],
        d_scores: &mut [f32],
    ) {
        for (row, (scores, d_scores)) in
            scores.chunks_exact_mut(keys).zip(d_scores.chunks_exact_mut(keys)).enumerate()
        {
            let node = nodes[row % nodes.len()];
            let normalizer = normalizers[row];
            let own = row * width..(row + 1) * width;
            let delta = dot(&out[own.clone()], &d_out[own]);
            for (score, &(key, end)) in scores[common..].iter_mut().zip(masked) {
                *score = if key <= node && node < end { *score } else { f32::NEG_INFINITY };
            }
            for (score, d_score) in scores.iter_mut().zip(d_scores) {
                *score = exp(*score - normalizer);
                *d_score = *score * (*d_score - delta);
            }
        }
    }
}

/// Key and end of every key of a block that not all its queries see.
fn masked_keys(batch: &Batch, block: &Block) -> Vec<(u32, u32)> {
    let keys = block.runs.iter().cloned().flatten().skip(block.common);
    keys.map(|key| (key, batch.ends[key as usize])).collect()
}

/// Forward pass; see [`crate::backend::Backend::attention`].
#[allow(clippy::too_many_arguments)]
pub(super) fn forward(
    scratch: &mut Scratch,
    products: &mut Products,
    batch: &Batch,
    plan: &Plan,
    heads: Heads,
    queries: &[f32],
    keys: &[f32],
    projection: &[f32],
    out: &mut [f32],
    normalizers: &mut [f32],
) {
    let Heads { width, .. } = heads;
    let group = heads.queries / heads.keys;
    let scale = 1.0 / (width as f32).sqrt();
    for block in &plan.blocks {
        let rows = group * block.rows.len();
        let nodes = &plan.nodes[block.rows.clone()];
        let masked = masked_keys(batch, block);
        for head in 0..heads.keys {
            let query_place = Place { stride: heads.queries * width, offset: head * group * width, width };
            let key_place = Place { stride: heads.keys * width, offset: head * width, width };
            let value_place =
                Place { stride: 2 * heads.keys * width, offset: (heads.keys + head) * width, width };
            let q = room(&mut scratch.queries, rows * width);
            let k = room(&mut scratch.keys, block.keys * width);
            let v = room(&mut scratch.values, block.keys * width);
            let scores = room(&mut scratch.scores, rows * block.keys);
            let mixed = room(&mut scratch.out, rows * width);
            let sums = room(&mut scratch.normalizers, 2 * rows);
            let (sums, logs) = sums.split_at_mut(rows);
            gather_rows(block.rows.clone(), group, query_place, scale, queries, q);
            gather_keys(&block.runs, key_place, keys, k);
            gather_keys(&block.runs, value_place, projection, v);
            let (q, k, v) = (View::new(q, width), View::new(k, width), View::new(v, width));
            products.exact([rows, block.keys, width], q, k.transposed(), Onto::Zero, scores, block.keys);
            softmax(block.keys, block.common, &masked, nodes, scores, sums, logs);
            let p = View::new(scores, block.keys);
            products.exact([rows, width, block.keys], p, v, Onto::Zero, mixed, width);
            for sum in sums.iter_mut() {
                *sum = 1.0 / *sum;
            }
            scatter_rows(block.rows.clone(), group, query_place, sums, mixed, out);
            for (index, row) in block.rows.clone().enumerate() {
                for member in 0..group {
                    let log = logs[member * block.rows.len() + index];
                    normalizers[row * heads.queries + head * group + member] = log;
                }
            }
        }
    }
}

/// Backward pass; see [`crate::backend::Backend::attention_backward`].
#[allow(clippy::too_many_arguments)]
pub(super) fn backward(
    scratch: &mut Scratch,
    products: &mut Products,
    batch: &Batch,
    plan: &Plan,
    heads: Heads,
    queries: &[f32],
    keys: &[f32],
    projection: &[f32],
    out: &[f32],
    normalizers: &[f32],
    d_out: &[f32],
    d_queries: &mut [f32],
    d_keys: &mut [f32],
    d_projection: &mut [f32],
) {
    let Heads { width, .. } = heads;
    let group = heads.queries / heads.keys;
    let scale = 1.0 / (width as f32).sqrt();
    d_keys.fill(0.0);
    for row in d_projection.chunks_exact_mut(2 * heads.keys * width) {
        row[heads.keys * width..].fill(0.0);
    }
    for block in &plan.blocks {
        let rows = group * block.rows.len();
        let nodes = &plan.nodes[block.rows.clone()];
        let masked = masked_keys(batch, block);
        for head in 0..heads.keys {
            let query_place = Place { stride: heads.queries * width, offset: head * group * width, width };
            let key_place = Place { stride: heads.keys * width, offset: head * width, width };
            let value_place =
                Place { stride: 2 * heads.keys * width, offset: (heads.keys + head) * width, width };
            let q = room(&mut scratch.queries, rows * width);
            let k = room(&mut scratch.keys, block.keys * width);
            let v = room(&mut scratch.values, block.keys * width);
            let scores = room(&mut scratch.scores, rows * block.keys);
            let d_scores = room(&mut scratch.d_scores, rows * block.keys);
            let mixed = room(&mut scratch.out, rows * width);
            let d_mixed = room(&mut scratch.d_out, rows * width);
            let d_k = room(&mut scratch.d_keys, block.keys * width);
            let logs = room(&mut scratch.normalizers, rows);
            gather_rows(block.rows.clone(), group, query_place, scale, queries, q);
            gather_rows(block.rows.clone(), group, query_place, 1.0, out, mixed);
            gather_rows(block.rows.clone(), group, query_place, 1.0, d_out, d_mixed);
            gather_keys(&block.runs, key_place, keys, k);
            gather_keys(&block.runs, value_place, projection, v);
            for (index, row) in block.rows.clone().enumerate() {
                for member in 0..group {
                    let log = normalizers[row * heads.queries + head * group + member];
                    logs[member * block.rows.len() + index] = log;
                }
            }
            let by_key = [rows, block.keys, width];
            let by_query = [block.keys, width, rows];
            let (q, k, v) = (View::new(q, width), View::new(k, width), View::new(v, width));
            products.exact(by_key, q, k.transposed(), Onto::Zero, scores, block.keys);
            let d_o = View::new(d_mixed, width);
            products.exact(by_key, d_o, v.transposed(), Onto::Zero, d_scores, block.keys);
            softmax_backward(
                block.keys,
                block.common,
                &masked,
                nodes,
                logs,
                width,
                mixed,
                d_mixed,
                scores,
                d_scores,
            );
            let p = View::new(scores, block.keys).transposed();
            products.exact(by_query, p, d_o, Onto::Zero, d_k, width);
            scatter_keys(&block.runs, value_place, d_k, d_projection);
            let d_s = View::new(d_scores, block.keys);
            products.exact(by_query, d_s.transposed(), q, Onto::Zero, d_k, width);
            scatter_keys(&block.runs, key_place, d_k, d_keys);
            products.exact([rows, width, block.keys], d_s, k, Onto::Zero, mixed, width);
            logs.fill(scale);
            scatter_rows(block.rows.clone(), group, query_place, logs, mixed, d_queries);
        }
    }
}
