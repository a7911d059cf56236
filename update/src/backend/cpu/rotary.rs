//! From a projection to heads: bias, head norm, rotary positions (arXiv 2104.09864), forward and backward.
//!
//! Dimension `i` of a head pairs with `i + width / 2`, as in Hugging Face's models.

use super::vector::{dot, vectorised};
use crate::backend::Rotated;
use crate::backend::angles::Angles;

/// What the functions below share: the table, the positions of all nodes and which of them the rows are.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub angles: &'a Angles,
    pub positions: &'a [u32],
    /// Nodes of the rows; `None` if each node has one.
    pub nodes: Option<&'a [u32]>,
}

impl Places<'_> {
    #[inline(always)]
    fn position(&self, row: usize) -> u32 {
        self.positions[self.nodes.map_or(row, |nodes| nodes[row] as usize)]
    }
}

vectorised! {
    /// Adds `bias` to each row.
    pub(super) fn add_bias(bias: &[f32], rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(bias.len()) {
            for (value, &bias) in row.iter_mut().zip(bias) {
                *value += bias;
            }
        }
    }
}

vectorised! {
    /// Normalises (unless `norm` is empty) and rotates the first heads of each row of `projection`.
    pub(super) fn rotate(
        places: Places,
        rotated: Rotated,
        norm: &[f32],
        projection: &[f32],
        out: &mut [f32],
    ) {
        let (width, half) = (rotated.width, rotated.width / 2);
        let rows = projection.chunks_exact(rotated.stride).zip(out.chunks_exact_mut(rotated.heads * width));
        for (row, (projection, out)) in rows.enumerate() {
            let (cosines, sines) = places.angles.at(places.position(row));
            let (cosines, sines) = (&cosines[..half], &sines[..half]);
            for (head, out) in projection.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                let (first, second) = head.split_at(half);
                let (out_first, out_second) = out.split_at_mut(half);
                let (second, out_second) = (&second[..half], &mut out_second[..half]);
                if norm.is_empty() {
                    for i in 0..half {
                        out_first[i] = first[i] * cosines[i] - second[i] * sines[i];
                        out_second[i] = second[i] * cosines[i] + first[i] * sines[i];
                    }
                } else {
                    let scale = 1.0 / (dot(head, head) / width as f32 + rotated.epsilon).sqrt();
                    let (norm_first, norm_second) = (&norm[..half], &norm[half..][..half]);
                    for i in 0..half {
                        let (a, b) = (first[i] * scale * norm_first[i], second[i] * scale * norm_second[i]);
                        out_first[i] = a * cosines[i] - b * sines[i];
                        out_second[i] = b * cosines[i] + a * sines[i];
                    }
                }
            }
        }
    }
}

vectorised! {
    /// Writes the gradient of the heads of `projection` and adds that of the norm.
    pub(super) fn rotate_backward(
        places: Places,
        rotated: Rotated,
        norm: &[f32],
        projection: &[f32],
        d_out: &[f32],
        d_projection: &mut [f32],
        d_norm: &mut [f32],
    ) {
        let (width, half) = (rotated.width, rotated.width / 2);
        let heads = rotated.heads * width;
        let rows = projection.chunks_exact(rotated.stride).zip(d_out.chunks_exact(heads));
        for (row, ((projection, d_out), d_projection)) in
            rows.zip(d_projection.chunks_exact_mut(rotated.stride)).enumerate()
        {
            let (cosines, sines) = places.angles.at(places.position(row));
            let (cosines, sines) = (&cosines[..half], &sines[..half]);
            let outs = projection.chunks_exact(width).zip(d_out.chunks_exact(width));
            for ((head, d_out), d_head) in outs.zip(d_projection.chunks_exact_mut(width)) {
                let (d_first, d_second) = (&d_out[..half], &d_out[half..][..half]);
                {
                    let (d_head_first, d_head_second) = d_head.split_at_mut(half);
                    let d_head_second = &mut d_head_second[..half];
                    for i in 0..half {
                        d_head_first[i] = d_first[i] * cosines[i] + d_second[i] * sines[i];
                        d_head_second[i] = d_second[i] * cosines[i] - d_first[i] * sines[i];
                    }
                }
                if !norm.is_empty() {
                    let (norm, d_norm) = (&norm[..width], &mut d_norm[..width]);
                    let (head, d_head) = (&head[..width], &mut d_head[..width]);
                    let scale = 1.0 / (dot(head, head) / width as f32 + rotated.epsilon).sqrt();
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
