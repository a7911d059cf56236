//! The operations of decoders beyond Llama's, on CPU cores.

use super::{Cpu, Values, add_vector, elementwise, experts, zeros};
use crate::backend::{Experts, Variants};

impl Variants for Cpu {
    type Buffer = Values;

    fn add_bias(&mut self, rows: usize, width: usize, weights: &Values, offset: usize, x: &mut Values) {
        functional::add_bias(&weights[offset..offset + width], &mut x[..rows * width]);
    }

    fn bias_backward(
        &mut self,
        rows: usize,
        width: usize,
        d_out: &Values,
        gradients: &mut Values,
        offset: usize,
    ) {
        let d_bias = zeros(&mut self.vector, width);
        elementwise::add_column_sums(&d_out[..rows * width], d_bias);
        add_vector(d_bias, Some(gradients), offset..offset + width);
    }

    fn add(&mut self, length: usize, left: &Values, right: &Values, sum: &mut Values) {
        for ((sum, left), right) in sum[..length].iter_mut().zip(left).zip(right) {
            *sum = left + right;
        }
    }

    fn experts(&mut self, op: &Experts<Values>, x: &Values, residual: &Values, out: &mut Values) {
        experts::forward(&mut self.gemm, op, x, residual, out);
    }

    fn experts_backward(
        &mut self,
        op: &Experts<Values>,
        x: &Values,
        d_out: &Values,
        d_x: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        experts::backward(&mut self.gemm, op, x, d_out, d_x, gradients.map(|values| &mut values[..]));
    }
}
