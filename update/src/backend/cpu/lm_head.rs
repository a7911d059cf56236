//! The LM head: log-probabilities of the loss rows and their gradient, a block of logits (some rows, some of the vocabulary)
//! at a time, with an online softmax (arXiv 1805.02867).
//!
//! If the logits of all rows fit into one block they are kept for the backward pass, otherwise recomputed.

use super::Gemm;
use super::vector::{self, maximum, sum2, vectorized};
use crate::backend::{LmHead, MicroBatch};
use gemm::{Onto, View};

/// Rows and columns of a block of logits: 8 MiB. The split of the vocabulary does not depend on the number of rows, so a
/// row's result does not either.
const ROWS: usize = 512;
const COLUMNS: usize = 4096;

/// Values of the logits buffer for so many scored nodes.
pub fn logits_values(nodes: usize, vocabulary: usize) -> usize {
    (nodes * vocabulary).min(ROWS * COLUMNS)
}

/// Logits, and statistics of each scored node's distribution.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    logits: Vec<f32>,
    /// Whether `logits` still hold those of every row.
    kept: bool,
    largest: Vec<f32>,
    sums: Vec<f32>,
    /// `sum exp(l - largest) * l`, for the entropy.
    moments: Vec<f32>,
    lse: Vec<f32>,
    weights: Vec<f32>,
}

vectorized! {
    /// Scales logits, and updates each row's running maximum, sum and moment.
    fn fold_rows(
        columns: usize,
        stride: usize,
        scale: f32,
        logits: &mut [f32],
        largest: &mut [f32],
        sums: &mut [f32],
        moments: &mut [f32],
    ) {
        for (row, logits) in logits.chunks_mut(stride).enumerate() {
            let logits = &mut logits[..columns];
            for logit in logits.iter_mut() {
                *logit *= scale;
            }
            let top = maximum(logits);
            if top > largest[row] {
                let shrink = vector::exp(largest[row] - top);
                sums[row] *= shrink;
                moments[row] *= shrink;
                largest[row] = top;
            }
            let top = largest[row];
            sums[row] += sum2(logits, logits, |logit, _, sum| sum + vector::exp(logit - top));
            moments[row] += sum2(logits, logits, |logit, _, sum| vector::exp(logit - top).mul_add(logit, sum));
        }
    }
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
                *logit = -weight * vector::exp(*logit - lse);
            }
        }
    }
}

/// Loss rows, by scored node, of the nodes in a range.
fn rows_within(batch: &MicroBatch, nodes: std::ops::Range<usize>) -> &[u32] {
    let start = batch.by_node.partition_point(|&row| (batch.rows[row as usize].0 as usize) < nodes.start);
    let end = batch.by_node.partition_point(|&row| (batch.rows[row as usize].0 as usize) < nodes.end);
    &batch.by_node[start..end]
}

fn ranges(length: usize, step: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..length).step_by(step).map(move |start| start..length.min(start + step))
}

impl Scratch {
    /// Rows of a block, and its stride.
    fn block(rows: usize, vocabulary: usize) -> (usize, usize) {
        match rows * vocabulary <= ROWS * COLUMNS {
            true => (rows.max(1), vocabulary),
            false => (ROWS, COLUMNS.min(vocabulary)),
        }
    }

    /// See [`crate::backend::Backend::score`].
    pub(super) fn score(
        &mut self,
        gemm: &mut Gemm,
        batch: &MicroBatch,
        head: &LmHead<Vec<f32>>,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    ) {
        let (rows, vocabulary, width) = (batch.scored.len(), head.weight.outputs, head.weight.inputs);
        let (block_rows, stride) = Self::block(rows, vocabulary);
        self.kept = block_rows >= rows && stride == vocabulary;
        self.logits.resize(self.logits.len().max(block_rows * stride), 0.0);
        self.largest.clear();
        self.largest.resize(rows, f32::NEG_INFINITY);
        for sums in [&mut self.sums, &mut self.moments, &mut self.lse] {
            sums.clear();
            sums.resize(rows, 0.0);
        }
        let scale = 1.0 / head.temperature;
        for nodes in ranges(rows, block_rows) {
            for tokens in ranges(vocabulary, COLUMNS) {
                let mnk = [nodes.len(), tokens.len(), width];
                let first = if self.kept { tokens.start } else { 0 };
                let logits = &mut self.logits[first..first + (nodes.len() - 1) * stride + tokens.len()];
                let x = View::new(&head.hidden[nodes.start * width..], width);
                let w = View::new(&head.weights[head.weight.offset + tokens.start * width..], width);
                gemm.linear(mnk, x, w.transposed(), Onto::Zero, logits, stride);
                fold_rows(
                    tokens.len(),
                    stride,
                    scale,
                    logits,
                    &mut self.largest[nodes.clone()],
                    &mut self.sums[nodes.clone()],
                    &mut self.moments[nodes.clone()],
                );
                for &row in rows_within(batch, nodes.clone()) {
                    let (node, target) = batch.rows[row as usize];
                    let (node, target) = (node as usize - nodes.start, target as usize);
                    if tokens.contains(&target) {
                        logprobs[row as usize] = logits[node * stride + target - tokens.start];
                    }
                }
            }
        }
        for node in 0..rows {
            self.lse[node] = self.largest[node] + self.sums[node].ln();
        }
        for (row, &(node, _)) in batch.rows.iter().enumerate() {
            let node = node as usize;
            logprobs[row] -= self.lse[node];
            entropies[row] = self.lse[node] - self.moments[node] / self.sums[node];
        }
    }

    /// See [`crate::backend::Backend::score_backward`].
    pub(super) fn score_backward(
        &mut self,
        gemm: &mut Gemm,
        batch: &MicroBatch,
        head: &LmHead<Vec<f32>>,
        d_logprobs: &[f32],
        d_hidden: &mut [f32],
        mut gradients: Option<&mut Vec<f32>>,
    ) {
        let (rows, vocabulary, width) = (batch.scored.len(), head.weight.outputs, head.weight.inputs);
        let (block_rows, stride) = Self::block(rows, vocabulary);
        let scale = 1.0 / head.temperature;
        self.weights.clear();
        self.weights.resize(rows, 0.0);
        for &row in &batch.by_node {
            self.weights[batch.rows[row as usize].0 as usize] += d_logprobs[row as usize] * scale;
        }
        for nodes in ranges(rows, block_rows) {
            for tokens in ranges(vocabulary, COLUMNS) {
                let mnk = [nodes.len(), tokens.len(), width];
                let first = if self.kept { tokens.start } else { 0 };
                let logits = &mut self.logits[first..first + (nodes.len() - 1) * stride + tokens.len()];
                let x = View::new(&head.hidden[nodes.start * width..], width);
                let start = head.weight.offset + tokens.start * width;
                let w = View::new(&head.weights[start..], width);
                if !self.kept {
                    gemm.linear(mnk, x, w.transposed(), Onto::Zero, logits, stride);
                    scale_all(scale, logits);
                }
                let (lse, weights) = (&self.lse[nodes.clone()], &self.weights[nodes.clone()]);
                negative_probabilities(tokens.len(), stride, logits, lse, weights);
                for &row in rows_within(batch, nodes.clone()) {
                    let (node, target) = batch.rows[row as usize];
                    let (node, target) = (node as usize - nodes.start, target as usize);
                    if tokens.contains(&target) {
                        logits[node * stride + target - tokens.start] += d_logprobs[row as usize] * scale;
                    }
                }
                let d_logits = View::new(logits, stride);
                let onto = if tokens.start == 0 { Onto::Zero } else { Onto::Result };
                let d_x = &mut d_hidden[nodes.start * width..];
                gemm.linear([nodes.len(), width, tokens.len()], d_logits, w, onto, d_x, width);
                if let Some(gradients) = gradients.as_deref_mut() {
                    let d_w = &mut gradients[start..];
                    let mnk = [tokens.len(), width, nodes.len()];
                    gemm.linear(mnk, d_logits.transposed(), x, Onto::Result, d_w, width);
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
