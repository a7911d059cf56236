//! Attention of any run by the kernels of training's forward pass (`crates/compile-kernels/cuda/attention_forward.cuh`), over the blocks of
//! the KV cache (`kernels/prefill_attention.cuh`). A row has the same bits in any run.

use std::cmp::Reverse;
use std::ffi::CStr;
use std::marker::PhantomData;

use device::{Argument, Device, Kernel as Code, Shape, Slice};
use ort::sys::ONNXTensorElementDataType;
use record::failure::{Failure, Result};

use super::config::Activation;
use super::operators::{Shared, on, rows, values};
use crate::engine::batch::Batch;
use crate::engine::custom_op::{Call, Kernel, Node, Outcome};
use crate::engine::onnx::Element;

/// Widths of the kernels' heads. Narrower ones are padded to the next.
const WIDTHS: [usize; 2] = [64, 128];
/// Queries of a tile; on Hopper it has two times this number.
const TILE: usize = 64;

/// Returns true if our attention takes heads of this width.
pub fn serves(width: usize) -> bool {
    width <= WIDTHS[1] && width.is_multiple_of(8)
}

/// Rows of one sequence: the first one, their number, the position of the first one in its sequence, and the sequence.
pub type QueryTile = [i32; 4];

/// The tiles of a run, of up to `most` rows; those with the most keys first, so that short ones fill the gaps at the end.
pub fn query_tiles(batch: &Batch, most: usize) -> Vec<QueryTile> {
    let tiles = (0..batch.sequences()).flat_map(|sequence| {
        let (rows, past) = (batch.rows(sequence), batch.past[sequence]);
        let (begin, end) = (rows.start, rows.end);
        rows.step_by(most).map(move |first| {
            let position = past + (first - begin) as i32;
            [first as i32, (end - first).min(most) as i32, position, sequence as i32]
        })
    });
    let mut tiles: Vec<QueryTile> = tiles.collect();
    tiles.sort_by_key(|[_, count, position, _]| Reverse(position + count));
    tiles
}

/// The most tiles of a run of `rows` rows.
pub fn most_tiles(rows: usize, sequences: usize) -> usize {
    rows / TILE + sequences
}

/// The kernel for a model, and what its CUDA blocks take.
pub struct PrefillKernel {
    kernel: &'static Code,
    /// Queries of a tile.
    pub rows: usize,
    /// Keys of a tile. The size of a cache block is a power of two, and no smaller.
    keys: usize,
    threads: u32,
    /// Bytes of shared memory.
    shared: usize,
}

impl PrefillKernel {
    /// The kernel for heads of `width` values, and cache blocks of `size` tokens.
    pub fn of<D: Device, T: Activation>(device: &D, width: usize, size: usize) -> PrefillKernel {
        let [narrow, wide] = T::prefill_kernels();
        let hopper = T::hopper_prefill_kernel().filter(|kernel| device.runs(kernel.source()));
        if let Some(kernel) = hopper.filter(|_| width == WIDTHS[1] && size >= 2 * TILE) {
            let (rows, keys) = (2 * TILE, 2 * TILE);
            let shared = (rows + 4 * keys) * width * size_of::<T>();
            return PrefillKernel { kernel, rows, keys, threads: 256, shared };
        }
        let keys = if size_of::<T>() == size_of::<f32>() { 16 } else { TILE };
        let (kernel, padded) = if width <= WIDTHS[0] { (narrow, WIDTHS[0]) } else { (wide, WIDTHS[1]) };
        let shared = (TILE + 4 * keys) * (padded + 8) * size_of::<T>();
        PrefillKernel { kernel, rows: TILE, keys, threads: 128, shared }
    }
}

/// The operands of the kernel.
struct Prefill<'a, T: Activation> {
    /// `[rows, heads * width]`, as `out`.
    queries: Slice<'a, T>,
    out: Slice<'a, T>,
    /// `[blocks, size, kv_heads, width]`.
    cache: [Slice<'a, T>; 2],
    /// `[tiles, 4]`.
    tiles: Slice<'a, i32>,
    /// `[sequences, columns]`.
    table: Slice<'a, i32>,
    columns: usize,
    size: usize,
    heads: usize,
    kv_heads: usize,
    width: usize,
}

impl<T: Activation> Prefill<'_, T> {
    /// One launch.
    fn run<D: Device>(&self, device: &mut D) -> Result<()> {
        let Prefill { columns, size, heads, kv_heads, width, .. } = *self;
        let compiled = PrefillKernel::of::<D, T>(device, width, size);
        let [keys, values] = self.cache;
        let mut arguments: Vec<Argument<'_>> =
            vec![self.out.into(), self.queries.into(), keys.into(), values.into()];
        arguments.extend([self.tiles, self.table].map(Argument::from));
        let shift = size.trailing_zeros() as usize;
        arguments
            .extend([columns, shift, heads, kv_heads, width].map(|number| Argument::from(number as i32)));
        arguments.push((width as f32).sqrt().recip().into());
        let grid = [(self.tiles.len() / 4) as u32, heads as u32, 1];
        let shape = Shape { grid, block: [compiled.threads, 1, 1], shared: compiled.shared as u32 };
        device.launch(compiled.kernel, shape, &arguments)
    }
}

/// A layer's attention.
pub struct PrefillAttention<D, T> {
    device: Shared<D>,
    heads: usize,
    kv_heads: usize,
    types: PhantomData<T>,
}

impl<D: Device, T: Activation> Kernel for PrefillAttention<D, T> {
    type Shared = Shared<D>;
    const NAME: &'static CStr = c"PrefillAttention";
    const INPUTS: usize = 5;

    fn input_type(index: usize) -> ONNXTensorElementDataType {
        if index < 3 { <T as Element>::TYPE } else { i32::TYPE }
    }

    fn output_type() -> ONNXTensorElementDataType {
        <T as Element>::TYPE
    }

    fn new(device: &Shared<D>, node: &Node) -> Outcome<Self> {
        let (heads, kv_heads) = (node.integer(c"num_heads")?, node.integer(c"kv_num_heads")?);
        Ok(PrefillAttention { device: device.clone(), heads, kv_heads, types: PhantomData })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let PrefillAttention { heads, kv_heads, .. } = *self;
        let missing = "a tensor is missing";
        // SAFETY: these are the declared types, and all tensors are in the memory
        // where the operator computes.
        let work = unsafe {
            let queries = rows::<T>(call, 0)?.ok_or(missing)?;
            let (cache_shape, keys) = call.input::<T>(1)?.ok_or(missing)?;
            let (_, stored) = call.input::<T>(2)?.ok_or(missing)?;
            let (tiles, table) =
                (rows::<i32>(call, 3)?.ok_or(missing)?, rows::<i32>(call, 4)?.ok_or(missing)?);
            let shape = [queries.rows as i64, queries.width as i64];
            let &[_, size, _, width] = cache_shape else {
                return Err(format!("a KV cache of shape {cache_shape:?}"));
            };
            Prefill {
                queries: queries.values,
                out: values(&shape, call.output::<T>(0, &shape)?),
                cache: [values(cache_shape, keys), values(cache_shape, stored)],
                tiles: tiles.values,
                table: table.values,
                columns: table.width,
                size: size as usize,
                heads,
                kv_heads,
                width: width as usize,
            }
        };
        on(&self.device, |device| {
            let keys = PrefillKernel::of::<D, T>(device, work.width, work.size).keys;
            match work.size >= keys && work.size.is_power_of_two() {
                true => work.run(device),
                false => Err(Failure::work(format!(
                    "blocks of {} tokens, which is no power of two from {keys} on",
                    work.size
                ))),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{Any, Buffer};
    use half::{bf16, f16};
    use record::philox::{Draws, Part, Stream};

    trait Number: Activation + Default + PartialEq + Into<f32> {}
    impl Number for f32 {}
    impl Number for bf16 {}
    impl Number for f16 {}

    /// A layer's sizes and its cache.
    #[derive(Clone)]
    struct Layer<T> {
        width: usize,
        size: usize,
        heads: usize,
        kv_heads: usize,
        cache: [Vec<T>; 2],
        /// False for the kernels of all cards alone.
        hopper: bool,
    }

    /// Rows of a sequence: its blocks, its tokens before them, and a query each.
    #[derive(Clone)]
    struct Rows<T> {
        blocks: Vec<u32>,
        past: usize,
        queries: Vec<Vec<T>>,
    }

    fn numbers<T: Number>(draws: &mut Draws, count: usize) -> Vec<T> {
        (0..count).map(|_| T::round(draws.next_u32() as f32 / 2_f32.powi(31) * 1.6 - 1.6)).collect()
    }

    fn placed<T: device::Element>(device: &mut Any, values: &[T]) -> Buffer<T> {
        let buffer = device.allocate(values.len()).expect("memory");
        device.upload(values, buffer.all()).expect("an upload");
        buffer
    }

    impl<T: Number> Layer<T> {
        /// The results of a run's rows, by sequence.
        fn attend(&self, seed: u64, run: &[Rows<T>]) -> Vec<Vec<Vec<T>>> {
            let Layer { width, size, heads, kv_heads, .. } = *self;
            let mut device = Any::for_tests(seed).expect("a device");
            if !self.hopper {
                device.without_architecture_kernels();
            }
            device.reserve(16 << 20).expect("memory");
            let mut batch = Batch::default();
            batch.clear();
            for rows in run {
                batch.past.push(rows.past as i32);
                let begin = *batch.cumulative.last().expect("a beginning");
                batch.cumulative.push(begin + rows.queries.len() as i32);
            }
            let most = PrefillKernel::of::<Any, T>(&device, width, size).rows;
            let tiles: Vec<i32> = query_tiles(&batch, most).into_iter().flatten().collect();
            let columns = run.iter().map(|rows| rows.blocks.len()).max().expect("a sequence");
            // Entries after a sequence's blocks name none.
            let table = run.iter().flat_map(|rows| {
                (0..columns).map(|at| rows.blocks.get(at).map_or(i32::MAX, |&block| block as i32))
            });
            let table: Vec<i32> = table.collect();
            let flat: Vec<T> = run.iter().flat_map(|rows| rows.queries.concat()).collect();
            let (tiles, table) = (placed(&mut device, &tiles), placed(&mut device, &table));
            let cache = self.cache.each_ref().map(|values| placed(&mut device, values));
            let queries = placed(&mut device, &flat);
            let out = device.allocate::<T>(flat.len()).expect("memory");
            let work = Prefill {
                queries: queries.all(),
                out: out.all(),
                cache: [cache[0].all(), cache[1].all()],
                tiles: tiles.all(),
                table: table.all(),
                columns,
                size,
                heads,
                kv_heads,
                width,
            };
            work.run(&mut device).expect("a launch");
            let mut found = vec![T::default(); flat.len()];
            device.download(out.all(), &mut found).expect("a download");
            let mut found = found.chunks(heads * width).map(<[T]>::to_vec);
            run.iter().map(|rows| found.by_ref().take(rows.queries.len()).collect()).collect()
        }

        /// The result of one row in f64.
        fn wanted(&self, blocks: &[u32], position: usize, query: &[T]) -> Vec<f64> {
            let Layer { width, size, heads, kv_heads, .. } = *self;
            let value = |value: T| f64::from(value.into());
            let mut out = Vec::new();
            for head in 0..heads {
                let place = |position: usize| {
                    let slot = blocks[position / size] as usize * size + position % size;
                    (slot * kv_heads + head / (heads / kv_heads)) * width
                };
                let own = &query[head * width..][..width];
                let score = |at: usize| {
                    let key = &self.cache[0][place(at)..][..width];
                    let sum: f64 = own.iter().zip(key).map(|(&a, &b)| value(a) * value(b)).sum();
                    sum / (width as f64).sqrt()
                };
                let scores: Vec<f64> = (0..=position).map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..width).map(|column| {
                    let values = (0..=position).map(|at| value(self.cache[1][place(at) + column]));
                    weights.iter().zip(values).map(|(weight, value)| weight * value).sum::<f64>() / total
                }));
            }
            out
        }

        /// Equal content with the blocks in the opposite order.
        fn turned(&self, run: &[Rows<T>]) -> (Layer<T>, Vec<Rows<T>>) {
            let block = self.size * self.kv_heads * self.width;
            let turn = |side: &Vec<T>| side.chunks(block).rev().flatten().copied().collect();
            let last = (self.cache[0].len() / block - 1) as u32;
            let blocks = |rows: &Rows<T>| rows.blocks.iter().map(|block| last - block).collect();
            let run = run.iter().map(|rows| Rows { blocks: blocks(rows), ..rows.clone() }).collect();
            (Layer { cache: self.cache.each_ref().map(turn), ..self.clone() }, run)
        }
    }

    /// Two prompts that share their first block, then others, each with tokens in the cache and new ones.
    fn check<T: Number>(
        seed: u64,
        hopper: bool,
        [width, size, heads, kv_heads]: [usize; 4],
        lengths: &[[usize; 2]],
        tolerance: f64,
    ) {
        let mut draws = Draws::new(Stream::named(seed, &[Part::Text("prompts")]));
        let mut used = 1;
        let mut run: Vec<Rows<T>> = Vec::new();
        for (number, [past, new]) in lengths.iter().enumerate() {
            let shared = usize::from(number == 1);
            let own = (past + new).div_ceil(size) as u32 - shared as u32;
            let blocks = run.first().map_or(&[][..], |first| &first.blocks[..shared]);
            let blocks = blocks.iter().copied().chain(used..used + own).collect();
            used += own;
            let queries = (0..*new).map(|_| numbers(&mut draws, heads * width)).collect();
            run.push(Rows { blocks, past: *past, queries });
        }
        let row = kv_heads * width;
        let mut cache = [0, 1].map(|_| numbers::<T>(&mut draws, used as usize * size * row));
        // Values behind a sequence are never read.
        for (rows, length) in run.iter().zip(lengths.iter().map(|[past, new]| past + new)) {
            let end = rows.blocks[(length - 1) / size] as usize * size + (length - 1) % size + 1;
            for side in &mut cache {
                side[end * row..end.next_multiple_of(size) * row].fill(T::round(f32::NAN));
            }
        }
        let layer = Layer { width, size, heads, kv_heads, cache, hopper };
        let together = layer.attend(seed, &run);
        for (rows, found) in run.iter().zip(&together) {
            for (at, (query, found)) in rows.queries.iter().zip(found).enumerate() {
                let wanted = layer.wanted(&rows.blocks, rows.past + at, query);
                for (found, wanted) in found.iter().zip(wanted) {
                    let found = f64::from((*found).into());
                    assert!((found - wanted).abs() <= tolerance, "{width}: row {at}: {found} {wanted}");
                }
            }
        }
        let mut backwards = run.clone();
        backwards.reverse();
        let mut found = layer.attend(seed + 1, &backwards);
        found.reverse();
        assert!(found == together, "{width}: backwards");
        let (turned, elsewhere) = layer.turned(&run);
        assert!(turned.attend(seed, &elsewhere) == together, "{width}: in other blocks");
        for (rows, together) in run.iter().zip(&together) {
            for cut in [0, 1, 37] {
                let cut = cut.min(rows.queries.len() - 1);
                let (first, rest) = rows.queries.split_at(cut);
                let part = |past, queries: &[Vec<T>]| Rows {
                    past: rows.past + past,
                    queries: queries.to_vec(),
                    ..rows.clone()
                };
                let mut found = Vec::new();
                if cut > 0 {
                    found = layer.attend(seed, &[part(0, first)]).remove(0);
                }
                found.extend(layer.attend(seed, &[part(cut, rest)]).remove(0));
                assert!(found == *together, "{width}: cut after {cut} of {}", rows.queries.len());
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_run_and_they_are_right() {
        // Beginnings and ends in a tile and at its end, one row, and a whole prompt in one tile.
        let lengths = [[128, 70], [131, 1], [0, 200], [0, 5]];
        check::<bf16>(0, true, [128, 128, 4, 2], &lengths, 0.012);
        check::<f16>(1, true, [128, 128, 2, 1], &lengths[..2], 0.0015);
        check::<bf16>(2, false, [128, 128, 2, 1], &lengths[1..], 0.012);
        check::<bf16>(3, true, [64, 256, 3, 1], &[[260, 70], [256, 64], [0, 40]], 0.012);
        check::<f16>(0, true, [96, 64, 2, 2], &[[70, 66], [64, 30]], 0.0015);
        check::<f32>(1, true, [16, 16, 4, 2], &[[17, 70], [16, 33], [0, 1]], 1e-5);
        check::<f32>(2, true, [128, 64, 2, 1], &[[64, 40], [0, 70]], 1e-5);
    }

    #[test]
    fn the_tiles_of_a_run_hold_each_row_once_and_those_with_most_keys_come_first() {
        let mut batch = Batch::default();
        batch.clear();
        batch.past.extend([10, 0, 300]);
        batch.cumulative.extend([130, 131, 195]);
        let tiles = query_tiles(&batch, 64);
        assert_eq!(
            tiles,
            [[131, 64, 300, 2], [128, 2, 138, 0], [64, 64, 74, 0], [0, 64, 10, 0], [130, 1, 0, 1]]
        );
        assert!(tiles.len() <= most_tiles(195, 3));
    }
}
