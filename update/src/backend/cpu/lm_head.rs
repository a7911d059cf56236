//! The LM head: log-probabilities of the loss rows and their gradient, a block of logits (some rows, some of the vocabulary)
//! at a time, with an online softmax (arXiv 1805.02867).
//!
//! If the logits of all rows fit into one block they are kept for the backward pass, otherwise recomputed.

use std::ops::Range;

use super::products::Gemm;
use crate::backend::{LmHead, MicroBatch, ScoreGradient};
use functional::{CHUNK, LogSumExp, LogitChunk, TILE, exp, vectorized};
use gemm::{Accumulate, View};

/// Rows and columns of a block of logits: 8 MiB. The split of the vocabulary does not depend on the number of rows, so a
/// row's result does not either.
const ROWS: usize = 512;
const COLUMNS: usize = CHUNK;

/// Values of the logits buffer for `nodes` scored nodes.
pub fn logits_values(nodes: usize, vocabulary: usize) -> usize {
    (nodes * vocabulary).min(ROWS * COLUMNS)
}

/// Values of the gradient that is summed apart from the weights' in a backward pass, for hidden states of this width.
pub fn gradient_values(nodes: usize, vocabulary: usize, width: usize) -> usize {
    if fits(nodes, vocabulary) || nodes <= ROWS { 0 } else { COLUMNS.min(vocabulary) * width }
}

fn fits(nodes: usize, vocabulary: usize) -> bool {
    nodes * vocabulary <= ROWS * COLUMNS
}

/// Logits, and statistics of each scored node's distribution.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    logits: Vec<f32>,
    /// True if `logits` still hold every row.
    kept: bool,
    /// Chunk by chunk of the vocabulary, one for each node.
    chunks: Vec<LogitChunk>,
    distributions: Vec<LogSumExp>,
    /// Log-sum-exps of the logits divided by the temperature.
    lse: Vec<f32>,
    weights: Vec<f32>,
    /// With an entropy term: its weight for each scored node.
    spreads: Vec<f32>,
    /// The gradient of some of the head's rows, where the nodes come in several tiles.
    d_head: Vec<f32>,
}

vectorized! {
    /// Replaces each row's logits by `-weight * probability`.
    fn negative_probabilities(
        columns: usize,
        stride: usize,
        logits: &mut [f32],
        lse: &[f32],
        weights: &[f32],
    ) {
        for (row, logits) in logits.chunks_mut(stride).enumerate() {
            let logits = &mut logits[..columns];
            let (lse, weight) = (lse[row], weights[row]);
            for logit in logits {
                *logit = -weight * exp(*logit - lse);
            }
        }
    }
}

vectorized! {
    /// Replaces each row's logits by `probability * (spread * (log probability + entropy) - weight)`.
    fn spread_probabilities(
        columns: usize,
        stride: usize,
        logits: &mut [f32],
        distributions: &[LogSumExp],
        weights: &[f32],
        spreads: &[f32],
    ) {
        for (row, logits) in logits.chunks_mut(stride).enumerate() {
            let logits = &mut logits[..columns];
            let (lse, entropy) = (distributions[row].log_sum(), distributions[row].entropy());
            let (weight, spread) = (weights[row], spreads[row]);
            for logit in logits {
                let logprob = *logit - lse;
                *logit = exp(logprob) * (spread * (logprob + entropy) - weight);
            }
        }
    }
}

fn ranges(length: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(step).map(move |start| start..length.min(start + step))
}

/// Scored nodes by tokens of the vocabulary, whose logits are one product.
struct Tile {
    nodes: Range<usize>,
    tokens: Range<usize>,
    /// Where its logits are in the buffer, in rows `stride` apart.
    logits: Range<usize>,
    stride: usize,
}

/// The tiles of a micro-batch, consecutive in the buffer if all fit. Tiles of the same tokens follow each
/// other.
fn tiles(nodes: usize, vocabulary: usize) -> impl Iterator<Item = Tile> {
    let fit = fits(nodes, vocabulary);
    let (rows, stride) = if fit { (nodes.max(1), vocabulary) } else { (ROWS, COLUMNS.min(vocabulary)) };
    ranges(vocabulary, COLUMNS).flat_map(move |tokens| {
        ranges(nodes, rows).map(move |nodes| {
            let tokens = tokens.clone();
            let first = if fit { tokens.start } else { 0 };
            let logits = first..first + (nodes.len() - 1) * stride + tokens.len();
            Tile { nodes, tokens, logits, stride }
        })
    })
}

impl Tile {
    /// The hidden states and the head's weight.
    fn operands<'a>(&self, head: &LmHead<'a, Vec<f32>>) -> (View<'a>, View<'a>) {
        let width = head.weight.inputs;
        let weights = &head.weights[head.weight.offset + self.tokens.start * width..];
        (View::new(&head.hidden[self.nodes.start * width..], width), View::new(weights, width))
    }

    /// Computes logits, before the temperature.
    fn compute(&self, gemm: &mut Gemm, head: &LmHead<Vec<f32>>, logits: &mut [f32]) {
        let (x, w) = self.operands(head);
        let mnk = [self.nodes.len(), self.tokens.len(), head.weight.inputs];
        gemm.linear(mnk, x, w.transposed(), Accumulate::Zero, logits, self.stride);
    }

    /// Its loss rows, and where the target's logit is in the tile.
    fn targets<'a>(&'a self, batch: &'a MicroBatch) -> impl Iterator<Item = (usize, usize)> + 'a {
        let node = |row: u32| batch.rows[row as usize].0 as usize;
        let before = |end: usize| batch.by_node.partition_point(|&row| node(row) < end);
        let rows = &batch.by_node[before(self.nodes.start)..before(self.nodes.end)];
        rows.iter().filter_map(move |&row| {
            let target = batch.rows[row as usize].1 as usize;
            let at = || (node(row) - self.nodes.start) * self.stride + target - self.tokens.start;
            self.tokens.contains(&target).then(|| (row as usize, at()))
        })
    }
}

impl Scratch {
    /// See [`crate::backend::Backend::score`].
    pub(super) fn score(
        &mut self,
        gemm: &mut Gemm,
        batch: &MicroBatch,
        head: &LmHead<Vec<f32>>,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    ) {
        let (nodes, vocabulary) = (batch.scored.len(), head.weight.outputs);
        self.kept = fits(nodes, vocabulary);
        self.logits.resize(self.logits.len().max(logits_values(nodes, vocabulary)), 0.0);
        self.chunks.clear();
        self.chunks.resize(vocabulary.div_ceil(COLUMNS) * nodes, LogitChunk::default());
        let (temperature, scale, kept) = (head.temperature, 1.0 / head.temperature, self.kept);
        for tile in tiles(nodes, vocabulary) {
            let logits = &mut self.logits[tile.logits.clone()];
            tile.compute(gemm, head, logits);
            for (row, at) in tile.targets(batch) {
                logprobs[row] = logits[at];
            }
            let share = gemm.share(tile.nodes.len());
            let chunks = &mut self.chunks[tile.tokens.start / COLUMNS * nodes..][tile.nodes.clone()];
            let pieces = logits.chunks_mut(share * tile.stride).zip(chunks.chunks_mut(share)).collect();
            gemm.each(pieces, |_, (logits, chunks)| {
                let mut tiles = [0.0; CHUNK / TILE];
                for (logits, chunk) in logits.chunks_mut(tile.stride).zip(chunks) {
                    let logits = &mut logits[..tile.tokens.len()];
                    *chunk = LogitChunk::new(logits, temperature, &mut tiles);
                    if kept {
                        scale_all(scale, logits);
                    }
                }
            });
        }
        let of = |node: usize| LogSumExp::new(self.chunks[node..].iter().step_by(nodes), temperature);
        self.distributions.clear();
        self.distributions.extend((0..nodes).map(of));
        self.lse.clear();
        self.lse.extend(self.distributions.iter().map(LogSumExp::log_sum));
        for (row, &(node, _)) in batch.rows.iter().enumerate() {
            let distribution = &self.distributions[node as usize];
            logprobs[row] = distribution.logprob(logprobs[row]);
            entropies[row] = distribution.entropy();
        }
    }

    /// See [`crate::backend::Backend::score_backward`].
    pub(super) fn score_backward(
        &mut self,
        gemm: &mut Gemm,
        batch: &MicroBatch,
        head: &LmHead<Vec<f32>>,
        ScoreGradient { logprobs: d_logprobs, entropies }: ScoreGradient<'_>,
        d_hidden: &mut [f32],
        mut gradients: Option<&mut Vec<f32>>,
    ) {
        let (nodes, width) = (batch.scored.len(), head.weight.inputs);
        let scale = 1.0 / head.temperature;
        self.weights.clear();
        self.weights.resize(nodes, 0.0);
        for &row in &batch.by_node {
            self.weights[batch.rows[row as usize].0 as usize] += d_logprobs[row as usize] * scale;
        }
        self.spreads.clear();
        if let Some((d_entropies, _)) = entropies {
            self.spreads.resize(nodes, 0.0);
            for &row in &batch.by_node {
                self.spreads[batch.rows[row as usize].0 as usize] -= d_entropies[row as usize] * scale;
            }
        }
        for tile in tiles(nodes, head.weight.outputs) {
            let logits = &mut self.logits[tile.logits.clone()];
            if !self.kept {
                tile.compute(gemm, head, logits);
                scale_all(scale, logits);
            }
            let (lse, weights) = (&self.lse[tile.nodes.clone()], &self.weights[tile.nodes.clone()]);
            let share = gemm.share(tile.nodes.len());
            let pieces =
                logits.chunks_mut(share * tile.stride).zip(lse.chunks(share).zip(weights.chunks(share)));
            if self.spreads.is_empty() {
                gemm.each(pieces.collect(), |_, (logits, (lse, weights))| {
                    negative_probabilities(tile.tokens.len(), tile.stride, logits, lse, weights);
                });
            } else {
                let spreads = self.spreads[tile.nodes.clone()].chunks(share);
                let distributions = self.distributions[tile.nodes.clone()].chunks(share);
                let pieces = pieces.zip(distributions.zip(spreads));
                gemm.each(pieces.collect(), |_, ((logits, (_, weights)), (distributions, spreads))| {
                    spread_probabilities(
                        tile.tokens.len(),
                        tile.stride,
                        logits,
                        distributions,
                        weights,
                        spreads,
                    );
                });
            }
            for (row, at) in tile.targets(batch) {
                logits[at] += d_logprobs[row] * scale;
            }
            let ((x, w), d_logits) = (tile.operands(head), View::new(logits, tile.stride));
            let (rows, columns) = (tile.nodes.len(), tile.tokens.len());
            let onto = if tile.tokens.start == 0 { Accumulate::Zero } else { Accumulate::Result };
            let d_x = &mut d_hidden[tile.nodes.start * width..];
            gemm.linear([rows, width, columns], d_logits, w, onto, d_x, width);
            if let Some(gradients) = gradients.as_deref_mut() {
                let mnk = [columns, width, rows];
                let d_w = &mut gradients[head.weight.offset + tile.tokens.start * width..];
                if rows == nodes {
                    gemm.linear_gradient(mnk, d_logits.transposed(), x, d_w);
                    continue;
                }
                // Like any weight's, the sum over a micro-batch's nodes is added to the gradient in one go.
                let first = tile.nodes.start == 0;
                self.d_head.resize(self.d_head.len().max(columns * width), 0.0);
                let d_head = &mut self.d_head[..columns * width];
                let onto = if first { Accumulate::Zero } else { Accumulate::Result };
                gemm.linear(mnk, d_logits.transposed(), x, onto, d_head, width);
                if tile.nodes.end == nodes {
                    super::elementwise::add(d_head, &mut d_w[..columns * width]);
                }
            }
        }
        self.kept = false;
    }
}

vectorized! {
    fn scale_all(scale: f32, values: &mut [f32]) {
        for value in values {
            *value *= scale;
        }
    }
}
