//! The LM head on the device: logits of a chunk of nodes in f32, reduced at once to log-probabilities and entropies.
//!
//! A loss whose gradient at a row follows from that row's log-probability alone, as all of ours do, needs the logits of a chunk
//! once ([`Workspace::score_with_gradient`]). Else the backward pass recomputes them, unless one chunk held them all.
//! `[tokens, vocabulary]` never exists.

use std::ops::Range;

use device::{AnySlice, Buffer, Device, Gemm, Operand, Shape, Slice};
use record::failure::Result;

use super::device_batch::{DeviceBatch, Table};
use super::threads;
use super::values::{Half, Values, reserve};
use super::workspace::{WorkspaceSizes, logits_chunk, logits_stride};
use crate::backend::{Dense, LmHead, RowScores, ScoreGradient};
use crate::kernels;

/// Threads of a block, for vocabularies of at least this size.
const THREADS: usize = 512;

/// Buffers of one chunk, kept between micro-batches.
#[derive(Debug)]
pub(super) struct Workspace {
    logits: Option<Buffer<f32>>,
    d_logits: Values,
    /// Log-sum-exp of each scored node's logits.
    lse: Option<Buffer<f32>>,
    /// Log-probabilities and entropies of the loss rows by node; in the backward pass the gradient of the former, and
    /// the rounding error of the logits' gradient at the targets.
    rows: Option<Buffer<f32>>,
    /// With an entropy term, its weight and the entropy of each scored node.
    spreads: Option<Buffer<f32>>,
    /// True if `logits` still holds every node's logits.
    kept: bool,
}

/// The weight of the entropy of each scored node, as it is in the gradient of its logits, and the entropy.
fn spreads(batch: &DeviceBatch, d_entropies: &[f32], entropies: &[f32]) -> Vec<f32> {
    let of_node = |node: usize| {
        let rows = &batch.by_node[batch.row_starts[node] as usize..batch.row_starts[node + 1] as usize];
        let weight: f32 = rows.iter().map(|&row| -d_entropies[row as usize]).sum();
        [weight, rows.first().map_or(0.0, |&row| entropies[row as usize])]
    };
    (0..batch.scored).flat_map(of_node).collect()
}

/// The hidden states of the scored nodes and the head's weight.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    batch: &'a DeviceBatch,
    hidden: AnySlice<'a>,
    weights: AnySlice<'a>,
    weight: Dense,
    temperature: f32,
}

impl<'a> Inputs<'a> {
    pub(super) fn new(batch: &'a DeviceBatch, head: &LmHead<'a, Values>) -> Result<Inputs<'a>> {
        let LmHead { hidden, weights, weight, temperature } = *head;
        Ok(Inputs { batch, hidden: hidden.half()?, weights: weights.half()?, weight, temperature })
    }

    fn weight(&self) -> Operand<'a> {
        Operand::new(self.weights.slice(self.weight.range()), self.weight.inputs)
    }

    fn hidden(&self, nodes: &Range<usize>) -> Operand<'a> {
        let width = self.weight.inputs;
        Operand::new(self.hidden.slice(nodes.start * width..nodes.end * width), width)
    }

    /// Chunks of nodes.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let nodes = self.batch.scored;
        let step = logits_chunk(nodes, self.weight.outputs);
        (0..nodes).step_by(step).map(move |first| first..nodes.min(first + step))
    }

    fn shape(&self, nodes: usize) -> Shape {
        Shape::rows(nodes as u32, self.weight.outputs.next_multiple_of(32).min(THREADS) as u32)
    }

    /// The scalars that both kernels end with.
    fn sizes(&self) -> (i32, i32, f32) {
        let vocabulary = self.weight.outputs;
        (vocabulary as i32, logits_stride(vocabulary) as i32, 1.0 / self.temperature)
    }
}

/// Computes the logits of a chunk of nodes into a buffer.
fn logits<'b, D: Device>(
    device: &mut D,
    buffer: &'b mut Option<Buffer<f32>>,
    inputs: Inputs,
    nodes: &Range<usize>,
) -> Result<&'b Buffer<f32>> {
    let count = nodes.len();
    let (vocabulary, width) = (inputs.weight.outputs, inputs.weight.inputs);
    let stride = logits_stride(vocabulary);
    let logits = reserve(device, buffer, count * stride)?;
    let (out, weight) = (Operand::new(logits, stride), inputs.weight().transposed());
    device.gemm(&Gemm::new(inputs.hidden(nodes), weight, out, [count, vocabulary, width]))?;
    Ok(logits)
}

impl Workspace {
    pub(super) fn of(half: Half) -> Workspace {
        let d_logits = Values::of(half);
        Workspace { logits: None, d_logits, lse: None, rows: None, spreads: None, kept: false }
    }

    pub(super) fn reserve<D: Device>(&mut self, device: &mut D, sizes: &WorkspaceSizes) -> Result<()> {
        reserve(device, &mut self.logits, sizes.logits)?;
        if sizes.d_logits > 0 {
            self.d_logits.reserve(device, sizes.d_logits)?;
        }
        reserve(device, &mut self.lse, sizes.lse)?;
        if sizes.spreads > 0 {
            reserve(device, &mut self.spreads, sizes.spreads)?;
        }
        reserve(device, &mut self.rows, sizes.rows).map(|_| ())
    }

    /// See [`crate::backend::Backend::score`].
    pub(super) fn score<D: Device>(
        &mut self,
        device: &mut D,
        inputs: Inputs,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    ) -> Result<()> {
        if inputs.batch.rows == 0 {
            return Ok(());
        }
        self.kept = inputs.chunks().count() == 1;
        for chunk in inputs.chunks() {
            self.score_chunk(device, inputs, &chunk)?;
        }
        self.read_scores(device, inputs.batch, 0..inputs.batch.rows, RowScores { logprobs, entropies })
    }

    /// See [`crate::backend::Backend::score_backward`].
    pub(super) fn score_backward<D: Device>(
        &mut self,
        device: &mut D,
        inputs: Inputs,
        ScoreGradient { logprobs: d_logprobs, entropies }: ScoreGradient<'_>,
        d_hidden: Slice<f32>,
        gradients: Option<Slice<f32>>,
    ) -> Result<()> {
        let batch = inputs.batch;
        if batch.rows == 0 {
            return Ok(());
        }
        if let Some((d_entropies, entropies)) = entropies {
            let spreads = spreads(batch, d_entropies, entropies);
            let to = reserve(device, &mut self.spreads, spreads.len())?;
            device.upload(&spreads, to.slice(..spreads.len()))?;
        }
        let by_node: Vec<f32> = batch.by_node.iter().map(|&row| d_logprobs[row as usize]).collect();
        let rows = reserve(device, &mut self.rows, 2 * batch.rows)?;
        device.upload(&by_node, rows.slice(..batch.rows))?;
        let kept = std::mem::take(&mut self.kept);
        for chunk in inputs.chunks() {
            if !kept {
                logits(device, &mut self.logits, inputs, &chunk)?;
            }
            self.chunk_backward(device, inputs, &chunk, d_hidden, gradients, entropies.is_some())?;
        }
        Ok(())
    }

    /// See [`crate::backend::Backend::score_with_gradient`]: each chunk's logits are used for both while they are there. One
    /// chunk alone is kept anyway.
    pub(super) fn score_with_gradient<D: Device>(
        &mut self,
        device: &mut D,
        inputs: Inputs,
        RowScores { logprobs, entropies }: RowScores<'_>,
        derivative: &dyn Fn(usize, f32) -> f32,
        d_hidden: Slice<f32>,
        gradients: Option<Slice<f32>>,
    ) -> Result<bool> {
        let batch = inputs.batch;
        if inputs.chunks().count() < 2 {
            return Ok(false);
        }
        self.kept = false;
        for nodes in inputs.chunks() {
            self.score_chunk(device, inputs, &nodes)?;
            let range = batch.row_starts[nodes.start] as usize..batch.row_starts[nodes.end] as usize;
            let scores = RowScores { logprobs: &mut *logprobs, entropies: &mut *entropies };
            self.read_scores(device, batch, range.clone(), scores)?;
            let d_logprobs: Vec<f32> = batch.by_node[range.clone()]
                .iter()
                .map(|&row| derivative(row as usize, logprobs[row as usize]))
                .collect();
            let rows = reserve(device, &mut self.rows, 2 * batch.rows)?;
            device.upload(&d_logprobs, rows.slice(range))?;
            self.chunk_backward(device, inputs, &nodes, d_hidden, gradients, false)?;
        }
        Ok(true)
    }

    /// Logits, log-probabilities and entropies of a chunk of nodes.
    fn score_chunk<D: Device>(&mut self, device: &mut D, inputs: Inputs, nodes: &Range<usize>) -> Result<()> {
        let batch = inputs.batch;
        let lse = reserve(device, &mut self.lse, batch.scored)?;
        let rows = reserve(device, &mut self.rows, 2 * batch.rows)?;
        let (vocabulary, stride, scale) = inputs.sizes();
        let logits = logits(device, &mut self.logits, inputs, nodes)?;
        let arguments = [
            rows.slice(..batch.rows).into(),
            rows.slice(batch.rows..).into(),
            lse.slice(nodes.clone()).into(),
            logits.into(),
            batch.table(Table::RowStarts)?.slice(nodes.start..=nodes.end).into(),
            batch.table(Table::Targets)?.into(),
            vocabulary.into(),
            stride.into(),
            scale.into(),
        ];
        device.launch(&kernels::SCORE_ROWS, inputs.shape(nodes.len()), &arguments)
    }

    /// Waits for the scores of some rows, which are by node on the device.
    fn read_scores<D: Device>(
        &mut self,
        device: &mut D,
        batch: &DeviceBatch,
        range: Range<usize>,
        RowScores { logprobs, entropies }: RowScores<'_>,
    ) -> Result<()> {
        let rows = reserve(device, &mut self.rows, 2 * batch.rows)?;
        let mut found = vec![0.0f32; range.len()];
        for (to, start) in [(logprobs, 0), (entropies, batch.rows)] {
            device.download(rows.slice(start + range.start..start + range.end), &mut found)?;
            for (&row, &value) in batch.by_node[range.clone()].iter().zip(&found) {
                to[row as usize] = value;
            }
        }
        Ok(())
    }

    /// Gradients of a chunk whose logits are held and whose rows' gradients are on the device.
    fn chunk_backward<D: Device>(
        &mut self,
        device: &mut D,
        inputs: Inputs,
        nodes: &Range<usize>,
        d_hidden: Slice<f32>,
        gradients: Option<Slice<f32>>,
        spreads: bool,
    ) -> Result<()> {
        let count = nodes.len();
        let (batch, weight) = (inputs.batch, inputs.weight);
        let lse = reserve(device, &mut self.lse, batch.scored)?;
        let rows = reserve(device, &mut self.rows, 2 * batch.rows)?;
        let (vocabulary, stride, scale) = inputs.sizes();
        let step = stride as usize;
        let logits = reserve(device, &mut self.logits, count * step)?;
        self.d_logits.reserve(device, count * step)?;
        let d_logits = self.d_logits.half()?;
        let (starts, residues) =
            (batch.table(Table::RowStarts)?.slice(nodes.start..=nodes.end), rows.slice(batch.rows..));
        let arguments = [
            d_logits.into(),
            residues.into(),
            logits.into(),
            lse.slice(nodes.clone()).into(),
            rows.slice(..batch.rows).into(),
            starts.into(),
            batch.table(Table::Targets)?.into(),
            // Read only with an entropy term.
            match (&self.spreads, spreads) {
                (Some(spreads), true) => spreads.slice(2 * nodes.start..2 * nodes.end).into(),
                _ => lse.slice(nodes.clone()).into(),
            },
            i32::from(spreads).into(),
            vocabulary.into(),
            stride.into(),
            scale.into(),
        ];
        device.launch(&kernels::SCORE_ROWS_BACKWARD, inputs.shape(nodes.len()), &arguments)?;
        let d_logits = Operand::new(d_logits, step);
        let out = d_hidden.slice(nodes.start * weight.inputs..nodes.end * weight.inputs);
        let extent = [count, weight.inputs, weight.outputs];
        device.gemm(&Gemm::new(d_logits, inputs.weight(), Operand::new(out, weight.inputs), extent))?;
        let arguments = [
            out.into(),
            inputs.weights.slice(weight.offset..).into(),
            residues.into(),
            starts.into(),
            batch.table(Table::Targets)?.into(),
            (weight.inputs as i32).into(),
        ];
        let shape = Shape::rows(count as u32, threads(weight.inputs));
        device.launch(&kernels::SCORE_TARGETS_BACKWARD, shape, &arguments)?;
        let Some(gradients) = gradients else { return Ok(()) };
        let out = Operand::new(gradients, weight.inputs);
        let extent = [weight.outputs, weight.inputs, count];
        let product = Gemm::new(d_logits.transposed(), inputs.hidden(nodes), out, extent);
        device.gemm(&product.adding(true))
    }
}
