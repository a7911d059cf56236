//! Row-wise operations: RMS norm (arXiv 1910.07467) and SwiGLU (arXiv 2002.05202).

use super::vector::{dot, exp, vectorised};

vectorised! {
    /// Rounds to bf16.
    pub(super) fn round(values: &mut [f32]) {
        for value in values {
            *value = gemm::round(*value);
        }
    }
}

vectorised! {
    /// `out = x / sqrt(mean(x^2) + epsilon) * weight` for each row.
    pub(super) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        let width = weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let scale = 1.0 / (dot(x, x) / width as f32 + epsilon).sqrt();
            for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
                *out = x * scale * weight;
            }
        }
    }
}

vectorised! {
    /// Adds the gradients of [`rms_norm`] to `d_x` and `d_weight`.
    pub(super) fn rms_norm_backward(
        x: &[f32],
        weight: &[f32],
        epsilon: f32,
        d_out: &[f32],
        d_x: &mut [f32],
        d_weight: &mut [f32],
    ) {
        let width = weight.len();
        let rows = x.chunks_exact(width).zip(d_out.chunks_exact(width)).zip(d_x.chunks_exact_mut(width));
        for ((x, d_out), d_x) in rows {
            let scale = 1.0 / (dot(x, x) / width as f32 + epsilon).sqrt();
            let mut lanes = [0.0f32; 32];
            let mut at = 0;
            while at + 32 <= width {
                for lane in 0..32 {
                    let along = d_out[at + lane] * x[at + lane];
                    d_weight[at + lane] = along.mul_add(scale, d_weight[at + lane]);
                    lanes[lane] = along.mul_add(weight[at + lane], lanes[lane]);
                }
                at += 32;
            }
            let mut along_weight = 0.0;
            for index in at..width {
                let along = d_out[index] * x[index];
                d_weight[index] = along.mul_add(scale, d_weight[index]);
                along_weight = along.mul_add(weight[index], along_weight);
            }
            along_weight += lanes.iter().sum::<f32>();
            // d_x = scale * (d_out * weight - x * scale^2 * mean(d_out * weight * x))
            let back = along_weight * scale * scale / width as f32;
            for (((d_x, &d_out), &x), &weight) in d_x.iter_mut().zip(d_out).zip(x).zip(weight) {
                *d_x = scale.mul_add(d_out.mul_add(weight, -x * back), *d_x);
            }
        }
    }
}

vectorised! {
    /// `out = gate * sigmoid(gate) * up` for rows `[gate, up]`.
    pub(super) fn swiglu(width: usize, gate_up: &[f32], out: &mut [f32]) {
        for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
            let (gate, up) = row.split_at(width);
            for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
                *out = gate / (1.0 + exp(-gate)) * up;
            }
        }
    }
}

vectorised! {
    /// Replaces rows `[gate, up]` by their gradients and writes the output again.
    pub(super) fn swiglu_backward(width: usize, gate_up: &mut [f32], d_out: &[f32], out: &mut [f32]) {
        let rows = gate_up.chunks_exact_mut(2 * width).zip(d_out.chunks_exact(width));
        for ((row, d_out), out) in rows.zip(out.chunks_exact_mut(width)) {
            let (gate, up) = row.split_at_mut(width);
            let (gate, up, d_out, out) = (&mut gate[..width], &mut up[..width], &d_out[..width], &mut out[..width]);
            for i in 0..width {
                let sigmoid = 1.0 / (1.0 + exp(-gate[i]));
                let silu = gate[i] * sigmoid;
                out[i] = silu * up[i];
                // silu' = sigmoid * (1 + gate * (1 - sigmoid))
                let slope = sigmoid.mul_add(gate[i] - silu, sigmoid);
                gate[i] = d_out[i] * up[i] * slope;
                up[i] = d_out[i] * silu;
            }
        }
    }
}

vectorised! {
    /// `sums[j] += sum_i rows[i][j]`.
    pub(super) fn add_column_sums(rows: &[f32], sums: &mut [f32]) {
        for row in rows.chunks_exact(sums.len()) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

vectorised! {
    /// `target += values`.
    pub(super) fn add(values: &[f32], target: &mut [f32]) {
        for (target, &value) in target.iter_mut().zip(values) {
            *target += value;
        }
    }
}

vectorised! {
    /// `target += values`, then `values = 0`.
    pub(crate) fn add_and_clear(values: &mut [f32], target: &mut [f32]) {
        for (target, value) in target.iter_mut().zip(values) {
            *target += *value;
            *value = 0.0;
        }
    }
}
