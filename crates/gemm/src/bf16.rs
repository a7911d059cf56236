//! bf16 operands without bf16 instructions: rounded while they are packed, multiplied as f32.
//!
//! Results equal `VDPBF16PS` to the last bit on every instruction set. The product of two bf16 values is
//! exact in f32, so only the order of the sums matters. Values are packed in the order in which the
//! instruction adds them, the second of a pair before the first. Left out: partial sums below 1e-38, which
//! the instruction treats as zero.

use crate::micro_kernel::{MicroKernel, PackBlock, Tile, Word};
use std::marker::PhantomData;

/// The micro-kernel `K` over operands rounded to bf16.
pub(crate) struct RoundedToBf16<K>(PhantomData<K>);

/// The bf16 value nearest to `value`, ties to even; NaN stays NaN.
#[inline(always)]
pub fn round(value: f32) -> f32 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    f32::from_bits(if value.is_nan() { bits | 0x0040_0000 } else { nearest })
}

/// Rounds `rows` rows of `width` words that hold one f32 each, and exchanges the two rows of each pair.
/// Subnormal numbers become zero, as in the instruction's conversion.
///
/// # Safety
/// `words` must be valid for `rows * width` words.
unsafe fn round_pairs(words: *mut Word, rows: usize, width: usize) {
    // SAFETY: promised by the caller.
    let words = unsafe { std::slice::from_raw_parts_mut(words, rows * width) };
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the instructions were found.
        return unsafe { round_wide(words, width) };
    }
    round_words(words, width);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn round_wide(words: &mut [Word], width: usize) {
    round_words(words, width);
}

#[inline(always)]
fn round_words(words: &mut [Word], width: usize) {
    let rounded = |word: Word| match f32::from_bits(word) {
        value if value.is_subnormal() => word & 0x8000_0000,
        value => round(value).to_bits(),
    };
    for pair in words.chunks_mut(2 * width) {
        let (first, second) = pair.split_at_mut(width.min(pair.len()));
        if second.is_empty() {
            for word in first {
                *word = rounded(*word);
            }
            continue;
        }
        for (first, second) in first.iter_mut().zip(second) {
            (*first, *second) = (rounded(*second), rounded(*first));
        }
    }
}

impl<K: MicroKernel> MicroKernel for RoundedToBf16<K> {
    const MR: usize = K::MR;
    const NR: usize = K::NR;
    const VALUES_PER_WORD: usize = K::VALUES_PER_WORD;
    const RIGHT: usize = K::RIGHT;
    const UNIT: usize = 2;

    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32) {
        // SAFETY: the caller keeps the contract of `K`.
        unsafe { K::tile(tile, words, a, b, onto, c) }
    }

    unsafe fn transpose(block: PackBlock) {
        // SAFETY: the caller keeps the contract of `K`, and the words were written by `K` or lie between
        // them.
        unsafe {
            K::transpose(block);
            round_pairs(block.target, block.columns, block.width);
        }
    }

    unsafe fn copy(block: PackBlock) {
        // SAFETY: as above.
        unsafe {
            K::copy(block);
            round_pairs(block.target, block.rows, block.width);
        }
    }
}
