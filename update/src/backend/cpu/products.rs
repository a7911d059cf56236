//! Matrix products of the processor backend, and which of them round their operands.
//!
//! The products of linear layers and of the head, forward and back, are nearly all of the work; they take the
//! precision of the backend. Attention's stay in f32, as the sampler's do: rounded there, the two would agree less. The
//! keys and values that it reads are rounded (see [`super::Cpu`]), because the sampler stores them so.

use gemm::{Onto, Precision, Scratch, View};

/// Packing buffers and a precision.
#[derive(Clone, Debug, Default)]
pub(super) struct Products {
    pub precision: Precision,
    scratch: Scratch,
}

impl Products {
    /// `c = onto + a · b` of a linear layer: `extent` is rows, columns and inner dimension, `stride` that of `c`.
    pub(super) fn linear(
        &mut self,
        extent: [usize; 3],
        a: View,
        b: View,
        onto: Onto,
        c: &mut [f32],
        stride: usize,
    ) {
        gemm::multiply(self.precision, &mut self.scratch, extent, a, b, onto, c, stride);
    }

    /// The same in f32 whatever the precision.
    pub(super) fn exact(
        &mut self,
        extent: [usize; 3],
        a: View,
        b: View,
        onto: Onto,
        c: &mut [f32],
        stride: usize,
    ) {
        gemm::multiply(Precision::Float32, &mut self.scratch, extent, a, b, onto, c, stride);
    }
}
