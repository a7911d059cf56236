//! The arithmetic of attention over KV-cache blocks: scores, softmax and weighted sums for a few query rows at a time.
//!
//! The softmax is computed online (Milakov and Gimelshein, arXiv 1805.02867): keys come in chunks, and a row keeps its
//! largest score, the sum of exponentials and the weighted sum of values. A shared prefix and a branch's own tokens
//! are then just chunks. **Every row's operations and their order depend on nothing but that row**: tiling
//! only decides what shares a register. That is what makes a row's result the same in any batch.
//!
//! All functions are `unsafe` for two reasons: they take pointers, which must be valid for the rows, blocks and vectors that
//! the documentation names, and they may only run where the instruction set of `S` is available. `D` is the head size.

#![allow(unsafe_op_in_unsafe_fn, reason = "all that they do is what their callers promise")]
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed alike in all their dimensions")]

use super::kv::BLOCK_SIZE;
use super::lanes::{Lanes, Number};
use super::rope::Rotation;
use super::workspace::{Ahead, CHUNK, Workspace};
use std::ptr::NonNull;

const TILES: usize = CHUNK / BLOCK_SIZE;

/// Scores of `R` rows against the keys of `T` blocks; a row has D queries and CHUNK scores.
#[inline(always)]
unsafe fn score<S: Lanes, K: Number, const D: usize, const R: usize, const T: usize>(
    ahead: &mut Ahead,
    queries: *const f32,
    keys: &[*const K],
    scores: *mut f32,
) {
    let mut sums = [[S::splat(0.0); T]; R];
    for dimension in 0..D {
        ahead.step::<S>();
        ahead.step::<S>();
        let mut key = [S::splat(0.0); T];
        for tile in 0..T {
            key[tile] = K::load::<S>(keys[tile].add(dimension * BLOCK_SIZE));
        }
        for row in 0..R {
            let query = S::splat(*queries.add(row * D + dimension));
            for tile in 0..T {
                sums[row][tile] = query.fma(key[tile], sums[row][tile]);
            }
        }
    }
    for row in 0..R {
        for tile in 0..T {
            sums[row][tile].store(scores.add(row * CHUNK + tile * BLOCK_SIZE));
        }
    }
}

/// Scores of `R` rows against all blocks of a chunk, `T` blocks at a time.
#[inline(always)]
unsafe fn score_rows<S: Lanes, K: Number, const D: usize, const R: usize, const T: usize>(
    ahead: &mut Ahead,
    queries: *const f32,
    keys: &[*const K],
    scores: *mut f32,
) {
    let mut tile = 0;
    while tile + T <= keys.len() {
        score::<S, K, D, R, T>(ahead, queries, &keys[tile..tile + T], scores.add(tile * BLOCK_SIZE));
        tile += T;
    }
    while tile < keys.len() {
        score::<S, K, D, R, 1>(ahead, queries, &keys[tile..tile + 1], scores.add(tile * BLOCK_SIZE));
        tile += 1;
    }
}

/// Adds the values of a chunk, weighted by `weights` (CHUNK a row), to the sums of `R` rows: `J` vectors of the head from `first`.
#[inline(always)]
unsafe fn accumulate<S: Lanes, K: Number, const D: usize, const R: usize, const J: usize>(
    ahead: &mut Ahead,
    weights: *const f32,
    values: &[*const K],
    keys: usize,
    first: usize,
    sums: *mut f32,
) {
    let mut total = [[S::splat(0.0); J]; R];
    for row in 0..R {
        for lane in 0..J {
            total[row][lane] = S::load(sums.add(row * D + (first + lane) * 16));
        }
    }
    for (block, &values) in values.iter().enumerate() {
        let weights = weights.add(block * BLOCK_SIZE);
        for token in 0..BLOCK_SIZE.min(keys - block * BLOCK_SIZE) {
            for _ in 0..J {
                ahead.step::<S>();
            }
            let mut value = [S::splat(0.0); J];
            for lane in 0..J {
                value[lane] = K::load::<S>(values.add(token * D + (first + lane) * 16));
            }
            for row in 0..R {
                let weight = S::splat(*weights.add(row * CHUNK + token));
                for lane in 0..J {
                    total[row][lane] = weight.fma(value[lane], total[row][lane]);
                }
            }
        }
    }
    for row in 0..R {
        for lane in 0..J {
            total[row][lane].store(sums.add(row * D + (first + lane) * 16));
        }
    }
}

/// [`accumulate`] over the whole head, in register tiles of `J` vectors.
#[inline(always)]
unsafe fn accumulate_rows<S: Lanes, K: Number, const D: usize, const R: usize, const J: usize>(
    ahead: &mut Ahead,
    weights: *const f32,
    values: &[*const K],
    keys: usize,
    sums: *mut f32,
) {
    let mut first = 0;
    while first + J <= D / 16 {
        accumulate::<S, K, D, R, J>(ahead, weights, values, keys, first, sums);
        first += J;
    }
    while first < D / 16 {
        accumulate::<S, K, D, R, 1>(ahead, weights, values, keys, first, sums);
        first += 1;
    }
}

/// Turns the first `keys` scores of a row into exponentials and merges them into its running maximum and total. The
/// rest of the `tiles` blocks of scores become 0.
#[inline(always)]
unsafe fn soften<S: Lanes, const D: usize>(
    scores: *mut f32,
    tiles: usize,
    keys: usize,
    largest: &mut f32,
    total: &mut f32,
    sums: *mut f32,
) {
    for hidden in keys..tiles * BLOCK_SIZE {
        *scores.add(hidden) = f32::NEG_INFINITY;
    }
    let mut most = S::splat(f32::NEG_INFINITY);
    for tile in 0..tiles {
        most = most.max(S::load(scores.add(tile * BLOCK_SIZE)));
    }
    let most = most.largest();
    let most = if most > *largest { most } else { *largest };
    if most > *largest && *total > 0.0 {
        let shrink = S::splat(*largest - most).exp();
        *total *= shrink.array()[0];
        for lane in 0..D / 16 {
            S::load(sums.add(lane * 16)).mul(shrink).store(sums.add(lane * 16));
        }
    }
    let shift = S::splat(most);
    let mut sum = S::splat(0.0);
    for tile in 0..tiles {
        let weight = S::load(scores.add(tile * BLOCK_SIZE)).sub(shift).exp();
        sum = sum.add(weight);
        weight.store(scores.add(tile * BLOCK_SIZE));
    }
    *total += sum.sum();
    *largest = most;
}

/// Keys and values that rows attend to.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// Where each block of the cache begins.
    pub starts: &'a [NonNull<f32>],
    /// The sequence's blocks.
    pub blocks: &'a [u32],
    /// Where the part of this layer and head begins within a block.
    pub offset: usize,
    /// Tokens of the sequence.
    pub count: usize,
    /// How many of them the first row sees.
    pub visible: usize,
    /// How many of those, the oldest, it does not see because of a window; below 0: how many tokens ago the window begins.
    pub hidden: i64,
    /// One more is seen, and one more hidden, by every so many rows.
    pub rows_a_step: usize,
}

impl Keys<'_> {
    #[inline(always)]
    fn block<K>(&self, index: usize) -> *const K {
        self.starts[self.blocks[index] as usize].as_ptr().wrapping_add(self.offset).cast()
    }
}

/// [`attend`] compiled for an instruction set, a type of keys and values, and a head size.
pub type Attend = unsafe fn(&mut Workspace, usize, usize, Keys);

/// Lets rows `first..first + rows` of the workspace attend to `keys`, which are stored as `K`.
#[inline(always)]
pub unsafe fn attend<S: Lanes, K: Number, const D: usize>(
    work: &mut Workspace,
    first: usize,
    rows: usize,
    keys: Keys,
) {
    let queries = work.queries.start().wrapping_add(first * D);
    let sums = work.sums.start().wrapping_add(first * D);
    let scores = work.scores.start();
    let ahead = &mut work.ahead;
    // Chunks begin at the same tokens whatever is hidden.
    let hidden_chunks = keys.hidden.max(0) as usize / CHUNK;
    for begin in (hidden_chunks * CHUNK..keys.count).step_by(CHUNK) {
        let count = (keys.count - begin).min(CHUNK);
        let tiles = count.div_ceil(BLOCK_SIZE);
        let mut key_blocks = [std::ptr::null::<K>(); TILES];
        let mut value_blocks = [std::ptr::null::<K>(); TILES];
        for tile in 0..tiles {
            key_blocks[tile] = keys.block(begin / BLOCK_SIZE + tile);
            value_blocks[tile] = key_blocks[tile].wrapping_add(BLOCK_SIZE * D);
        }
        let (key_blocks, value_blocks) = (&key_blocks[..tiles], &value_blocks[..tiles]);
        let mut row = 0;
        // Tiles of rows as large as the registers allow: each key or value is loaded once for all rows of a tile.
        macro_rules! scored {
            ($rows:literal, $tiles:literal) => {
                while rows - row >= $rows {
                    score_rows::<S, K, D, $rows, $tiles>(
                        ahead,
                        queries.add(row * D),
                        key_blocks,
                        scores.add(row * CHUNK),
                    );
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
        for row in 0..rows {
            let step = row / keys.rows_a_step;
            let seen = (keys.visible + step).saturating_sub(begin).min(count);
            let hidden = (keys.hidden + step as i64 - begin as i64).max(0) as usize;
            let scores = scores.add(row * CHUNK);
            if seen <= hidden {
                std::slice::from_raw_parts_mut(scores, tiles * BLOCK_SIZE).fill(0.0);
                continue;
            }
            std::slice::from_raw_parts_mut(scores, hidden).fill(f32::NEG_INFINITY);
            let (largest, total) = (&mut work.largest[first + row], &mut work.total[first + row]);
            soften::<S, D>(scores, tiles, seen, largest, total, sums.add(row * D));
        }
        let mut row = 0;
        macro_rules! accumulated {
            ($rows:literal, $lanes:literal) => {
                while rows - row >= $rows {
                    accumulate_rows::<S, K, D, $rows, $lanes>(
                        ahead,
                        scores.add(row * CHUNK),
                        value_blocks,
                        count,
                        sums.add(row * D),
                    );
                    row += $rows;
                }
            };
        }
        if !S::WIDE {
            accumulated!(4, 1);
            accumulated!(2, 2);
            accumulated!(1, 4);
        } else if D >= 64 {
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

/// Makes `rows` rows of the workspace ready for [`attend`].
#[inline(always)]
pub unsafe fn begin<const D: usize>(work: &mut Workspace, rows: usize) {
    std::slice::from_raw_parts_mut(work.sums.start(), rows * D).fill(0.0);
    work.largest[..rows].fill(f32::NEG_INFINITY);
    work.total[..rows].fill(0.0);
}

/// Divides a row's sums by its total: the attention's output, D numbers.
#[inline(always)]
pub unsafe fn finish<S: Lanes, const D: usize>(work: &mut Workspace, row: usize, output: *mut f32) {
    let scale = S::splat(1.0 / work.total[row]);
    let sums = work.sums.start().add(row * D);
    for lane in 0..D / 16 {
        S::load(sums.add(lane * 16)).mul(scale).store(output.add(lane * 16));
    }
}

/// Root mean square norm of one head (Zhang and Sennrich, arXiv 1910.07467) if there is a `gain`, then the rotary
/// embedding in its half-split form (Su et al., arXiv 2104.09864), then `scale`.
#[inline(always)]
pub unsafe fn rotate<S: Lanes, const D: usize>(
    input: *const f32,
    gain: Option<&[f32]>,
    epsilon: f32,
    rotation: Rotation,
    scale: f32,
    output: *mut f32,
) {
    let mut head = [0.0_f32; D];
    let factor = match gain {
        Some(_) => {
            let mut squares = S::splat(0.0);
            for lane in 0..D / 16 {
                let part = S::load(input.add(lane * 16));
                squares = part.fma(part, squares);
            }
            S::splat(scale / (squares.sum() / D as f32 + epsilon).sqrt())
        }
        None => S::splat(scale),
    };
    for lane in 0..D / 16 {
        let mut part = S::load(input.add(lane * 16)).mul(factor);
        if let Some(gain) = gain {
            part = part.mul(S::load(gain.as_ptr().add(lane * 16)));
        }
        part.store(head.as_mut_ptr().add(lane * 16));
    }
    if rotation.pairs == D / 2 {
        turn(&head, D / 2, rotation, output);
    } else {
        turn(&head, rotation.pairs, rotation, output);
        for index in 2 * rotation.pairs..D {
            *output.add(index) = head[index];
        }
    }
}

/// Rotates pairs of elements.
#[inline(always)]
unsafe fn turn(head: &[f32], pairs: usize, rotation: Rotation, output: *mut f32) {
    let Rotation { cosines, sines, .. } = rotation;
    for index in 0..pairs {
        let (low, high) = (head[index], head[index + pairs]);
        let (cosine, sine) = (*cosines.add(index), *sines.add(index));
        *output.add(index) = low * cosine - high * sine;
        *output.add(index + pairs) = high * cosine + low * sine;
    }
}

/// `gate * sigmoid(argument) * up`. Below -87 the sigmoid is 0 in all but name; the bound keeps the exponential finite.
#[inline(always)]
unsafe fn gated<S: Lanes>(gate: S, argument: S, up: S) -> S {
    let bounded = S::splat(-87.0).max(argument);
    gate.mul(up).div(S::splat(0.0).sub(bounded).exp().add(S::splat(1.0)))
}

/// One vector of [`swiglu`] or [`geglu`].
#[inline(always)]
unsafe fn glu<S: Lanes, const GELU: bool>(gate: S, up: S) -> S {
    if !GELU {
        return gated(gate, gate, up);
    }
    // (1 + tanh(u)) / 2 is the sigmoid of 2u, here with u = sqrt(2 / pi) * (x + 0.044715 * x^3).
    let factor = gate.mul(gate).fma(S::splat(0.071_354_814), S::splat(1.595_769_2));
    gated(gate, gate.mul(factor), up)
}

#[inline(always)]
unsafe fn glu_row<S: Lanes, const GELU: bool>(
    gate: *const f32,
    up: *const f32,
    count: usize,
    output: *mut f32,
) {
    let whole = count / 16 * 16;
    for at in (0..whole).step_by(16) {
        glu::<S, GELU>(S::load(gate.add(at)), S::load(up.add(at))).store(output.add(at));
    }
    if whole < count {
        let (mut gates, mut ups) = ([0.0; 16], [0.0; 16]);
        std::ptr::copy_nonoverlapping(gate.add(whole), gates.as_mut_ptr(), count - whole);
        std::ptr::copy_nonoverlapping(up.add(whole), ups.as_mut_ptr(), count - whole);
        let result = glu::<S, GELU>(S::load(gates.as_ptr()), S::load(ups.as_ptr())).array();
        std::ptr::copy_nonoverlapping(result.as_ptr(), output.add(whole), count - whole);
    }
}

/// `silu(gate) * up`, number by number (Shazeer, arXiv 2002.05202).
#[inline(always)]
pub unsafe fn swiglu<S: Lanes>(gate: *const f32, up: *const f32, count: usize, output: *mut f32) {
    glu_row::<S, false>(gate, up, count, output)
}

/// `gelu(gate) * up`, with the tanh formula of GELU (Hendrycks and Gimpel, arXiv 1606.08415).
#[inline(always)]
pub unsafe fn geglu<S: Lanes>(gate: *const f32, up: *const f32, count: usize, output: *mut f32) {
    glu_row::<S, true>(gate, up, count, output)
}
