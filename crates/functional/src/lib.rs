//! The row-wise functions of a decoder on a CPU: RMS norm, rotary positions, gated activations, the softmax
//! of attention and the log-softmax of logits.
//!
//! `rollout` and `update` share these functions, and the matrix products of `gemm`. A row's result depends
//! only on that row, not on the batch, the threads, where its keys are stored or the instruction set. So
//! `update` recomputes exactly, to the last bit, the log-probabilities with which tokens were sampled. Left
//! out: matrix products, and gradients, which only `update` needs.

mod rows;
mod softmax;
mod vector;

pub use gemm::Isa;
pub use rows::{add_bias, geglu, gelu_argument, rms_norm, rotate, rotate_head, swiglu};
pub use softmax::{CHUNK, LogSumExp, LogitChunk, TILE, exp_scaled, softmax};
pub use vector::{dot, exp};
