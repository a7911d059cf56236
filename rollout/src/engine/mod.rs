//! Inference: tokens for groups of branches that share a prompt. What is here runs on the processor; [`paged`] is the
//! engine for devices.
//!
//! ONNX Runtime runs the decoder's graph over the weights where they lie; the attention in it is an operator of our
//! own ([`attention`]) whose keys and values live in Rust ([`arena`]), so that a group's prompt is stored and read once
//! however many branches it has. One session serves any number of threads: each has a [`Decoder`] with keys and values
//! of its own, and they share nothing that changes. What a branch generates depends on its prompt, its random numbers
//! and the weights, not on threads, on other groups or on the order in which they came.
//!
//! With [`Precision::BFloat16`] matrix products too are an operator of our own ([`linear`]): ONNX Runtime has none for bf16
//! on a processor. What they multiply is rounded, and keys and values are when they are stored, which halves what the
//! attention reads from memory; queries, scores, softmax and all sums stay f32.
//!
//! Left out: the portable graph with `GroupQueryAttention`. The kernels have a portable version that runs wherever
//! ONNX Runtime does, so a second way to generate would only be a second way to be wrong; tests use it as the oracle.

mod adapters;
mod arena;
mod attention;
mod branch;
mod custom;
mod decoder;
mod group;
mod isa;
mod kernels;
mod lanes;
mod linear;
mod low_rank;
mod model;
mod operator;
pub mod paged;
mod plan;
mod portable;
mod request;
mod rope;
mod sampler;
mod session;
mod softmax;
#[cfg(test)]
mod tests;
mod timings;
mod values;
mod workspace;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
use isa::Isa;
use model::Model;
use policy::directory::Policy;
use record::failure::Result;
use std::sync::Arc;

pub use decoder::Decoder;
pub use gemm::Precision;
pub use request::{Completion, Request, SamplingParams};
pub use timings::PhaseTimings;

/// How an engine is loaded.
#[derive(Debug, Clone)]
pub struct Options {
    /// Decoders that will run at the same time; they share `cache_bytes`.
    pub threads: usize,
    /// Branches that one decoder generates at the same time, at most; further groups wait.
    pub max_rows: usize,
    /// Keys and values of all decoders together, in bytes, at most. Taken as needed, not at once.
    pub cache_bytes: usize,
    /// Tokens that end a completion.
    pub stop_ids: Vec<u32>,
    /// What the operands of matrix products are rounded to.
    pub precision: Precision,
}

impl Default for Options {
    fn default() -> Self {
        let precision = Precision::Float32;
        Options { threads: 1, max_rows: 512, cache_bytes: 2 << 30, stop_ids: Vec::new(), precision }
    }
}

/// One policy loaded: one ONNX Runtime session that serves any number of threads.
#[derive(Clone)]
pub struct Engine {
    model: Arc<Model>,
}

impl Engine {
    /// Loads a version of a policy. Its files are read where they lie and may be replaced by rename meanwhile.
    ///
    /// # Errors
    /// Exit 69 without ONNX Runtime; files that are missing, damaged or of a kind that is not implemented.
    pub fn load(policy: &Policy, options: &Options) -> Result<Engine> {
        Self::load_all(&[policy], options)
    }

    /// Loads policies that are adapters of one base, which is in memory once. Adapters are counted in their order; the base
    /// may be among them and is no adapter.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load_all(policies: &[&Policy], options: &Options) -> Result<Engine> {
        Ok(Engine { model: Arc::new(Model::load(policies, options, None)?) })
    }

    /// The same with kernels of a certain instruction set, which this processor must have.
    #[cfg(test)]
    fn load_for(policy: &Policy, options: &Options, isa: Option<Isa>) -> Result<Engine> {
        Ok(Engine { model: Arc::new(Model::load(&[policy], options, isa)?) })
    }

    /// A decoder for one thread.
    ///
    /// # Errors
    /// None today; memory is taken when groups come.
    pub fn decoder(&self) -> Result<Decoder> {
        Ok(Decoder::new(self.model.clone()))
    }

    /// The instruction set that the kernels run with, for reports.
    pub fn instruction_set(&self) -> &'static str {
        self.model.kernels.name
    }
}
