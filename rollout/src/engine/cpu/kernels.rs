//! The arithmetic of attention over KV-cache blocks: scores, and weighted sums of values, for a few query rows at a time.
//!
//! Between them, [`functional::softmax`] processes all scores of a row. A score is one chain of fused
//! multiply-adds over the head, and a sum one chain over the keys in order, as in training: **every row's
//! operations and their order depend only on that row**, not on where its keys are or on the rows computed
//! with it. Tiling only decides which rows share registers.
//!
//! All functions are `unsafe` for two reasons: their pointers must be valid for the documented rows, blocks
//! and vectors, and the CPU must have the instruction set of `S`.

#![allow(unsafe_op_in_unsafe_fn, reason = "all that they do is what their callers promise")]
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed alike in all their dimensions")]

use super::kv::BLOCK_SIZE;
use super::lanes::{Lanes, Number};
use super::workspace::{Prefetcher, Workspace};
use std::ptr::NonNull;

/// Keys to process for all rows before the next keys, so that they stay in the L1 cache.
const CHUNK: usize = 256;
const TILES: usize = CHUNK / BLOCK_SIZE;

/// The locations of rows of queries, scores and sums.
#[derive(Clone, Copy)]
struct Rows {
    /// Values of a head.
    width: usize,
    /// Values from one row of scores to the next.
    stride: usize,
}

/// Scores of `R` rows against the keys of `T` blocks.
#[inline(always)]
unsafe fn score<S: Lanes, K: Number, const R: usize, const T: usize>(
    prefetcher: &mut Prefetcher,
    Rows { width, stride }: Rows,
    queries: *const f32,
    keys: &[*const K],
    scores: *mut f32,
) {
    let mut sums = [[S::splat(0.0); T]; R];
    for dimension in 0..width {
        prefetcher.step::<S>();
        prefetcher.step::<S>();
        let mut key = [S::splat(0.0); T];
        for tile in 0..T {
            key[tile] = K::load::<S>(keys[tile].add(dimension * BLOCK_SIZE));
        }
        for row in 0..R {
            let query = S::splat(*queries.add(row * width + dimension));
            for tile in 0..T {
                sums[row][tile] = query.fma(key[tile], sums[row][tile]);
            }
        }
    }
    for row in 0..R {
        for tile in 0..T {
            sums[row][tile].store(scores.add(row * stride + tile * BLOCK_SIZE));
        }
    }
}

/// Scores of `R` rows against all blocks of a chunk, `T` blocks at a time.
#[inline(always)]
unsafe fn score_rows<S: Lanes, K: Number, const R: usize, const T: usize>(
    prefetcher: &mut Prefetcher,
    rows: Rows,
    queries: *const f32,
    keys: &[*const K],
    scores: *mut f32,
) {
    let mut tile = 0;
    while tile + T <= keys.len() {
        score::<S, K, R, T>(prefetcher, rows, queries, &keys[tile..tile + T], scores.add(tile * BLOCK_SIZE));
        tile += T;
    }
    while tile < keys.len() {
        score::<S, K, R, 1>(prefetcher, rows, queries, &keys[tile..tile + 1], scores.add(tile * BLOCK_SIZE));
        tile += 1;
    }
}

/// Adds the values of a chunk, weighted by `weights`, to the sums of `R` rows: `J` vectors of the head from `first`.
#[inline(always)]
unsafe fn accumulate<S: Lanes, K: Number, const R: usize, const J: usize>(
    prefetcher: &mut Prefetcher,
    Rows { width, stride }: Rows,
    weights: *const f32,
    values: &[*const K],
    keys: usize,
    first: usize,
    sums: *mut f32,
) {
    let mut total = [[S::splat(0.0); J]; R];
    for row in 0..R {
        for lane in 0..J {
            total[row][lane] = S::load(sums.add(row * width + (first + lane) * 16));
        }
    }
    for (block, &values) in values.iter().enumerate() {
        let weights = weights.add(block * BLOCK_SIZE);
        for token in 0..BLOCK_SIZE.min(keys - block * BLOCK_SIZE) {
            for _ in 0..J {
                prefetcher.step::<S>();
            }
            let mut value = [S::splat(0.0); J];
            for lane in 0..J {
                value[lane] = K::load::<S>(values.add(token * width + (first + lane) * 16));
            }
            for row in 0..R {
                let weight = S::splat(*weights.add(row * stride + token));
                for lane in 0..J {
                    total[row][lane] = weight.fma(value[lane], total[row][lane]);
                }
            }
        }
    }
    for row in 0..R {
        for lane in 0..J {
            total[row][lane].store(sums.add(row * width + (first + lane) * 16));
        }
    }
}

/// [`accumulate`] over the whole head, in register tiles of `J` vectors.
#[inline(always)]
unsafe fn accumulate_rows<S: Lanes, K: Number, const R: usize, const J: usize>(
    prefetcher: &mut Prefetcher,
    rows: Rows,
    weights: *const f32,
    values: &[*const K],
    keys: usize,
    sums: *mut f32,
) {
    let mut first = 0;
    while first + J <= rows.width / 16 {
        accumulate::<S, K, R, J>(prefetcher, rows, weights, values, keys, first, sums);
        first += J;
    }
    while first < rows.width / 16 {
        accumulate::<S, K, R, 1>(prefetcher, rows, weights, values, keys, first, sums);
        first += 1;
    }
}

/// Keys and values that rows attend to.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// The start of each block of the cache.
    pub starts: &'a [NonNull<f32>],
    /// The sequence's blocks.
    pub blocks: &'a [u32],
    /// Offset of this layer's and head's part in a block.
    pub offset: usize,
    /// Tokens from `from` up to `count` are visible to some row. Earlier ones may be
    /// skipped, in whole chunks.
    pub from: usize,
    /// Tokens of the sequence.
    pub count: usize,
    /// The first column of their scores in a row.
    pub column: usize,
}

/// The keys and values of a chunk.
struct Chunk<K> {
    begin: usize,
    count: usize,
    tiles: usize,
    keys: [*const K; TILES],
    values: [*const K; TILES],
}

impl Keys<'_> {
    #[inline(always)]
    fn chunks<K>(&self, width: usize) -> impl Iterator<Item = Chunk<K>> {
        (self.from / CHUNK * CHUNK..self.count).step_by(CHUNK).map(move |begin| {
            let count = (self.count - begin).min(CHUNK);
            let tiles = count.div_ceil(BLOCK_SIZE);
            let (mut keys, mut values) = ([std::ptr::null(); TILES], [std::ptr::null(); TILES]);
            for tile in 0..tiles {
                let block = self.blocks[begin / BLOCK_SIZE + tile] as usize;
                keys[tile] = self.starts[block].as_ptr().wrapping_add(self.offset).cast::<K>().cast_const();
                values[tile] = keys[tile].wrapping_add(BLOCK_SIZE * width);
            }
            Chunk { begin, count, tiles, keys, values }
        })
    }
}

/// A pass of workspace rows `first..first + rows` over `keys`, compiled for an
/// instruction set and a type of keys.
pub type KeyPass = unsafe fn(&mut Workspace, usize, usize, Keys);

/// Writes the rows' scores. Scores of unused slots in the last block are unspecified.
#[inline(always)]
pub unsafe fn score_keys<S: Lanes, K: Number>(work: &mut Workspace, first: usize, rows: usize, keys: Keys) {
    let layout = Rows { width: work.width, stride: work.stride };
    let queries = work.queries.start().wrapping_add(first * work.width);
    let scores = work.scores.start().wrapping_add(first * work.stride + keys.column);
    let prefetcher = &mut work.prefetcher;
    for chunk in keys.chunks::<K>(layout.width) {
        let (keys, scores) = (&chunk.keys[..chunk.tiles], scores.add(chunk.begin));
        let mut row = 0;
        // Tiles have as many rows as registers allow, so that each key is loaded once per tile.
        macro_rules! scored {
            ($rows:literal, $tiles:literal) => {
                while rows - row >= $rows {
                    let (queries, scores) =
                        (queries.add(row * layout.width), scores.add(row * layout.stride));
                    score_rows::<S, K, $rows, $tiles>(prefetcher, layout, queries, keys, scores);
                    row += $rows;
                }
            };
        }
        if S::WIDE {
            scored!(8, 2);
            scored!(4, 2);
            scored!(2, 4);
            scored!(1, 4);
        } else {
            scored!(4, 1);
            scored!(2, 2);
            scored!(1, 2);
        }
    }
}

/// Adds the values, weighted by the softmax of the scores, to the rows' sums.
#[inline(always)]
pub unsafe fn add_values<S: Lanes, K: Number>(work: &mut Workspace, first: usize, rows: usize, keys: Keys) {
    let layout = Rows { width: work.width, stride: work.stride };
    let sums = work.sums.start().wrapping_add(first * work.width);
    let weights = work.scores.start().wrapping_add(first * work.stride + keys.column);
    let prefetcher = &mut work.prefetcher;
    for chunk in keys.chunks::<K>(layout.width) {
        let (values, weights) = (&chunk.values[..chunk.tiles], weights.add(chunk.begin));
        let mut row = 0;
        macro_rules! accumulated {
            ($rows:literal, $lanes:literal) => {
                while rows - row >= $rows {
                    let (weights, sums) = (weights.add(row * layout.stride), sums.add(row * layout.width));
                    accumulate_rows::<S, K, $rows, $lanes>(
                        prefetcher,
                        layout,
                        weights,
                        values,
                        chunk.count,
                        sums,
                    );
                    row += $rows;
                }
            };
        }
        if !S::WIDE {
            accumulated!(4, 1);
            accumulated!(2, 2);
            accumulated!(1, 4);
        } else if layout.width >= 64 {
            accumulated!(4, 4);
            accumulated!(2, 4);
            accumulated!(1, 4);
        } else {
            accumulated!(8, 2);
            accumulated!(4, 2);
            accumulated!(2, 2);
            accumulated!(1, 2);
        }
    }
}
