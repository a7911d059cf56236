//! The work of a run: ONNX Runtime runs the decoder's graph over KV-cache blocks in device memory, a product
//! makes f32 logits of the hidden rows, and a custom kernel samples tokens from them. All of it is enqueued
//! without waiting and depends only on the batch shape and the buffers' contents, so it can be captured.

use super::config::Activation;
use super::sampler::DeviceSampler;
use super::sessions::Sessions;
use super::shape::BatchShape;
use super::weights::DeviceWeights;
use crate::engine::batch::{NextToken, SampleRequest};
use crate::engine::request::SamplingParams;
use device::{Buffer, Device, Gemm, Operand};
use policy::config::Config;
use record::failure::Result;

/// Logits that are held at a time: enough for a full batch and a vocabulary of 151,936, so that a decode step
/// reads the head once.
pub const LOGIT_BYTES: usize = 256 << 20;

/// The sessions, the sampler and their buffers.
pub struct Forward<T: Activation> {
    /// The decoder up to its hidden rows.
    pub sessions: Sessions,
    pub sampler: DeviceSampler,
    /// Bound to the sessions.
    pub weights: DeviceWeights<T>,
    config: Config,
    /// `[logit rows, hidden]`.
    hidden: Buffer<T>,
    /// `[chunk of logit rows, vocabulary]`; while the decoder runs, room for our attention's partial results.
    logits: Buffer<f32>,
    requests: Vec<SampleRequest>,
}

/// Rows of logits that are held at a time.
fn logit_rows(vocabulary: usize) -> usize {
    (LOGIT_BYTES / (size_of::<f32>() * vocabulary)).max(1)
}

impl<T: Activation> Forward<T> {
    /// Buffers for up to `rows` rows of logits, and for the weights, which are not there yet.
    pub fn new<D: Device>(
        config: &Config,
        device: &mut D,
        mut sessions: Sessions,
        rows: usize,
    ) -> Result<Self> {
        let vocabulary = config.vocab_size;
        let logits = device.allocate::<f32>(logit_rows(vocabulary) * vocabulary)?;
        if let Some(decoding) = sessions.decoding() {
            decoding.input::<f32>("scratch", logits.address(), &[logits.len()])?;
        }
        Ok(Forward {
            weights: DeviceWeights::new(config, device, &mut sessions)?,
            hidden: device.allocate(rows * config.hidden_size)?,
            logits,
            sampler: DeviceSampler::new(device, rows, vocabulary)?,
            requests: Vec::new(),
            sessions,
            config: config.clone(),
        })
    }

    /// Uploads a run's sample requests, padded to its shape.
    pub fn request<D: Device>(
        &mut self,
        device: &mut D,
        requests: &[SampleRequest],
        shape: &BatchShape,
    ) -> Result<()> {
        let padding = |row| SampleRequest { row, sampling: SamplingParams::PLAIN, next: NextToken::Given(0) };
        self.requests.clear();
        self.requests.extend(requests.iter().copied().chain((requests.len()..shape.requests).map(padding)));
        self.sampler.upload(device, &self.requests, logit_rows(self.config.vocab_size))
    }

    /// Binds the buffer for a run's hidden rows.
    pub fn bind_output(&mut self, shape: &BatchShape) -> Result<()> {
        self.sessions.selected().output::<T>(
            "hidden",
            self.hidden.address(),
            &[shape.logit_rows, self.config.hidden_size],
        )
    }

    /// Enqueues the work of a run whose inputs are bound and whose sample requests were uploaded.
    pub fn submit<D: Device>(&mut self, device: &mut D, shape: &BatchShape) -> Result<()> {
        self.sessions.selected().run()?;
        let (vocabulary, hidden) = (self.config.vocab_size, self.config.hidden_size);
        let head = self.weights.head(&self.config);
        let most = logit_rows(vocabulary);
        let mut sampled = 0;
        for first in (0..shape.logit_rows).step_by(most) {
            let rows = (shape.logit_rows - first).min(most);
            device.gemm(&Gemm::new(
                Operand::new(self.hidden.slice(first * hidden..), hidden),
                Operand::new(head, hidden).transposed(),
                Operand::new(&self.logits, vocabulary),
                [rows, vocabulary, hidden],
            ))?;
            let end = self.requests.partition_point(|request| request.row < first + rows);
            let (logits, which) = ((&self.logits).into(), sampled..end);
            self.sampler.sample(device, logits, (vocabulary, vocabulary), which)?;
            sampled = end;
        }
        Ok(())
    }

    /// Clears everything between the inputs and the sampled tokens of the run before.
    pub fn clear<D: Device>(&self, device: &mut D) -> Result<()> {
        device.clear(self.hidden.all())?;
        device.clear(self.logits.all())?;
        self.sampler.clear(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_step_reads_the_head_once() {
        assert!(logit_rows(151_936) >= crate::engine::device::SEQUENCES);
        assert_eq!(logit_rows(usize::MAX / 8), 1, "a row is always held");
    }
}
