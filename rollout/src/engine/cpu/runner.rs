//! The model runner for the CPU: one thread's memory over the shared model, and how custom operators reach it.
//!
//! One session runs on many threads. What differs between them, keys and values above all, is set as the thread's current
//! context: with one thread per run, ONNX Runtime calls the operators on the thread that called it.

use super::kv::KvCache;
use super::model::Model;
use super::parameters::ModelParameters;
use super::rope::Rope;
use super::sampler::Sampler;
use super::workspace::Workspace;
use crate::engine::batch::{Batch, NextToken, SampleRequest};
use crate::engine::custom_op::Outcome;
use crate::engine::request::SampledToken;
use crate::engine::scheduler::Runner;
use record::failure::Result;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

/// A runner's memory.
pub struct ForwardContext {
    /// What the operators multiply with.
    pub parameters: Arc<ModelParameters>,
    /// Keys and values.
    pub kv: KvCache,
    /// Cosines and sines of the positions.
    pub rope: Rope,
    /// Scratch of the attention.
    pub work: Workspace,
    /// Scratch of the matrix products.
    pub products: gemm::Scratch,
    /// `A·x` of adapters.
    pub low_rank: Vec<f32>,
}

thread_local! {
    static CURRENT: Cell<(*mut ForwardContext, *const Batch)> = const { Cell::new((ptr::null_mut(), ptr::null())) };
}

/// Unsets the current context when dropped.
pub struct CurrentGuard<'a>(PhantomData<&'a mut ForwardContext>);

/// Sets the current context and batch of this thread until the result is dropped.
pub fn set_current<'a>(context: &'a mut ForwardContext, batch: &'a Batch) -> CurrentGuard<'a> {
    CURRENT.set((context, batch));
    CurrentGuard(PhantomData)
}

impl Drop for CurrentGuard<'_> {
    fn drop(&mut self) {
        CURRENT.set((ptr::null_mut(), ptr::null()));
    }
}

/// The current context and batch of this thread.
///
/// # Safety
/// One node at a time may hold it, while it runs.
pub unsafe fn current<'a>() -> Outcome<(&'a mut ForwardContext, &'a Batch)> {
    let (context, batch) = CURRENT.get();
    if context.is_null() {
        return Err("no forward context is set on this thread".to_owned());
    }
    // SAFETY: `set_current` borrowed both for this run, and the nodes of a run follow each other on this thread.
    Ok(unsafe { (&mut *context, &*batch) })
}

/// Runs the model on the calling thread.
pub struct CpuRunner {
    model: Arc<Model>,
    context: ForwardContext,
    sampler: Sampler,
    logits: Vec<f32>,
}

impl CpuRunner {
    /// A runner with an empty KV cache.
    pub fn new(model: Arc<Model>) -> CpuRunner {
        let context = ForwardContext {
            parameters: model.parameters.clone(),
            kv: KvCache::new(model.layout),
            rope: Rope::new(&model.config),
            work: Workspace::new(model.config.head_dim),
            products: gemm::Scratch::default(),
            low_rank: Vec::new(),
        };
        CpuRunner { context, sampler: Sampler::default(), logits: Vec::new(), model }
    }

    fn sample(&mut self, requests: &[SampleRequest]) -> Result<Vec<SampledToken>> {
        let (sampler, vocabulary) = (&mut self.sampler, self.model.config.vocab_size);
        let mut prepared = None;
        let mut sample = |SampleRequest { row, sampling, next }: &SampleRequest| {
            let logits = &self.logits[row * vocabulary..(row + 1) * vocabulary];
            // The branches of a new group share a row.
            if prepared != Some(*row) {
                sampler.prepare(logits, sampling)?;
                prepared = Some(*row);
            }
            Ok(match *next {
                NextToken::Sample(stream, position) => {
                    sampler.draw(logits, sampling, stream.uniform(position))
                }
                NextToken::Given(id) => SampledToken { id, logprob: sampler.logprob(logits, id) },
            })
        };
        requests.iter().map(&mut sample).collect()
    }
}

impl Runner for CpuRunner {
    fn run(&mut self, batch: &Batch) -> Result<Vec<SampledToken>> {
        self.context.kv.reserve(&batch.slots)?;
        self.context.rope.reserve(batch.longest);
        let vocabulary = self.model.config.vocab_size;
        self.logits.resize(batch.logit_rows.len() * vocabulary, 0.0);
        self.model.network.run(&mut self.context, batch, vocabulary, &mut self.logits)?;
        self.sample(&batch.requests)
    }
}
