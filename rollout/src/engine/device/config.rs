//! The types in which a device engine computes, and its capacity.

use crate::engine::onnx;
use crate::kernels;
use device::Kernel;
use policy::graph::Arithmetic;
use policy::weights::{ElementType, TensorView};
use record::failure::{Failure, Result};

/// Fails for a value of the tensor `name` that has no number in the type of activations.
pub fn check_range<T: Activation>(name: &str, values: &[f32]) -> Result<()> {
    T::overflow(values).map_or(Ok(()), |value| {
        Err(Failure::work(format!("{name} has {value:.2e}, beyond float16, of which 65504 is the largest"))
            .hint("use --dtype bfloat16, for update too"))
    })
}

/// The type of activations, keys and values.
pub trait Activation: device::Element + onnx::Element {
    /// The graph's name for it.
    const ARITHMETIC: Arithmetic;

    /// The nearest value.
    fn round(value: f32) -> Self;

    /// The first of the values that this type has no number for.
    fn overflow(_values: &[f32]) -> Option<f32> {
        None
    }

    /// The elements of a tensor where it is stored in this type, and aligned to it.
    fn stored<'a>(tensor: &TensorView<'a>) -> Option<&'a [Self]>;

    /// The kernel of norms whose results have this type.
    fn norm_kernel() -> &'static Kernel;

    /// The kernel of query, key and value heads in this type.
    fn heads_kernel() -> &'static Kernel;

    /// The kernel that also stores keys and values in the KV cache.
    fn append_kernel() -> &'static Kernel;

    /// The kernels of attention in decoding for heads of at most 64 and 128 values, and the one that merges their results.
    fn decode_kernels() -> [&'static Kernel; 3];

    /// The kernels of attention in any run for heads of at most 64 and 128 values.
    fn prefill_kernels() -> [&'static Kernel; 2];

    /// The kernel for heads of 128 values on Hopper, if there is one.
    fn hopper_prefill_kernel() -> Option<&'static Kernel> {
        None
    }

    /// The kernel of SwiGLU in this type.
    fn glu_kernel() -> &'static Kernel;

    /// The kernels of products of few rows: with results of this type, and with f32 ones. In f32, where tests compare a group's
    /// bits in any company, one product serves all.
    fn few_rows_kernels() -> Option<[&'static Kernel; 2]>;
}

impl Activation for f32 {
    const ARITHMETIC: Arithmetic = Arithmetic::F32;

    fn round(value: f32) -> f32 {
        value
    }

    fn stored<'a>(tensor: &TensorView<'a>) -> Option<&'a [f32]> {
        (tensor.dtype == ElementType::F32).then(|| bytemuck::try_cast_slice(tensor.bytes).ok()).flatten()
    }

    fn norm_kernel() -> &'static Kernel {
        &kernels::NORM_ROWS_F32
    }

    fn heads_kernel() -> &'static Kernel {
        &kernels::SPLIT_HEADS_F32
    }

    fn append_kernel() -> &'static Kernel {
        &kernels::APPEND_HEADS_F32
    }

    fn decode_kernels() -> [&'static Kernel; 3] {
        [&kernels::DECODE_ATTENTION_64_F32, &kernels::DECODE_ATTENTION_128_F32, &kernels::MERGE_PARTIALS_F32]
    }

    fn prefill_kernels() -> [&'static Kernel; 2] {
        [&kernels::PREFILL_ATTENTION_64_F32, &kernels::PREFILL_ATTENTION_128_F32]
    }

    fn glu_kernel() -> &'static Kernel {
        &kernels::GLU_ROWS_F32
    }

    fn few_rows_kernels() -> Option<[&'static Kernel; 2]> {
        None
    }
}

impl Activation for half::bf16 {
    const ARITHMETIC: Arithmetic = Arithmetic::BF16;

    fn round(value: f32) -> half::bf16 {
        half::bf16::from_f32(value)
    }

    fn stored<'a>(tensor: &TensorView<'a>) -> Option<&'a [half::bf16]> {
        (tensor.dtype == ElementType::BF16).then(|| bytemuck::try_cast_slice(tensor.bytes).ok()).flatten()
    }

    fn norm_kernel() -> &'static Kernel {
        &kernels::NORM_ROWS_BF16
    }

    fn heads_kernel() -> &'static Kernel {
        &kernels::SPLIT_HEADS_BF16
    }

    fn append_kernel() -> &'static Kernel {
        &kernels::APPEND_HEADS_BF16
    }

    fn decode_kernels() -> [&'static Kernel; 3] {
        [&kernels::DECODE_ATTENTION_64, &kernels::DECODE_ATTENTION_128, &kernels::MERGE_PARTIALS]
    }

    fn prefill_kernels() -> [&'static Kernel; 2] {
        [&kernels::PREFILL_ATTENTION_64, &kernels::PREFILL_ATTENTION_128]
    }

    fn hopper_prefill_kernel() -> Option<&'static Kernel> {
        Some(&kernels::PREFILL_ATTENTION_128_SM90A)
    }

    fn glu_kernel() -> &'static Kernel {
        &kernels::GLU_ROWS_BF16
    }

    fn few_rows_kernels() -> Option<[&'static Kernel; 2]> {
        Some([&kernels::FEW_ROWS_BF16, &kernels::FEW_ROWS_STREAM])
    }
}

impl Activation for half::f16 {
    const ARITHMETIC: Arithmetic = Arithmetic::F16;

    fn round(value: f32) -> half::f16 {
        half::f16::from_f32(value)
    }

    fn overflow(values: &[f32]) -> Option<f32> {
        // From here on f32 rounds to infinity.
        values.iter().copied().find(|value| value.abs() >= 65_520.0)
    }

    fn stored<'a>(tensor: &TensorView<'a>) -> Option<&'a [half::f16]> {
        (tensor.dtype == ElementType::F16).then(|| bytemuck::try_cast_slice(tensor.bytes).ok()).flatten()
    }

    fn norm_kernel() -> &'static Kernel {
        &kernels::NORM_ROWS_F16
    }

    fn heads_kernel() -> &'static Kernel {
        &kernels::SPLIT_HEADS_F16
    }

    fn append_kernel() -> &'static Kernel {
        &kernels::APPEND_HEADS_F16
    }

    fn decode_kernels() -> [&'static Kernel; 3] {
        [&kernels::DECODE_ATTENTION_64_F16, &kernels::DECODE_ATTENTION_128_F16, &kernels::MERGE_PARTIALS_F16]
    }

    fn prefill_kernels() -> [&'static Kernel; 2] {
        [&kernels::PREFILL_ATTENTION_64_F16, &kernels::PREFILL_ATTENTION_128_F16]
    }

    fn hopper_prefill_kernel() -> Option<&'static Kernel> {
        Some(&kernels::PREFILL_ATTENTION_128_SM90A_F16)
    }

    fn glu_kernel() -> &'static Kernel {
        &kernels::GLU_ROWS_F16
    }

    fn few_rows_kernels() -> Option<[&'static Kernel; 2]> {
        Some([&kernels::FEW_ROWS_F16, &kernels::FEW_ROWS_STREAM_F16])
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
