//! Row-wise operations that `functional` has not: gradients of norms (arXiv 1910.07467) and activations (arXiv 2002.05202),
//! and the head norm and RoPE (arXiv 2104.09864) of all heads of a projection.

use crate::backend::QkNormRope;
use crate::backend::rope::RopeCache;
use functional::{dot, exp, gelu_argument, rotate_head, vectorized};

vectorized! {
    /// Rounds to bf16.
    pub(super) fn round(values: &mut [f32]) {
        for value in values {
            *value = gemm::round(*value);
        }
    }
}

vectorized! {
    /// Adds the gradients of [`functional::rms_norm`] to `d_x` and `d_weight`.
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

vectorized! {
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
                let d_silu = sigmoid.mul_add(gate[i] - silu, sigmoid);
                gate[i] = d_out[i] * up[i] * d_silu;
                up[i] = d_out[i] * silu;
            }
        }
    }
}

vectorized! {
    /// Replaces rows `[gate, up]` by their gradients and writes the output again.
    pub(super) fn geglu_backward(width: usize, gate_up: &mut [f32], d_out: &[f32], out: &mut [f32]) {
        let rows = gate_up.chunks_exact_mut(2 * width).zip(d_out.chunks_exact(width));
        for ((row, d_out), out) in rows.zip(out.chunks_exact_mut(width)) {
            let (gate, up) = row.split_at_mut(width);
            let (gate, up, d_out, out) = (&mut gate[..width], &mut up[..width], &d_out[..width], &mut out[..width]);
            for i in 0..width {
                let square = gate[i] * gate[i];
                let sigmoid = 1.0 / (1.0 + exp(-gate[i] * gelu_argument(square, 1.0)));
                let gelu = gate[i] * sigmoid;
                out[i] = gelu * up[i];
                // gelu' = sigmoid * (1 + gate * argument' * (1 - sigmoid))
                let slope = gelu_argument(square, 3.0);
                let d_gelu = sigmoid.mul_add((gate[i] - gelu) * slope, sigmoid);
                gate[i] = d_out[i] * up[i] * d_gelu;
                up[i] = d_out[i] * gelu;
            }
        }
    }
}

vectorized! {
    /// `sums[j] += sum_i rows[i][j]`.
    pub(super) fn add_column_sums(rows: &[f32], sums: &mut [f32]) {
        for row in rows.chunks_exact(sums.len()) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

vectorized! {
    /// `target += values`.
    pub(super) fn add(values: &[f32], target: &mut [f32]) {
        for (target, &value) in target.iter_mut().zip(values) {
            *target += value;
        }
    }
}

vectorized! {
    /// `target += values`, then `values = 0`.
    pub(crate) fn add_and_clear(values: &mut [f32], target: &mut [f32]) {
        for (target, value) in target.iter_mut().zip(values) {
            *target += *value;
            *value = 0.0;
        }
    }
}

/// Cosines and sines of each row's position.
#[derive(Clone, Copy)]
pub(super) struct RowAngles<'a> {
    /// `None` without RoPE.
    pub cache: Option<&'a RopeCache>,
    /// Positions of all nodes.
    pub positions: &'a [u32],
    /// Nodes of the rows; `None` if each node has one.
    pub nodes: Option<&'a [u32]>,
}

impl RowAngles<'_> {
    /// One of each for every pair of elements that is rotated; elements beyond the pairs are not.
    #[inline(always)]
    fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let Some(cache) = self.cache else { return (&[], &[]) };
        let node = self.nodes.map_or(row, |nodes| nodes[row] as usize);
        cache.row(self.positions[node])
    }
}

vectorized! {
    /// Normalizes (unless `norm` is empty) and rotates the first heads of each row of `projection`. Dimension `i` of a
    /// head pairs with `i + half` of its `2 * half` rotated ones, as in Hugging Face's models.
    pub(super) fn qk_norm_rope(
        angles: RowAngles,
        op: &QkNormRope<Vec<f32>>,
        norm: &[f32],
        projection: &[f32],
        out: &mut [f32],
    ) {
        let width = op.width;
        let rows = projection.chunks_exact(op.stride).zip(out.chunks_exact_mut(op.heads_width()));
        for (row, (projection, out)) in rows.enumerate() {
            let (cos, sin) = angles.row(row);
            for (head, out) in projection.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                rotate_head(head, norm, op.epsilon, cos, sin, out);
            }
        }
    }
}

vectorized! {
    /// The gradient of [`qk_norm_rope`]: writes the gradient of the heads of `projection` and adds the
    /// norm's.
    pub(super) fn qk_norm_rope_backward(
        angles: RowAngles,
        op: &QkNormRope<Vec<f32>>,
        norm: &[f32],
        projection: &[f32],
        d_out: &[f32],
        d_projection: &mut [f32],
        d_norm: &mut [f32],
    ) {
        let width = op.width;
        let heads = op.heads_width();
        let rows = projection.chunks_exact(op.stride).zip(d_out.chunks_exact(heads));
        for (row, ((projection, d_out), d_projection)) in
            rows.zip(d_projection.chunks_exact_mut(op.stride)).enumerate()
        {
            let (cos, sin) = angles.row(row);
            let half = cos.len();
            let sin = &sin[..half];
            let outs = projection.chunks_exact(width).zip(d_out.chunks_exact(width));
            for ((head, d_out), d_head) in outs.zip(d_projection.chunks_exact_mut(width)) {
                let (d_first, d_rest) = d_out.split_at(half);
                let (d_second, d_rest) = d_rest.split_at(half);
                {
                    let (d_head_first, d_head_rest) = d_head.split_at_mut(half);
                    let (d_head_second, d_head_rest) = d_head_rest.split_at_mut(half);
                    for i in 0..half {
                        d_head_first[i] = d_first[i] * cos[i] + d_second[i] * sin[i];
                        d_head_second[i] = d_second[i] * cos[i] - d_first[i] * sin[i];
                    }
                    d_head_rest.copy_from_slice(d_rest);
                }
                if !norm.is_empty() {
                    let (norm, d_norm) = (&norm[..width], &mut d_norm[..width]);
                    let (head, d_head) = (&head[..width], &mut d_head[..width]);
                    let scale = 1.0 / (dot(head, head) / width as f32 + op.epsilon).sqrt();
                    for i in 0..width {
                        d_norm[i] = (d_head[i] * head[i]).mul_add(scale, d_norm[i]);
                        d_head[i] *= norm[i];
                    }
                    let back = dot(d_head, head) * scale * scale / width as f32;
                    for i in 0..width {
                        d_head[i] = scale * (d_head[i] - head[i] * back);
                    }
                }
            }
        }
    }
}

/// Adds the rows of `d_out` to the rows of `table` that `ids` name, in order.
pub(super) fn add_rows(ids: &[u32], width: usize, d_out: &[f32], table: &mut [f32]) {
    for (&id, d_out) in ids.iter().zip(d_out.chunks_exact(width)) {
        add(d_out, &mut table[id as usize * width..][..width]);
    }
}
