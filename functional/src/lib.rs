//! The row-wise functions of a decoder on a CPU: RMS norm, rotary positions, gated activations, the softmax of attention and
//! the log-softmax of logits.
//!
//! `rollout` and `update` compute with the same ones, and with the products of `gemm`. A row's result depends on that row
//! alone, not on the batch, the threads, where its keys are stored or the instruction set. So `update` finds the very
//! log-probabilities that tokens were sampled with, to the last bit. Left out: products, and gradients, which only `update`
//! needs.

mod rows;
mod softmax;
mod vector;

pub use gemm::Isa;
pub use rows::{add_bias, geglu, gelu_argument, rms_norm, rotate, rotate_head, swiglu};
pub use softmax::{CHUNK, LogSumExp, LogitChunk, TILE, exp_scaled, softmax};
pub use vector::{dot, exp};
