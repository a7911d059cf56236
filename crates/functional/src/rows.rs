//! RMS norm (arXiv 1910.07467), rotary positions (arXiv 2104.09864) and gated activations (arXiv 2002.05202).

use crate::vector::{dot, exp};
use crate::vectorized;

vectorized! {
    /// `out = x / sqrt(mean(x^2) + epsilon) * weight` for each row of `weight.len()` values.
    pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        let width = weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let scale = 1.0 / (dot(x, x) / width as f32 + epsilon).sqrt();
            for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
                *out = x * scale * weight;
            }
        }
    }
}

vectorized! {
    /// Adds `bias` to each row. The length of `bias` is the width of a row.
    pub fn add_bias(bias: &[f32], rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(bias.len()) {
            for (value, &bias) in row.iter_mut().zip(bias) {
                *value += bias;
            }
        }
    }
}

vectorized! {
    /// [`rotate_head`], not inlined.
    pub fn rotate(head: &[f32], norm: &[f32], epsilon: f32, cos: &[f32], sin: &[f32], out: &mut [f32]) {
        rotate_head(head, norm, epsilon, cos, sin, out);
    }
}

/// Normalizes a head (unless `norm` is empty) and rotates it. Dimension `i` pairs with `i + cos.len()`, as in
/// Hugging Face's models; dimensions beyond the pairs are not rotated.
#[inline(always)]
pub fn rotate_head(head: &[f32], norm: &[f32], epsilon: f32, cos: &[f32], sin: &[f32], out: &mut [f32]) {
    let half = cos.len();
    let sin = &sin[..half];
    let (first, rest) = head.split_at(half);
    let (second, rest) = rest.split_at(half);
    let (out_first, out_rest) = out.split_at_mut(half);
    let (out_second, out_rest) = out_rest.split_at_mut(half);
    if norm.is_empty() {
        for i in 0..half {
            out_first[i] = first[i] * cos[i] - second[i] * sin[i];
            out_second[i] = second[i] * cos[i] + first[i] * sin[i];
        }
        out_rest.copy_from_slice(rest);
        return;
    }
    let scale = 1.0 / (dot(head, head) / head.len() as f32 + epsilon).sqrt();
    let (norm_first, norm_rest) = norm.split_at(half);
    let (norm_second, norm_rest) = norm_rest.split_at(half);
    for i in 0..half {
        let (a, b) = (first[i] * scale * norm_first[i], second[i] * scale * norm_second[i]);
        out_first[i] = a * cos[i] - b * sin[i];
        out_second[i] = b * cos[i] + a * sin[i];
    }
    for ((out, value), norm) in out_rest.iter_mut().zip(rest).zip(norm_rest) {
        *out = value * scale * norm;
    }
}

vectorized! {
    /// `out = gate * sigmoid(gate) * up` for rows `[gate, up]` of twice `width` values.
    pub fn swiglu(width: usize, gate_up: &[f32], out: &mut [f32]) {
        for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
            let (gate, up) = row.split_at(width);
            for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
                *out = gate / (1.0 + exp(-gate)) * up;
            }
        }
    }
}

/// GELU by its tanh formula (arXiv 1606.08415) is `x * sigmoid(x * gelu_argument(x^2, 1))`; the derivative of the sigmoid's
/// argument is `gelu_argument(x^2, 3)`.
#[inline(always)]
pub fn gelu_argument(square: f32, cubic: f32) -> f32 {
    square.mul_add(cubic * 0.071_354_814, 1.595_769_2)
}

vectorized! {
    /// `out = gelu(gate) * up` for rows `[gate, up]` of twice `width` values.
    pub fn geglu(width: usize, gate_up: &[f32], out: &mut [f32]) {
        for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
            let (gate, up) = row.split_at(width);
            for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
                *out = gate / (1.0 + exp(-gate * gelu_argument(gate * gate, 1.0))) * up;
            }
        }
    }
}
