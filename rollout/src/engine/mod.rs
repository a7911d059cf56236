//! Inference: completions for groups of branches that share a prompt.
//!
//! There is one [`scheduler`]. It keeps [`group`]s of requests, gives their [`sequence`]s blocks of the KV
//! cache ([`block_pool`], which also caches prompts across turns and episodes), and lays out one [`batch`]
//! after another. A model runner computes the batches in a separate thread ([`service`]): on the [`cpu`]
//! there is one for each thread that plays episodes, on a [`device`] one for each model. Both run the
//! decoder's graph in ONNX Runtime ([`onnx`], [`custom_op`]).
//!
//! Left out: preemption. A group is admitted only when all blocks that it may come to need are available.

pub mod batch;
pub mod block_pool;
pub mod cpu;
mod custom_op;
pub mod device;
pub mod group;
mod onnx;
pub mod request;
pub mod scheduler;
pub mod sequence;
pub mod service;
pub mod stop;
#[cfg(test)]
mod tests;
pub mod timings;

pub use cpu::{CarriedOver, Decoder, Engine, Options};
pub use gemm::Precision;
pub use request::{Completion, Request, SamplingParams};
pub use timings::PhaseTimings;
