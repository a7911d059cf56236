//! The model runner for the CPU.
//!
//! ONNX Runtime runs the decoder's graph, whose arithmetic is custom operators ([`operators`]): matrix
//! products ([`linear`]), because ONNX Runtime has no bf16 product on a CPU and would repack the weights for
//! each version; the attention ([`attention`]) over keys and values in Rust's memory ([`kv`]), which reads a
//! group's prompt once for all branches; and the functions in between (`functional`), which training shares.
//! A token's log-probability has the same bits in `update`: both keep the order of every sum, whatever is
//! computed together.
//!
//! One session serves any number of threads and versions ([`network`]). Each thread has a scheduler and a
//! [`runner`], and threads share no mutable state. A branch depends on its prompt, its random numbers and the
//! weights, not on threads, other groups or cached blocks.
//!
//! With [`Precision::BFloat16`] the operands of products are rounded, and so are keys and values when they
//! are stored, which halves the memory that attention reads; queries, scores, softmax and all sums stay f32.
//!
//! Left out: the portable graph with `GroupQueryAttention`. The kernels have a portable version that runs
//! wherever ONNX Runtime does; tests use that graph as the oracle.

mod adapters;
mod attention;
mod context;
mod experts;
mod isa;
mod kernels;
mod kv;
mod lanes;
mod linear;
mod model;
mod network;
mod operators;
mod parameters;
mod portable;
mod rope;
mod runner;
pub(super) mod sampler;
mod workspace;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::scheduler::Scheduler;
use device::ComputeDtype;
use gemm::{Isa, Precision};
use policy::directory::Policy;
use record::failure::Result;
use std::sync::Arc;

pub use model::CarriedOver;
pub(super) use model::Model;
pub use runner::CpuRunner;

/// One thread's scheduler and its runner.
pub type Decoder = Scheduler<CpuRunner>;

/// How an engine is loaded.
#[derive(Debug, Clone)]
pub struct Options {
    /// Decoders that will run at the same time; they share `cache_bytes`.
    pub threads: usize,
    /// The most branches that one decoder generates at a time; further groups wait.
    pub max_rows: usize,
    /// The most bytes of keys and values of all decoders together. Taken as needed, not at once.
    pub cache_bytes: usize,
    /// Tokens that end a completion.
    pub stop_ids: Vec<u32>,
    /// The type to which the operands of matrix products are rounded.
    pub precision: Precision,
    /// The type of activations on devices.
    pub dtype: ComputeDtype,
    /// The instruction set of all kernels, matrix products included, one that this processor has; the best if `None`.
    pub isa: Option<Isa>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            threads: 1,
            max_rows: 512,
            cache_bytes: 2 << 30,
            stop_ids: Vec::new(),
            precision: Precision::Float32,
            dtype: ComputeDtype::BFloat16,
            isa: None,
        }
    }
}

/// A model loaded for the CPU: one ONNX Runtime session that serves any number of threads.
#[derive(Clone)]
pub struct Engine {
    pub(super) model: Arc<Model>,
}

impl Engine {
    /// Loads a version of a policy. Its files are read where they lie and may be replaced by rename meanwhile.
    ///
    /// # Errors
    /// Exit 69 without ONNX Runtime; files that are missing, damaged or of a kind that is not implemented.
    pub fn load(policy: &Policy, options: &Options) -> Result<Engine> {
        Self::load_all(&[policy], options, None)
    }

    /// Loads policies that are adapters of one base, which is in memory once. Adapters are indexed in their order; the base
    /// may be among the policies and is no adapter. What the engine of the version before left in `kept` is used again,
    /// where the options are the same.
    pub fn load_all(policies: &[&Policy], options: &Options, kept: Option<CarriedOver>) -> Result<Engine> {
        Ok(Engine { model: Arc::new(Model::load(policies, options, kept)?) })
    }

    /// The parts that an engine for the next version of the policies may use.
    pub fn kept(&self) -> CarriedOver {
        self.model.kept()
    }

    /// A decoder for one thread, with a new KV cache.
    pub fn decoder(&self) -> Decoder {
        Scheduler::new(CpuRunner::new(self.model.clone()), self.model.scheduler.clone())
    }

    /// The instruction set of the kernels, for reports.
    pub fn instruction_set(&self) -> &'static str {
        self.model.kernels.name
    }
}
