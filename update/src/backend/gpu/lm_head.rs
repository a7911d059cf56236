//! The LM head on the device: logits of a chunk of nodes in f32, reduced at once to log-probabilities and entropies.
//!
//! The loss needs all log-probabilities first, so the backward pass recomputes the logits of all chunks but the last, which
//! are still held and which it begins with. `[tokens, vocabulary]` never exists.

use device::{Buffer, Device, Gemm, Operand, Shape, Slice};
use half::bf16;
use record::failure::Result;

use super::device_batch::{DeviceBatch, Table};
use super::threads;
use super::values::{Values, reserve};
use super::workspace::WorkspaceSizes;
use crate::backend::{Dense, LmHead};
use crate::kernels;

/// Target size of a chunk's logits and their gradient, bytes.
const CHUNK_BYTES: usize = 1 << 30;
/// Nodes of a chunk, at least and at most: enough for the GEMMs to run at full speed.
const CHUNK_NODES: (usize, usize) = (64, 2048);
/// Rows of a GEMM's tile: a chunk is whole tiles if it has one at all.
const GEMM_TILE: usize = 128;
/// Threads of a block, for vocabularies with at least so many tokens.
const THREADS: usize = 512;

/// Buffers of one chunk, kept between micro-batches.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    logits: Option<Buffer<f32>>,
    d_logits: Option<Buffer<bf16>>,
    /// Log-sum-exp of each scored node's logits.
    lse: Option<Buffer<f32>>,
    /// Log-probabilities and entropies of the loss rows by node; in the backward pass the gradient of the former, and
    /// the rounding error of the logits' gradient at the targets.
    rows: Option<Buffer<f32>>,
    /// First node of the chunk whose logits are still held.
    kept: Option<usize>,
}

/// Values from one row of logits to the next: rows begin at multiples of 16 bytes for both types.
pub(super) fn stride(vocabulary: usize) -> usize {
    vocabulary.next_multiple_of(8)
}

/// Nodes of a chunk.
pub(super) fn chunk(nodes: usize, vocabulary: usize) -> usize {
    let fitting = CHUNK_BYTES / (stride(vocabulary) * (size_of::<f32>() + size_of::<bf16>()));
    let whole = if fitting < GEMM_TILE { fitting } else { fitting / GEMM_TILE * GEMM_TILE };
    whole.clamp(CHUNK_NODES.0, CHUNK_NODES.1).min(nodes).max(1)
}

/// The hidden states of the scored nodes and the head's weight.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    batch: &'a DeviceBatch,
    hidden: Slice<'a, bf16>,
    weights: Slice<'a, bf16>,
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

    fn hidden(&self, first: usize, count: usize) -> Operand<'a> {
        let width = self.weight.inputs;
        Operand::new(self.hidden.slice(first * width..(first + count) * width), width)
    }

    /// Chunks of nodes: the first of each and how many.
    fn chunks(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let nodes = self.batch.scored;
        let step = chunk(nodes, self.weight.outputs);
        (0..nodes).step_by(step).map(move |first| (first, step.min(nodes - first)))
    }

    fn shape(&self, nodes: usize) -> Shape {
        Shape::rows(nodes as u32, self.weight.outputs.next_multiple_of(32).min(THREADS) as u32)
    }

    /// The scalars that both kernels end with.
    fn sizes(&self) -> (i32, i32, f32) {
        let vocabulary = self.weight.outputs;
        (vocabulary as i32, stride(vocabulary) as i32, 1.0 / self.temperature)
    }
}

/// Computes the logits of a chunk of nodes into a buffer.
fn logits<'b, D: Device>(
    device: &mut D,
    buffer: &'b mut Option<Buffer<f32>>,
    inputs: Inputs,
    (first, count): (usize, usize),
) -> Result<&'b Buffer<f32>> {
    let (vocabulary, width) = (inputs.weight.outputs, inputs.weight.inputs);
    let stride = stride(vocabulary);
    let logits = reserve(device, buffer, count * stride)?;
    let (out, weight) = (Operand::new(logits, stride), inputs.weight().transposed());
    device.gemm(&Gemm::new(inputs.hidden(first, count), weight, out, [count, vocabulary, width]))?;
    Ok(logits)
}

impl Workspace {
    pub(super) fn reserve<D: Device>(&mut self, device: &mut D, sizes: &WorkspaceSizes) -> Result<()> {
        reserve(device, &mut self.logits, sizes.logits)?;
        if sizes.d_logits > 0 {
            reserve(device, &mut self.d_logits, sizes.d_logits)?;
        }
        reserve(device, &mut self.lse, sizes.lse)?;
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
        let batch = inputs.batch;
        if batch.rows == 0 {
            return Ok(());
        }
        let lse = reserve(device, &mut self.lse, batch.scored)?;
        let rows = reserve(device, &mut self.rows, 2 * batch.rows)?;
        let (vocabulary, stride, scale) = inputs.sizes();
        for (first, count) in inputs.chunks() {
            let logits = logits(device, &mut self.logits, inputs, (first, count))?;
            self.kept = Some(first);
            let arguments = [
                rows.slice(..batch.rows).into(),
                rows.slice(batch.rows..).into(),
                lse.slice(first..first + count).into(),
                logits.into(),
                batch.table(Table::RowStarts)?.slice(first..=first + count).into(),
                batch.table(Table::Targets)?.into(),
                vocabulary.into(),
                stride.into(),
                scale.into(),
            ];
            device.launch(&kernels::SCORE_ROWS, inputs.shape(count), &arguments)?;
        }
        let mut found = vec![0.0f32; 2 * batch.rows];
        device.download(rows.slice(..2 * batch.rows), &mut found)?;
        for (index, &row) in batch.by_node.iter().enumerate() {
            logprobs[row as usize] = found[index];
            entropies[row as usize] = found[batch.rows + index];
        }
        Ok(())
    }

    /// See [`crate::backend::Backend::score_backward`].
    pub(super) fn score_backward<D: Device>(
        &mut self,
        device: &mut D,
        inputs: Inputs,
        d_logprobs: &[f32],
        d_hidden: Slice<f32>,
        gradients: Option<Slice<f32>>,
    ) -> Result<()> {
        let (batch, weight) = (inputs.batch, inputs.weight);
        if batch.rows == 0 {
            return Ok(());
        }
        let by_node: Vec<f32> = batch.by_node.iter().map(|&row| d_logprobs[row as usize]).collect();
        let lse = reserve(device, &mut self.lse, batch.scored)?;
        let rows = reserve(device, &mut self.rows, 2 * batch.rows)?;
        device.upload(&by_node, rows.slice(..batch.rows))?;
        let (vocabulary, stride, scale) = inputs.sizes();
        for (first, count) in inputs.chunks().rev() {
            let step = stride as usize;
            let logits = match self.kept.take() == Some(first) {
                true => reserve(device, &mut self.logits, count * step)?,
                false => logits(device, &mut self.logits, inputs, (first, count))?,
            };
            let d_logits = reserve(device, &mut self.d_logits, count * step)?;
            let (starts, residues) =
                (batch.table(Table::RowStarts)?.slice(first..=first + count), rows.slice(batch.rows..));
            let arguments = [
                d_logits.into(),
                residues.into(),
                logits.into(),
                lse.slice(first..first + count).into(),
                rows.slice(..batch.rows).into(),
                starts.into(),
                batch.table(Table::Targets)?.into(),
                vocabulary.into(),
                stride.into(),
                scale.into(),
            ];
            device.launch(&kernels::SCORE_ROWS_BACKWARD, inputs.shape(count), &arguments)?;
            let d_logits = Operand::new(d_logits, step);
            let out = d_hidden.slice(first * weight.inputs..(first + count) * weight.inputs);
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
            if let Some(gradients) = gradients {
                let out = gradients.slice(weight.range());
                let extent = [weight.outputs, weight.inputs, count];
                let hidden = inputs.hidden(first, count);
                let out = Operand::new(out, weight.inputs);
                device.gemm(&Gemm::new(d_logits.transposed(), hidden, out, extent).adding(true))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_whole_tiles_of_a_gemm() {
        // Qwen3's vocabulary: 1,177 nodes would fit.
        assert_eq!(chunk(32_768, 151_936), 1_152);
        assert_eq!(chunk(32_768, 32_000), 2_048);
        assert_eq!(chunk(700, 151_936), 700, "no more than there are");
        assert_eq!(chunk(32_768, 1 << 21), 85, "less than a tile fits");
    }
}
