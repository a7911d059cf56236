//! The AVX-512 kernels: tiles of 14 by 32, with sums in 28 of the 32 vector registers. They multiply f32 by
//! f32; f32 by bf16, which halves the memory; and pairs of bf16.

use crate::micro_kernel::{MicroKernel, PackBlock, Tile, Word};
use std::arch::x86_64::*;
use std::mem::transmute;

type Run = unsafe fn(Tile, usize, *const Word, *const Word, *const f32, *mut f32);

/// Kernels by number of rows, for tiles of up to 16 and up to 32 columns; then the same for
/// an unpacked left operand.
macro_rules! by_rows {
    ($tile:ident: $($rows:literal)*) => {
        [
            [$($tile::<$rows, 1, false>),*], [$($tile::<$rows, 2, false>),*],
            [$($tile::<$rows, 1, true>),*], [$($tile::<$rows, 2, true>),*],
        ]
    };
}

/// A kernel: its type, its tile function, and the functions that pack.
macro_rules! kernel {
    ($(#[$meta:meta])* $name:ident, $in_word:literal, $tile:ident, $transpose:ident, $copy:ident $(, $right:item)*) => {
        $(#[$meta])*
        pub(crate) struct $name;

        impl MicroKernel for $name {
            const MR: usize = 14;
            const NR: usize = 32;
            const VALUES_PER_WORD: usize = $in_word;
            const READS_IN_PLACE: bool = $in_word == 1;

            unsafe fn tile(
                tile: Tile,
                words: usize,
                a: *const Word,
                b: *const Word,
                onto: *const f32,
                c: *mut f32,
            ) {
                const KERNELS: [[Run; 15]; 4] = by_rows!($tile: 1 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
                let kind = usize::from(tile.columns > 16) + 2 * usize::from(tile.in_place.is_some());
                // SAFETY: the caller's promise is the kernel's.
                unsafe { KERNELS[kind][tile.rows](tile, words, a, b, onto, c) }
            }

            unsafe fn transpose(block: PackBlock) {
                // SAFETY: the caller's promise is the function's.
                unsafe { $transpose(block) }
            }

            unsafe fn copy(block: PackBlock) {
                // SAFETY: the caller's promise is the function's.
                unsafe { $copy(block) }
            }

            $($right)*
        }
    };
}

kernel!(Single, 1, tile, transpose, copy);
kernel!(
    /// f32, with the right operand in the upper halves of its values: a word holds two columns, 16 apart.
    Halves, 1, tile_halves, transpose, copy,
    const RIGHT: usize = 16;,
    unsafe fn transpose_right(block: PackBlock) {
        // SAFETY: the caller's promise is the function's.
        unsafe { transpose_halves(block) }
    },
    unsafe fn copy_right(block: PackBlock) {
        // SAFETY: the caller's promise is the function's.
        unsafe { copy_halves(block) }
    }
);
kernel!(
    /// Pairs of bf16, summed in f32: the second value's product first, each sum rounded (Intel, Architecture
    /// Instruction Set Extensions, VDPBF16PS).
    Pairs, 2, tile_pairs, transpose_pairs, copy_pairs
);

/// How many values ahead packing prefetches in each row.
const AHEAD: usize = 64;

/// The lowest `count` of 16 lanes.
fn lanes(count: usize) -> __mmask16 {
    (((1u32 << count.min(16)) - 1) & 0xffff) as __mmask16
}

/// Defines a tile function from its instruction set, the words of the right panel per step and how
/// to read them, and how to multiply and add two vectors of words to a sum. One macro for all, so
/// that sums stay in registers.
macro_rules! tile_function {
    ($name:ident, $features:literal, $width:literal, $read:ident,
        |$left:ident, $right:ident, $sum:ident| $product:expr) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize, const VECTORS: usize, const IN_PLACE: bool>(
            tile: Tile,
            words: usize,
            mut a: *const Word,
            mut b: *const Word,
            onto: *const f32,
            c: *mut f32,
        ) {
            let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
            let [stride, step] = tile.in_place.filter(|_| IN_PLACE).unwrap_or([1, ROWS]);
            let last = tile.columns - 16 * (VECTORS - 1);
            let onto = if tile.chained && !onto.is_null() {
                for (row, sums) in sums.iter_mut().enumerate() {
                    for (vector, sum) in sums.iter_mut().enumerate() {
                        let mask = if vector + 1 == VECTORS { lanes(last) } else { 0xffff };
                        let place = row * tile.stride + 16 * vector;
                        // SAFETY: the mask keeps the access inside the tile, whose extent the caller promises.
                        *sum = unsafe { _mm512_maskz_loadu_ps(mask, onto.add(place)) };
                    }
                }
                std::ptr::null()
            } else {
                onto
            };
            // SAFETY: the caller promises the extents of both panels.
            unsafe {
                for row in 0..ROWS {
                    _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(row * tile.stride).cast());
                    _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(row * tile.stride + tile.columns - 1).cast());
                }
                for _ in 0..words {
                    let mut right = [_mm512_setzero_si512(); VECTORS];
                    for (vector, right) in right.iter_mut().enumerate() {
                        *right = $read(b, vector);
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let $left = _mm512_set1_epi32(*a.add(row * stride) as i32);
                        for ($sum, &$right) in sums.iter_mut().zip(&right) {
                            *$sum = $product;
                        }
                    }
                    a = a.add(step);
                    b = b.add($width);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (vector, &sum) in sums.iter().enumerate() {
                    let mask = if vector + 1 == VECTORS { lanes(last) } else { 0xffff };
                    let place = row * tile.stride + 16 * vector;
                    // SAFETY: the mask keeps every access inside the tile, whose extent the caller promises.
                    unsafe {
                        let sum = match onto.is_null() {
                            true => sum,
                            false => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, onto.add(place)), sum),
                        };
                        _mm512_mask_storeu_ps(c.add(place), mask, sum);
                    }
                }
            }
        }
    };
}

tile_function!(tile, "avx512f", 32, read_words, |left, right, sum| {
    _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), *sum)
});
tile_function!(tile_halves, "avx512f", 16, read_halves, |left, right, sum| {
    _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), *sum)
});
tile_function!(tile_pairs, "avx512f,avx512bf16", 32, read_words, |left, right, sum| {
    // Only reinterprets the bits.
    _mm512_dpbf16_ps(*sum, transmute::<__m512i, __m512bh>(left), transmute::<__m512i, __m512bh>(right))
});

/// Reads 16 columns of one step of a right panel, from column `16 * vector` on.
///
/// # Safety
/// `panel` must be valid for these columns.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn read_words(panel: *const Word, vector: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_loadu_si512(panel.add(16 * vector).cast()) }
}

/// [`read_words`] for [`Halves`].
///
/// # Safety
/// See [`read_words`].
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn read_halves(panel: *const Word, vector: usize) -> __m512i {
    // SAFETY: the caller's promise.
    let words = unsafe { _mm512_loadu_si512(panel.cast()) };
    match vector {
        0 => _mm512_slli_epi32::<16>(words),
        _ => _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32)),
    }
}

/// The words of [`Halves`] for 16 columns and the 16 after them.
#[target_feature(enable = "avx512f")]
#[inline]
fn halved(low: __m512, high: __m512) -> __m512i {
    let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
    let high = _mm512_and_si512(_mm512_castps_si512(high), _mm512_set1_epi32(0xffff_0000_u32 as i32));
    _mm512_or_si512(low, high)
}

/// Blocks of 32 rows by 16 places, transposed in registers. Columns beyond `rows` receive values of row 0.
#[target_feature(enable = "avx512f")]
unsafe fn transpose_halves(block: PackBlock) {
    let PackBlock { rows, columns, source, stride, target, width } = block;
    for column in (0..columns).step_by(16) {
        let left = columns - column;
        let mut halves = [[_mm512_setzero_ps(); 16]; 2];
        // SAFETY: rows below `rows` and columns before `left` lie in the source, and the words in the target.
        unsafe {
            for (half, lanes) in halves.iter_mut().enumerate() {
                for (row, lanes) in lanes.iter_mut().enumerate() {
                    let row = if 16 * half + row < rows { 16 * half + row } else { 0 };
                    *lanes = read_single(source.add(row * stride + column), left);
                }
                transpose_block(lanes);
            }
            for (place, (&low, &high)) in halves[0].iter().zip(&halves[1]).enumerate().take(left) {
                _mm512_storeu_si512(target.add((column + place) * width).cast(), halved(low, high));
            }
        }
    }
}

/// Packs row by row; columns beyond the last are zero.
#[target_feature(enable = "avx512f")]
unsafe fn copy_halves(block: PackBlock) {
    let PackBlock { rows, columns, source, stride, target, width } = block;
    let (low, high) = (lanes(columns), lanes(columns.saturating_sub(16)));
    for row in 0..rows {
        // SAFETY: the masks keep reads inside the row, and its words lie in the target.
        unsafe {
            let source = source.add(row * stride);
            let low = _mm512_maskz_loadu_ps(low, source);
            let high = _mm512_maskz_loadu_ps(high, source.wrapping_add(16));
            _mm512_storeu_si512(target.add(row * width).cast(), halved(low, high));
        }
    }
}

/// Defines a transposing function from its instruction set, the values per word, and how to read
/// up to 16 words of a row.
macro_rules! transpose_function {
    ($name:ident, $features:literal, $in_word:literal, $read:ident) => {
        /// Transposes blocks of 16 by 16 words in registers. Lanes beyond `rows` receive values of row 0, which the
        /// next store or the next panel overwrites.
        #[target_feature(enable = $features)]
        unsafe fn $name(block: PackBlock) {
            let PackBlock { rows, columns, source, stride, target, width } = block;
            for first in (0..rows).step_by(16) {
                let count = 16.min(rows - first);
                let mut column = 0;
                while column < columns {
                    let left = columns - column;
                    let wide = 16.min(left.div_ceil($in_word));
                    let mut block = [_mm512_setzero_ps(); 16];
                    // SAFETY: rows below `count` and columns before `left` lie in the source; the caller grants
                    // 16 words past the last in the target.
                    unsafe {
                        for (row, lanes) in block.iter_mut().enumerate() {
                            let row = if row < count { first + row } else { first };
                            let from = source.add(row * stride + column);
                            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast());
                            *lanes = $read(from, left);
                        }
                        transpose_block(&mut block);
                        let target = target.add(column / $in_word * width + first).cast::<f32>();
                        for (place, lanes) in block.iter().enumerate().take(wide) {
                            _mm512_storeu_ps(target.add(place * width), *lanes);
                        }
                    }
                    column += 16 * $in_word;
                }
            }
        }
    };
}

transpose_function!(transpose, "avx512f", 1, read_single);
transpose_function!(transpose_pairs, "avx512f,avx512bf16", 2, read_pairs);

/// The first 16 of `left` values.
///
/// # Safety
/// `source` must be valid for them.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn read_single(source: *const f32, left: usize) -> __m512 {
    // SAFETY: the mask limits the read to valid values.
    unsafe { _mm512_maskz_loadu_ps(lanes(left), source) }
}

/// The first 32 of `left` values, rounded, in 16 words.
///
/// # Safety
/// `source` must be valid for them.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
unsafe fn read_pairs(source: *const f32, left: usize) -> __m512 {
    // SAFETY: the masks limit the reads to valid values; the vectors are reinterpreted bit for bit.
    unsafe {
        let low = _mm512_maskz_loadu_ps(lanes(left), source);
        let high = _mm512_maskz_loadu_ps(lanes(left.saturating_sub(16)), source.wrapping_add(16));
        transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low))
    }
}

/// Stores whole vectors, because the next row overwrites the excess; only the last row is masked.
#[target_feature(enable = "avx512f")]
unsafe fn copy(block: PackBlock) {
    let PackBlock { rows, columns, source, stride, target, width } = block;
    let (low, high) = (lanes(columns), lanes(columns.saturating_sub(16)));
    let whole = if width >= 8 { rows.saturating_sub(1) } else { 0 };
    let target = target.cast::<f32>();
    for row in 0..whole {
        // SAFETY: the masks keep reads inside the row. Writes beyond it, at most 16 values from its start if
        // `width` is less, lie in the next row.
        unsafe {
            let (source, target) = (source.add(row * stride), target.add(row * width));
            _mm512_storeu_ps(target, _mm512_maskz_loadu_ps(low, source));
            if columns > 16 {
                _mm512_storeu_ps(target.add(16), _mm512_maskz_loadu_ps(high, source.add(16)));
            }
        }
    }
    for row in whole..rows {
        // SAFETY: the masks keep reads and writes inside the row.
        unsafe {
            let (source, target) = (source.add(row * stride), target.add(row * width));
            _mm512_mask_storeu_ps(target, low, _mm512_maskz_loadu_ps(low, source));
            _mm512_mask_storeu_ps(
                target.wrapping_add(16),
                high,
                _mm512_maskz_loadu_ps(high, source.wrapping_add(16)),
            );
        }
    }
}

/// Indices that interleave the 16-bit values of two halves: 0, 16, 1, 17, …
const INTERLEAVED: [u16; 32] = {
    let mut places = [0; 32];
    let mut place = 0;
    while place < 32 {
        places[place] = (place / 2 + place % 2 * 16) as u16;
        place += 1;
    }
    places
};

/// Packs two rows at a time; each row of words belongs to one pair.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn copy_pairs(block: PackBlock) {
    let PackBlock { rows, columns, source, stride, target, width } = block;
    // SAFETY: 32 values of 16 bits.
    let interleaved = unsafe { _mm512_loadu_si512(INTERLEAVED.as_ptr().cast()) };
    for first in (0..columns).step_by(16) {
        let mask = lanes(columns - first);
        for row in (0..rows).step_by(2) {
            let second = if row + 1 < rows { mask } else { 0 };
            // SAFETY: the masks keep reads and writes inside the rows.
            unsafe {
                let source = source.add(row * stride + first);
                let low = _mm512_maskz_loadu_ps(mask, source);
                let high = _mm512_maskz_loadu_ps(second, source.wrapping_add(stride));
                let halves = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                let words = _mm512_permutexvar_epi16(interleaved, halves);
                _mm512_mask_storeu_epi32(target.add(row / 2 * width + first).cast(), mask, words);
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn transpose_block(block: &mut [__m512; 16]) {
    let mut pairs = [_mm512_setzero_ps(); 16];
    for index in 0..8 {
        pairs[2 * index] = _mm512_unpacklo_ps(block[2 * index], block[2 * index + 1]);
        pairs[2 * index + 1] = _mm512_unpackhi_ps(block[2 * index], block[2 * index + 1]);
    }
    let mut quads = [_mm512_setzero_ps(); 16];
    for index in 0..4 {
        let at = 4 * index;
        quads[at] = _mm512_shuffle_ps::<0x44>(pairs[at], pairs[at + 2]);
        quads[at + 1] = _mm512_shuffle_ps::<0xee>(pairs[at], pairs[at + 2]);
        quads[at + 2] = _mm512_shuffle_ps::<0x44>(pairs[at + 1], pairs[at + 3]);
        quads[at + 3] = _mm512_shuffle_ps::<0xee>(pairs[at + 1], pairs[at + 3]);
    }
    // quads[4g + c] holds, in its 128-bit lane l, column 4l + c of rows 4g..4g+4.
    for column in 0..4 {
        let (q0, q1, q2, q3) = (quads[column], quads[4 + column], quads[8 + column], quads[12 + column]);
        let low01 = _mm512_shuffle_f32x4::<0x44>(q0, q1);
        let high01 = _mm512_shuffle_f32x4::<0xee>(q0, q1);
        let low23 = _mm512_shuffle_f32x4::<0x44>(q2, q3);
        let high23 = _mm512_shuffle_f32x4::<0xee>(q2, q3);
        block[column] = _mm512_shuffle_f32x4::<0x88>(low01, low23);
        block[4 + column] = _mm512_shuffle_f32x4::<0xdd>(low01, low23);
        block[8 + column] = _mm512_shuffle_f32x4::<0x88>(high01, high23);
        block[12 + column] = _mm512_shuffle_f32x4::<0xdd>(high01, high23);
    }
}
