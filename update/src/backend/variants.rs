//! The operations of decoders beyond Llama's: biases after projections, norms after a branch, experts.

use super::{Backend, Experts};

/// The operations that [`Backend`] does not have. A decoder that needs them is refused before it is loaded onto hardware
/// without them.
pub trait Variants {
    /// See [`Backend`].
    type Buffer;

    /// Adds the bias at `offset` to rows of `width` values.
    fn add_bias(
        &mut self,
        rows: usize,
        width: usize,
        weights: &Self::Buffer,
        offset: usize,
        x: &mut Self::Buffer,
    );

    /// `gradients[offset..] += ` the column sums of `d_out`.
    fn bias_backward(
        &mut self,
        rows: usize,
        width: usize,
        d_out: &Self::Buffer,
        gradients: &mut Self::Buffer,
        offset: usize,
    );

    /// `sum = left + right` of `length` values.
    fn add(&mut self, length: usize, left: &Self::Buffer, right: &Self::Buffer, sum: &mut Self::Buffer);

    /// `out = residual + experts(x)`.
    fn experts(
        &mut self,
        op: &Experts<Self::Buffer>,
        x: &Self::Buffer,
        residual: &Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// Gradient of [`Variants::experts`], of which everything is computed again.
    fn experts_backward(
        &mut self,
        op: &Experts<Self::Buffer>,
        x: &Self::Buffer,
        d_out: &Self::Buffer,
        d_x: &mut Self::Buffer,
        gradients: Option<&mut Self::Buffer>,
    );
}

/// [`Backend::variants`], for a decoder that needs them.
///
/// # Panics
/// If the hardware has none. `unsupported` has refused the decoder before it was loaded.
pub(crate) fn variants<B: Backend>(backend: &mut B) -> &mut dyn Variants<Buffer = B::Buffer> {
    backend.variants().expect("a decoder that needs other operations is refused on this hardware")
}
