//! Attention under the tree mask, as dense GEMMs over blocks of queries and the keys they see.
//!
//! In depth-first order a subtree that ended before a block of queries is contiguous and skipped. The remaining keys are
//! gathered once for all query heads of their group, so a prompt shared by K branches is read from cache, and the cost
//! follows the visible pairs. Scores of a block are not kept; the backward pass recomputes them from the log-sum-exp
//! (FlashAttention-2, arXiv 2307.08691).

use super::attention_blocks::{Block, Blocks, QUERIES};
use super::attention_scratch::Operands;
use super::products::{Gemm, ThreadScratch, exact};
use crate::backend::{Attention, AttentionGradients, AttentionOutput, Heads, MicroBatch};
use functional::{dot, exp, softmax, vectorized};
use gemm::{Accumulate, View, ViewMut};
use std::ops::Range;

/// Scratch values of a thread, for trees of at most `largest` tokens: one block's operands and scores for one
/// key head (shared by `group` query heads of `width`), and gradients of keys and values of all heads,
/// `key_width` values per token.
pub fn values(largest: usize, group: usize, width: usize, key_width: usize) -> usize {
    let rows = group * QUERIES;
    2 * rows * largest + (2 * largest + 3 * rows) * width + 2 * largest * key_width
}

/// The layout of one head: at `offset` in rows of `stride` values.
#[derive(Clone, Copy)]
struct HeadLayout {
    stride: usize,
    offset: usize,
    width: usize,
}

impl Operands {
    /// Gathers the operands of a block; queries are multiplied by attention's scale.
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
    /// Makes scores negative infinity where the mask hides the key.
    fn mask(keys: usize, common: usize, masked: &[(u32, u32)], nodes: &[u32], scores: &mut [f32]) {
        for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
            let node = nodes[row % nodes.len()];
            for (score, &(key, end)) in scores[common..].iter_mut().zip(masked) {
                *score = if key <= node && node < end { *score } else { f32::NEG_INFINITY };
            }
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

/// A block, and its rows of the two results that the pass writes.
struct BlockRows<'a> {
    block: &'a Block,
    out: &'a mut [f32],
    other: &'a mut [f32],
}

/// Cuts rows of two results, `widths` values each, between the blocks.
fn pieces<'a>(
    blocks: &'a [Block],
    widths: [usize; 2],
    mut out: &'a mut [f32],
    mut other: &'a mut [f32],
) -> Vec<BlockRows<'a>> {
    let piece = |block: &'a Block| {
        let [out, other] = [(&mut out, widths[0]), (&mut other, widths[1])]
            .map(|(rest, width)| rest.split_off_mut(..block.rows.len() * width).unwrap_or_default());
        BlockRows { block, out, other }
    };
    blocks.iter().map(piece).collect()
}

/// Forward pass; see [`crate::backend::Backend::attention`].
pub(super) fn forward(
    gemm: &mut Gemm,
    batch: &MicroBatch,
    blocks: &Blocks,
    op: &Attention<Vec<f32>>,
    out: &mut [f32],
    lse: &mut [f32],
) {
    let Heads { queries, width, .. } = op.heads;
    let mut pieces = pieces(&blocks.blocks, [queries * width, queries], out, lse);
    // Start with the pieces that have the most keys, so that no large piece is left for the end.
    pieces.reverse();
    gemm.each(pieces, |scratch, piece| {
        forward_block(scratch, batch, blocks, op, piece);
    });
}

fn forward_block(
    ThreadScratch { gemm, attention: scratch }: &mut ThreadScratch,
    batch: &MicroBatch,
    blocks: &Blocks,
    op: &Attention<Vec<f32>>,
    BlockRows { block, out, other: lse }: BlockRows,
) {
    let heads = op.heads;
    let (width, group) = (heads.width, heads.queries / heads.keys);
    let rows = group * block.rows.len();
    let nodes = &blocks.nodes[block.rows.clone()];
    let masked = masked_keys(batch, block);
    for head in 0..heads.keys {
        let layouts = layouts(heads, head);
        let [q, k, v] = scratch.operands.gather(op, block, layouts);
        let scores = resized(&mut scratch.scores, rows * block.keys);
        let head_out = resized(&mut scratch.out, rows * width);
        let (sums, head_lse) = resized(&mut scratch.lse, 2 * rows).split_at_mut(rows);
        exact(gemm, [rows, block.keys, width], q, k.transposed(), Accumulate::Zero, scores, block.keys);
        if let Some(window) = blocks.window {
            hide(batch, window, &masked, nodes, block.keys, scores);
        }
        mask(block.keys, block.common, &masked, nodes, scores);
        softmax(block.keys, block.keys, scores, head_lse, sums);
        // In one chain, so that the keys that a row does not see change no bit of it.
        let (p, sums_of_values) = (View::new(scores, block.keys), ViewMut::new(head_out, width));
        gemm::multiply_chained(gemm, [rows, width, block.keys], p, v, sums_of_values);
        for (sum, lse) in sums.iter_mut().zip(head_lse.iter_mut()) {
            *lse += sum.ln();
            *sum = 1.0 / *sum;
        }
        scatter_rows(0..block.rows.len(), group, layouts[0], sums, head_out, out);
        for row in 0..block.rows.len() {
            for member in 0..group {
                lse[row * heads.queries + head * group + member] = head_lse[member * block.rows.len() + row];
            }
        }
    }
}

/// What blocks add to the gradients of values and of keys: for each block of a wave, head after head, each
/// `[keys, width]`. They are added in the order of the blocks, whoever computed them.
#[derive(Debug, Default)]
pub(super) struct Contributions(Vec<Vec<f32>>);

/// Backward pass; see [`crate::backend::Backend::attention_backward`].
pub(super) fn backward(
    Contributions(contributions): &mut Contributions,
    gemm: &mut Gemm,
    batch: &MicroBatch,
    blocks: &Blocks,
    op: &Attention<Vec<f32>>,
    output: AttentionOutput<Vec<f32>>,
    gradients: AttentionGradients<Vec<f32>>,
) {
    let Heads { queries, keys: heads, width } = op.heads;
    let key_width = heads * width;
    let d_keys = &mut gradients.d_keys[..batch.tokens() * key_width];
    let d_key_value = &mut gradients.d_key_value[..batch.tokens() * 2 * key_width];
    d_keys.fill(0.0);
    for row in d_key_value.chunks_exact_mut(2 * key_width) {
        row[key_width..].fill(0.0);
    }
    let threads = gemm.size();
    contributions.resize_with(threads, Vec::new);
    let mut pieces = pieces(&blocks.blocks, [queries * width, 0], gradients.d_queries, &mut []).into_iter();
    for wave in blocks.blocks.chunks(threads) {
        let pieces = contributions.iter_mut().zip(pieces.by_ref()).collect();
        gemm.each(pieces, |scratch, (contribution, piece)| {
            backward_block(scratch, batch, blocks, op, &output, piece, contribution);
        });
        for (block, contribution) in wave.iter().zip(contributions.iter()) {
            for (head, part) in contribution.chunks_exact(2 * block.keys * width).take(heads).enumerate() {
                let [_, keys_at, values_at] = layouts(op.heads, head);
                let (of_values, of_keys) = part.split_at(block.keys * width);
                scatter_keys(&block.runs, values_at, of_values, d_key_value);
                scatter_keys(&block.runs, keys_at, of_keys, d_keys);
            }
        }
    }
}

fn backward_block(
    ThreadScratch { gemm, attention: scratch }: &mut ThreadScratch,
    batch: &MicroBatch,
    blocks: &Blocks,
    op: &Attention<Vec<f32>>,
    output: &AttentionOutput<Vec<f32>>,
    BlockRows { block, out: d_queries, .. }: BlockRows,
    contribution: &mut Vec<f32>,
) {
    let heads = op.heads;
    let (width, group) = (heads.width, heads.queries / heads.keys);
    let rows = group * block.rows.len();
    let nodes = &blocks.nodes[block.rows.clone()];
    let masked = masked_keys(batch, block);
    let contribution = resized(contribution, heads.keys * 2 * block.keys * width);
    for (head, contribution) in contribution.chunks_exact_mut(2 * block.keys * width).enumerate() {
        let layouts = layouts(heads, head);
        let queries_at = layouts[0];
        let (d_v, d_k) = contribution.split_at_mut(block.keys * width);
        let [q, k, v] = scratch.operands.gather(op, block, layouts);
        let scores = resized(&mut scratch.scores, rows * block.keys);
        let d_scores = resized(&mut scratch.d_scores, rows * block.keys);
        let head_out = resized(&mut scratch.out, rows * width);
        let d_head_out = resized(&mut scratch.d_out, rows * width);
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
        exact(gemm, by_key, q, k.transposed(), Accumulate::Zero, scores, block.keys);
        let d_o = View::new(d_head_out, width);
        exact(gemm, by_key, d_o, v.transposed(), Accumulate::Zero, d_scores, block.keys);
        if let Some(window) = blocks.window {
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
        exact(gemm, by_query, p, d_o, Accumulate::Zero, d_v, width);
        let d_s = View::new(d_scores, block.keys);
        exact(gemm, by_query, d_s.transposed(), q, Accumulate::Zero, d_k, width);
        exact(gemm, [rows, width, block.keys], d_s, k, Accumulate::Zero, head_out, width);
        head_lse.fill(op.scale);
        scatter_rows(0..block.rows.len(), group, queries_at, head_lse, head_out, d_queries);
    }
}
