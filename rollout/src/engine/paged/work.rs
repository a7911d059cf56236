//! The work of a run: ONNX Runtime runs the decoder's graph over blocks in the device's memory, our own product makes f32
//! logits of the hidden rows, and our own kernel chooses tokens from them. All of it is one sequence of work on the
//! device, which nothing waits for and which depends on nothing but the form of the run and what is in its buffers: it
//! can be recorded.

use super::batch::SampleRequest;
use super::form::Form;
use super::inputs::Inputs;
use super::runner::Activation;
use super::sampler::DeviceSampler;
use super::session::Session;
use crate::engine::branch::NextToken;
use crate::engine::request::SamplingParams;
use device::{Buffer, Device, Gemm, Operand};
use record::failure::Result;

/// Logits that are held at a time.
pub const LOGIT_BYTES: usize = 128 << 20;

/// What computes, and what it computes over.
pub struct Work<T: Activation> {
    /// The decoder up to its hidden rows.
    pub session: Session,
    /// `[vocabulary, hidden]`.
    pub head: Buffer<T>,
    /// The wanted rows.
    pub hidden: Buffer<T>,
    /// Those of one piece of the wanted rows.
    pub logits: Buffer<f32>,
    /// What chooses tokens.
    pub sampler: DeviceSampler,
    /// The tokens that were asked for.
    pub requests: Vec<SampleRequest>,
    /// Tokens of the vocabulary, and values of a hidden row.
    pub sizes: [usize; 2],
}

/// Rows of logits that are held at a time.
pub fn logit_rows(vocabulary: usize) -> usize {
    (LOGIT_BYTES / (size_of::<f32>() * vocabulary)).max(1)
}

impl<T: Activation> Work<T> {
    /// Tells the device which tokens are wanted of a run, filled up to its form.
    ///
    /// # Errors
    /// A device that fails.
    pub fn ask<D: Device>(&mut self, device: &mut D, requests: &[SampleRequest], form: &Form) -> Result<()> {
        let nobodys = |row| SampleRequest { row, sampling: SamplingParams::PLAIN, want: NextToken::Given(0) };
        self.requests.clear();
        self.requests.extend(requests.iter().copied().chain((requests.len()..form.requests).map(nobodys)));
        self.sampler.ask(device, &self.requests, logit_rows(self.sizes[0]))
    }

    /// Binds a run's inputs, and room for its hidden rows.
    ///
    /// # Errors
    /// 1 where ONNX Runtime refuses.
    pub fn bind(&mut self, inputs: &mut Inputs, form: &Form) -> Result<()> {
        inputs.bind(&mut self.session, form)?;
        self.session.output::<T>("hidden", self.hidden.address(), &[form.wanted, self.sizes[1]])
    }

    /// Asks the device for the work of a run whose inputs are bound and whose tokens were asked for.
    ///
    /// # Errors
    /// The model or the device failed.
    pub fn submit<D: Device>(&mut self, device: &mut D, form: &Form) -> Result<()> {
        self.session.run()?;
        let [vocabulary, hidden] = self.sizes;
        let most = logit_rows(vocabulary);
        let mut chosen = 0;
        for first in (0..form.wanted).step_by(most) {
            let rows = (form.wanted - first).min(most);
            device.gemm(&Gemm::new(
                Operand::new(self.hidden.slice(first * hidden..), hidden),
                Operand::new(&self.head, hidden).transposed(),
                Operand::new(&self.logits, vocabulary),
                [rows, vocabulary, hidden],
            ))?;
            let end = self.requests.partition_point(|request| request.row < first + rows);
            let (logits, which) = ((&self.logits).into(), chosen..end);
            self.sampler.choose(device, logits, (vocabulary, vocabulary), which)?;
            chosen = end;
        }
        Ok(())
    }

    /// Forgets everything between the inputs and the answers of the run before.
    ///
    /// # Errors
    /// A device that fails.
    pub fn forget<D: Device>(&self, device: &mut D) -> Result<()> {
        device.clear(self.hidden.all())?;
        device.clear(self.logits.all())?;
        self.sampler.forget(device)
    }
}
