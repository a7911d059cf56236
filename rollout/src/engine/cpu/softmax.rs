//! The softmax over a row of logits: its largest value, its sums, its exponentials.
//!
//! Logits are summed in tiles of [`TILE`], so that sampling a token needs to look into one tile only.

#![allow(unsafe_op_in_unsafe_fn, reason = "the callers have the instruction set, which is all that is asked")]

use super::lanes::Lanes;

/// Logits whose exponentials are summed together.
pub const TILE: usize = 64;

/// Sixteen logits from `at`; beyond the end they weigh nothing.
#[inline(always)]
unsafe fn sixteen<S: Lanes>(logits: &[f32], at: usize) -> S {
    if at + 16 <= logits.len() {
        return S::load(logits.as_ptr().add(at));
    }
    let mut padded = [f32::NEG_INFINITY; 16];
    padded[..logits.len() - at].copy_from_slice(&logits[at..]);
    S::load(padded.as_ptr())
}

/// The largest logit. A NaN may be skipped; it shows in the sums.
///
/// # Safety
///
/// `S` must be available; so for every function here.
#[inline(always)]
pub unsafe fn largest<S: Lanes>(logits: &[f32]) -> f32 {
    let mut most = S::splat(f32::NEG_INFINITY);
    for at in (0..logits.len()).step_by(16) {
        most = most.max(sixteen::<S>(logits, at));
    }
    most.largest()
}

/// For each tile of [`TILE`] logits the sum of exp((logit - shift) * scale).
#[inline(always)]
pub unsafe fn tile_sums<S: Lanes>(logits: &[f32], shift: f32, scale: f32, sums: &mut Vec<f32>) {
    sums.clear();
    let (shift, scale) = (S::splat(shift), S::splat(scale));
    for begin in (0..logits.len()).step_by(TILE) {
        let mut sum = S::splat(0.0);
        for at in (begin..logits.len().min(begin + TILE)).step_by(16) {
            sum = sum.add(sixteen::<S>(logits, at).sub(shift).mul(scale).exp());
        }
        sums.push(sum.sum());
    }
}

/// exp((logit - shift) * scale) of each logit, the same bits that [`tile_sums`] adds.
#[inline(always)]
pub unsafe fn weights<S: Lanes>(logits: &[f32], shift: f32, scale: f32, weights: &mut Vec<f32>) {
    weights.clear();
    let (shift, scale) = (S::splat(shift), S::splat(scale));
    for at in (0..logits.len()).step_by(16) {
        let part = sixteen::<S>(logits, at).sub(shift).mul(scale).exp().array();
        weights.extend_from_slice(&part[..(logits.len() - at).min(16)]);
    }
}
