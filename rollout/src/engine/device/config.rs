//! What a device engine computes in, and how much it holds.

use crate::engine::onnx;
use policy::graph::Arithmetic;

/// The type of activations, keys and values.
pub trait Activation: device::Element + onnx::Element {
    /// The graph's name for it.
    const ARITHMETIC: Arithmetic;

    /// The nearest value.
    fn round(value: f32) -> Self;
}

impl Activation for f32 {
    const ARITHMETIC: Arithmetic = Arithmetic::F32;

    fn round(value: f32) -> f32 {
        value
    }
}

impl Activation for half::bf16 {
    const ARITHMETIC: Arithmetic = Arithmetic::BF16;

    fn round(value: f32) -> half::bf16 {
        half::bf16::from_f32(value)
    }
}

/// Sizes of a run's workspaces and of the KV cache.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// The most rows of a run.
    pub rows: usize,
    /// The most sequences of a run, and rows whose logits are needed.
    pub sequences: usize,
    /// Blocks of keys and values.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
}
