//! bf16 operands on CPUs without bf16 instructions: rounded while packed, multiplied as f32. Slower than f32 alone; the
//! results agree with those of the instructions up to the order of sums.

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

/// Rounds words that hold one f32 each.
///
/// # Safety
/// `words` is valid for `count`.
unsafe fn round_words(words: *mut Word, count: usize) {
    // SAFETY: promised by the caller.
    for word in unsafe { std::slice::from_raw_parts_mut(words, count) } {
        *word = round(f32::from_bits(*word)).to_bits();
    }
}

impl<K: MicroKernel> MicroKernel for RoundedToBf16<K> {
    const MR: usize = K::MR;
    const NR: usize = K::NR;
    const VALUES_PER_WORD: usize = K::VALUES_PER_WORD;

    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32) {
        // SAFETY: the caller's promise is that of `K`.
        unsafe { K::tile(tile, words, a, b, onto, c) }
    }

    unsafe fn transpose(block: PackBlock) {
        // SAFETY: the caller's promise is that of `K`, and the words are those that it wrote or lie between them.
        unsafe {
            K::transpose(block);
            round_words(block.target, block.columns * block.width);
        }
    }

    unsafe fn copy(block: PackBlock) {
        // SAFETY: as above.
        unsafe {
            K::copy(block);
            round_words(block.target, block.rows * block.width);
        }
    }
}
