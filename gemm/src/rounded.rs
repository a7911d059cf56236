//! bf16 operands on processors without instructions for them: rounded while they are packed, multiplied as f32.
//!
//! Slower than f32 alone. The values agree with those of the instructions up to the order of sums.

use crate::kernel::{Kernel, Tile, Word};
use std::marker::PhantomData;

/// The kernel `K` over operands rounded to bf16.
pub(crate) struct Rounded<K>(PhantomData<K>);

/// The bf16 value nearest to `value`, ties to even; what is not a number stays so.
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

impl<K: Kernel> Kernel for Rounded<K> {
    const ROW_TILE: usize = K::ROW_TILE;
    const COLUMN_TILE: usize = K::COLUMN_TILE;
    const IN_WORD: usize = K::IN_WORD;

    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32) {
        // SAFETY: the caller's promise is that of `K`.
        unsafe { K::tile(tile, words, a, b, onto, c) }
    }

    unsafe fn transpose(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut Word,
        width: usize,
    ) {
        // SAFETY: the caller's promise is that of `K`, and the words are those that it wrote or lie between them.
        unsafe {
            K::transpose(rows, columns, source, stride, target, width);
            round_words(target, columns * width);
        }
    }

    unsafe fn copy(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut Word,
        width: usize,
    ) {
        // SAFETY: as above.
        unsafe {
            K::copy(rows, columns, source, stride, target, width);
            round_words(target, rows * width);
        }
    }
}
