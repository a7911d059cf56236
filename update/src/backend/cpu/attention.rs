//! Attention under the tree mask, as dense GEMMs over blocks of queries and the keys they see.
//!
//! In depth-first order a subtree that ended before a block of queries is contiguous and skipped. The remaining keys are
//! gathered once for all query heads of their group, so a prompt shared by K branches is read from cache, and the cost
//! follows the visible pairs. Scores of a block are not kept; the backward pass recomputes them from the log-sum-exp
//! (FlashAttention-2, arXiv 2307.08691).

use super::Gemm;
use super::vector::{dot, exp, exponentials, maximum, vectorized};
use crate::backend::{Attention, AttentionGradients, AttentionOutput, Heads, MicroBatch};
use gemm::{Onto, View};
use std::ops::Range;

/// Queries of a block, at most.
const QUERIES: usize = 64;
/// Queries after which a block ends at the end of a branch.
const ENOUGH: usize = 32;

/// A block of queries, and the keys that some of them see.
#[derive(Clone, Debug)]
struct Block {
    /// Rows of the operation.
    rows: Range<usize>,
    /// Visible keys: runs of nodes, ascending.
    runs: Vec<Range<u32>>,
    /// Number of keys in all runs.
    keys: usize,
    /// Leading keys that all queries of the block see.
    common: usize,
}

/// The blocks of one micro-batch for one choice of rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// Node of each row, ascending.
    nodes: Vec<u32>,
    blocks: Vec<Block>,
}

impl Blocks {
    /// The blocks of these nodes, without the keys that a window hides from all queries of a block.
    pub(super) fn new(batch: &MicroBatch, nodes: Vec<u32>, window: Option<usize>) -> Blocks {
        let mut blocks = Vec::new();
        let mut start = 0;
        // End of the block's tree. A block has queries of one tree, so that a tree's results do not depend on the others of
        // its micro-batch.
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
            blocks.push(block(batch, &nodes, start..end, window));
            start = end;
        }
        Blocks { nodes, blocks }
    }
}

fn block(batch: &MicroBatch, nodes: &[u32], rows: Range<usize>, window: Option<usize>) -> Block {
    let (first, last) = (nodes[rows.start], nodes[rows.end - 1]);
    // Positions from the first on that some query sees, and that all see.
    let limits = window.map(|window| {
        let positions = nodes[rows.clone()].iter().map(|&node| batch.positions[node as usize] as usize + 1);
        let oldest = |position: Option<usize>| position.unwrap_or(0).saturating_sub(window) as u32;
        (oldest(positions.clone().min()), oldest(positions.max()))
    });
    let mut runs: Vec<Range<u32>> = Vec::new();
    let (mut keys, mut common, mut all_common) = (0, 0, true);
    let mut key = 0;
    while key <= last {
        let end = batch.ends[key as usize];
        if end <= first {
            key = end;
            continue;
        }
        if let Some((some, all)) = limits {
            let position = batch.positions[key as usize];
            if position < some {
                key += 1;
                continue;
            }
            all_common &= position >= all;
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

/// The layout of one head: at `offset` in rows of `stride` values.
#[derive(Clone, Copy)]
struct HeadLayout {
    stride: usize,
    offset: usize,
    width: usize,
}

/// Gathered operands and scores of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    operands: Operands,
    scores: Vec<f32>,
    out: Vec<f32>,
    d_out: Vec<f32>,
    d_scores: Vec<f32>,
    d_keys: Vec<f32>,
    /// Row sums in the forward pass; log-sum-exp in the backward pass.
    lse: Vec<f32>,
}

/// Queries, keys and values of one key head and its group of query heads, row by row.
#[derive(Clone, Debug, Default)]
struct Operands {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Operands {
    /// Gathers those of a block; queries times the scale of attention.
    fn gather(&mut self, op: &Attention<Vec<f32>>, block: &Block, layouts: [HeadLayout; 3]) -> [View<'_>; 3] {
        let (width, group) = (op.heads.width, op.heads.queries / op.heads.keys);
        let [queries_at, keys_at, values_at] = layouts;
        let queries = resized(&mut self.queries, group * block.rows.len() * width);
        let keys = resized(&mut self.keys, block.keys * width);
        let values = resized(&mut self.values, block.keys * width);
        gather_rows(block.rows.clone(), group, queries_at, op.scale, op.queries, queries);
        gather_keys(&block.runs, keys_at, op.keys, keys);
        gather_keys(&block.runs, values_at, op.key_value, values);
        [&*queries, keys, values].map(|gathered| View::new(gathered, width))
    }
}

/// Makes `buffer` at least `length` long and returns so much of it.
fn resized(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

vectorized! {
    /// Copies one head of each key in the runs to adjacent rows.
    fn gather_keys(runs: &[Range<u32>], layout: HeadLayout, source: &[f32], target: &mut [f32]) {
        let mut rows = target.chunks_exact_mut(layout.width);
        for run in runs {
            for (node, target) in run.clone().zip(&mut rows) {
                let at = node as usize * layout.stride + layout.offset;
                target.copy_from_slice(&source[at..at + layout.width]);
            }
        }
    }
}

vectorized! {
    /// Adds adjacent rows to one head of each key in the runs.
    fn scatter_keys(runs: &[Range<u32>], layout: HeadLayout, source: &[f32], target: &mut [f32]) {
        let mut rows = source.chunks_exact(layout.width);
        for run in runs {
            for (node, source) in run.clone().zip(&mut rows) {
                let at = node as usize * layout.stride + layout.offset;
                for (target, &value) in target[at..at + layout.width].iter_mut().zip(source) {
                    *target += value;
                }
            }
        }
    }
}

vectorized! {
    /// Copies rows of `heads` adjacent heads to one row a head, head by head, times `factor`.
    fn gather_rows(
        rows: Range<usize>,
        heads: usize,
        layout: HeadLayout,
        factor: f32,
        source: &[f32],
        target: &mut [f32],
    ) {
        let mut targets = target.chunks_exact_mut(layout.width);
        for head in 0..heads {
            for (row, target) in rows.clone().zip(&mut targets) {
                let at = row * layout.stride + layout.offset + head * layout.width;
                for (target, &value) in target.iter_mut().zip(&source[at..at + layout.width]) {
                    *target = value * factor;
                }
            }
        }
    }
}

vectorized! {
    /// The reverse of [`gather_rows`], with a factor for each gathered row.
    fn scatter_rows(
        rows: Range<usize>,
        heads: usize,
        layout: HeadLayout,
        factors: &[f32],
        source: &[f32],
        target: &mut [f32],
    ) {
        let mut sources = source.chunks_exact(layout.width).zip(factors);
        for head in 0..heads {
            for (row, (source, &factor)) in rows.clone().zip(&mut sources) {
                let at = row * layout.stride + layout.offset + head * layout.width;
                for (target, &value) in target[at..at + layout.width].iter_mut().zip(source) {
                    *target = value * factor;
                }
            }
        }
    }
}

vectorized! {
    /// Turns scores into `exp(score - largest)`, zero where the mask hides the key. Row sums go to `sums`,
    /// log-sum-exps to `lse`.
    fn softmax(
        keys: usize,
        common: usize,
        masked: &[(u32, u32)],
        nodes: &[u32],
        scores: &mut [f32],
        sums: &mut [f32],
        lse: &mut [f32],
    ) {
        for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
            let node = nodes[row % nodes.len()];
            for (score, &(key, end)) in scores[common..].iter_mut().zip(masked) {
                *score = if key <= node && node < end { *score } else { f32::NEG_INFINITY };
            }
            let largest = maximum(scores);
            let sum = exponentials(scores, largest);
            sums[row] = sum;
            lse[row] = largest + sum.ln();
        }
    }
}

vectorized! {
    /// Turns scores into probabilities and `d_scores` (gradients of probabilities) into gradients of scores.
    fn softmax_backward(
        keys: usize,
        common: usize,
        masked: &[(u32, u32)],
        nodes: &[u32],
        lse: &[f32],
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
            let lse = lse[row];
            let own = row * width..(row + 1) * width;
            let delta = dot(&out[own.clone()], &d_out[own]);
            for (score, &(key, end)) in scores[common..].iter_mut().zip(masked) {
                *score = if key <= node && node < end { *score } else { f32::NEG_INFINITY };
            }
            for (score, d_score) in scores.iter_mut().zip(d_scores) {
                *score = exp(*score - lse);
                *d_score = *score * (*d_score - delta);
            }
        }
    }
}

/// Index and end of every key of a block that not all its queries see.
fn masked_keys(batch: &MicroBatch, block: &Block) -> Vec<(u32, u32)> {
    let keys = block.runs.iter().cloned().flatten().skip(block.common);
    keys.map(|key| (key, batch.ends[key as usize])).collect()
}

/// Hides from each row of `keys` scores those that its window has left behind; keys that all rows see are not `masked`.
fn hide(
    batch: &MicroBatch,
    window: usize,
    masked: &[(u32, u32)],
    nodes: &[u32],
    keys: usize,
    scores: &mut [f32],
) {
    for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
        let position = batch.positions[nodes[row % nodes.len()] as usize] as usize;
        let common = keys - masked.len();
        for (score, &(key, _)) in scores[common..].iter_mut().zip(masked) {
            if batch.positions[key as usize] as usize + window <= position {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}

/// Where queries, keys and values of one key head lie. Queries of the group are `heads.queries / heads.keys` adjacent
/// heads.
fn layouts(heads: Heads, head: usize) -> [HeadLayout; 3] {
    let Heads { queries, keys, width } = heads;
    [
        HeadLayout { stride: queries * width, offset: head * (queries / keys) * width, width },
        HeadLayout { stride: keys * width, offset: head * width, width },
        HeadLayout { stride: 2 * keys * width, offset: (keys + head) * width, width },
    ]
}

/// Forward pass; see [`crate::backend::Backend::attention`].
pub(super) fn forward(
    scratch: &mut Scratch,
    gemm: &mut Gemm,
    batch: &MicroBatch,
    (blocks, window): (&Blocks, Option<usize>),
    op: &Attention<Vec<f32>>,
    out: &mut [f32],
    lse: &mut [f32],
) {
    let heads = op.heads;
    let (width, group) = (heads.width, heads.queries / heads.keys);
    for block in &blocks.blocks {
        let rows = group * block.rows.len();
        let nodes = &blocks.nodes[block.rows.clone()];
        let masked = masked_keys(batch, block);
        for head in 0..heads.keys {
            let layouts = layouts(heads, head);
            let [q, k, v] = scratch.operands.gather(op, block, layouts);
            let scores = resized(&mut scratch.scores, rows * block.keys);
            let head_out = resized(&mut scratch.out, rows * width);
            let (sums, head_lse) = resized(&mut scratch.lse, 2 * rows).split_at_mut(rows);
            gemm.exact([rows, block.keys, width], q, k.transposed(), Onto::Zero, scores, block.keys);
            if let Some(window) = window {
                hide(batch, window, &masked, nodes, block.keys, scores);
            }
            softmax(block.keys, block.common, &masked, nodes, scores, sums, head_lse);
            let p = View::new(scores, block.keys);
            gemm.exact([rows, width, block.keys], p, v, Onto::Zero, head_out, width);
            for sum in sums.iter_mut() {
                *sum = 1.0 / *sum;
            }
            scatter_rows(block.rows.clone(), group, layouts[0], sums, head_out, out);
            for (index, row) in block.rows.clone().enumerate() {
                for member in 0..group {
                    lse[row * heads.queries + head * group + member] =
                        head_lse[member * block.rows.len() + index];
                }
            }
        }
    }
}

/// Backward pass; see [`crate::backend::Backend::attention_backward`].
pub(super) fn backward(
    scratch: &mut Scratch,
    gemm: &mut Gemm,
    batch: &MicroBatch,
    (blocks, window): (&Blocks, Option<usize>),
    op: &Attention<Vec<f32>>,
    output: AttentionOutput<Vec<f32>>,
    gradients: AttentionGradients<Vec<f32>>,
) {
    let heads = op.heads;
    let (width, group) = (heads.width, heads.queries / heads.keys);
    let key_width = heads.keys * width;
    let d_keys = &mut gradients.d_keys[..batch.tokens() * key_width];
    let d_key_value = &mut gradients.d_key_value[..batch.tokens() * 2 * key_width];
    d_keys.fill(0.0);
    for row in d_key_value.chunks_exact_mut(2 * key_width) {
        row[key_width..].fill(0.0);
    }
    for block in &blocks.blocks {
        let rows = group * block.rows.len();
        let nodes = &blocks.nodes[block.rows.clone()];
        let masked = masked_keys(batch, block);
        for head in 0..heads.keys {
            let layouts = layouts(heads, head);
            let [queries_at, keys_at, values_at] = layouts;
            let [q, k, v] = scratch.operands.gather(op, block, layouts);
            let scores = resized(&mut scratch.scores, rows * block.keys);
            let d_scores = resized(&mut scratch.d_scores, rows * block.keys);
            let head_out = resized(&mut scratch.out, rows * width);
            let d_head_out = resized(&mut scratch.d_out, rows * width);
            let d_k = resized(&mut scratch.d_keys, block.keys * width);
            let head_lse = resized(&mut scratch.lse, rows);
            gather_rows(block.rows.clone(), group, queries_at, 1.0, output.out, head_out);
            gather_rows(block.rows.clone(), group, queries_at, 1.0, output.d_out, d_head_out);
            for (index, row) in block.rows.clone().enumerate() {
                for member in 0..group {
                    head_lse[member * block.rows.len() + index] =
                        output.lse[row * heads.queries + head * group + member];
                }
            }
            let by_key = [rows, block.keys, width];
            let by_query = [block.keys, width, rows];
            gemm.exact(by_key, q, k.transposed(), Onto::Zero, scores, block.keys);
            let d_o = View::new(d_head_out, width);
            gemm.exact(by_key, d_o, v.transposed(), Onto::Zero, d_scores, block.keys);
            if let Some(window) = window {
                hide(batch, window, &masked, nodes, block.keys, scores);
            }
            softmax_backward(
                block.keys,
                block.common,
                &masked,
                nodes,
                head_lse,
                width,
                head_out,
                d_head_out,
                scores,
                d_scores,
            );
            let p = View::new(scores, block.keys).transposed();
            gemm.exact(by_query, p, d_o, Onto::Zero, d_k, width);
            scatter_keys(&block.runs, values_at, d_k, d_key_value);
            let d_s = View::new(d_scores, block.keys);
            gemm.exact(by_query, d_s.transposed(), q, Onto::Zero, d_k, width);
            scatter_keys(&block.runs, keys_at, d_k, d_keys);
            gemm.exact([rows, width, block.keys], d_s, k, Onto::Zero, head_out, width);
            head_lse.fill(op.scale);
            scatter_rows(block.rows.clone(), group, queries_at, head_lse, head_out, gradients.d_queries);
        }
    }
}
