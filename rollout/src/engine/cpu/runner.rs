//! The model runner for the CPU: one thread's memory over the shared model.

use super::context::ForwardContext;
use super::kv::KvCache;
use super::model::Model;
use super::rope::Rope;
use super::sampler::Sampler;
use super::workspace::Workspace;
use crate::engine::batch::{Batch, NextToken, SampleRequest};
use crate::engine::request::SampledToken;
use crate::engine::scheduler::Runner;
use record::failure::Result;
use std::sync::Arc;

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
