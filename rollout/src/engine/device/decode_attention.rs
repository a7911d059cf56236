//! Attention of decoding (`kernels/decode_attention.cuh`): reads shared blocks once, and gives each row the same bits in any
//! batch.

use std::ffi::CStr;
use std::marker::PhantomData;

use device::{Device, Shape, Slice};
use ort::sys::ONNXTensorElementDataType;
use record::failure::Result;

use super::config::Activation;
use super::operators::{Shared, on, rows, values};
use crate::engine::custom_op::{Call, Kernel, Node, Outcome};
use crate::engine::onnx::Element;

/// Widths of the kernels' heads. Narrower ones are padded to the next.
const WIDTHS: [usize; 2] = [64, 128];
/// Rows of a product, and warps per CUDA block.
const TILE: usize = 16;
const WARPS: usize = 4;
const THREADS: u32 = 128;
/// CUDA blocks per multiprocessor, of which one to three run at a time: enough for them to end at about the same time.
const BLOCKS: u32 = 6;

/// The operands of the kernels.
struct Decoding<'a, T: Activation> {
    /// `[rows, heads * width]`, as `out`.
    queries: Slice<'a, T>,
    out: Slice<'a, T>,
    /// `[blocks, size, kv_heads, width]`.
    cache: [Slice<'a, T>; 2],
    /// `[rows * chunks, 4]`, see [`super::tasks`], and their number.
    tasks: Slice<'a, i32>,
    count: Slice<'a, i32>,
    positions: Slice<'a, i32>,
    scratch: Slice<'a, f32>,
    rows: usize,
    heads: usize,
    kv_heads: usize,
    width: usize,
    /// Tokens of a block of the cache.
    size: usize,
}

impl<T: Activation> Decoding<'_, T> {
    /// Two launches, unless the scratch is too small for the partial results of all rows.
    fn run<D: Device>(&self, device: &mut D) -> Result<()> {
        let Decoding { rows, heads, kv_heads, width, size, .. } = *self;
        let chunks = self.tasks.len() / 4 / rows;
        let [narrow, wide, merge] = T::decode_kernels();
        let (kernel, padded) = if width <= WIDTHS[0] { (narrow, WIDTHS[0]) } else { (wide, WIDTHS[1]) };
        let values = 2 * size * padded + TILE * (padded + size + 8);
        let shared = values * size_of::<T>() + 2 * WARPS * TILE * size_of::<f32>();
        let items = rows * chunks * kv_heads;
        let grid = (device.multiprocessors() * BLOCKS).min(items as u32);
        let shape = Shape::rows(grid, THREADS).shared(shared as u32);
        let most = (self.scratch.len() / (heads * chunks * (width + 2))).max(1);
        for first in (0..rows).step_by(most) {
            let end = rows.min(first + most);
            let [keys, values] = self.cache;
            let numbers = [heads, kv_heads, width, size, chunks, first, end].map(|number| number as i32);
            let mut arguments = vec![self.scratch.into(), self.queries.into(), keys.into(), values.into()];
            arguments.extend([self.tasks, self.count, self.positions].map(device::Argument::from));
            arguments.extend(numbers.map(device::Argument::from));
            arguments.push((width as f32).sqrt().recip().into());
            device.launch(kernel, shape, &arguments)?;
            let numbers = [heads, width, size, chunks, first, end - first].map(|number| number as i32);
            let mut arguments = vec![self.out.into(), self.scratch.into(), self.positions.into()];
            arguments.extend(numbers.map(device::Argument::from));
            device.launch(merge, Shape::rows(((end - first) * heads) as u32, THREADS), &arguments)?;
        }
        Ok(())
    }
}

/// A layer's attention.
pub struct DecodeAttention<D, T> {
    device: Shared<D>,
    heads: usize,
    kv_heads: usize,
    types: PhantomData<T>,
}

impl<D: Device, T: Activation> Kernel for DecodeAttention<D, T> {
    type Shared = Shared<D>;
    const NAME: &'static CStr = c"DecodeAttention";
    const INPUTS: usize = 7;

    fn input_type(index: usize) -> ONNXTensorElementDataType {
        match index {
            0..=2 => <T as Element>::TYPE,
            6 => f32::TYPE,
            _ => i32::TYPE,
        }
    }

    fn output_type() -> ONNXTensorElementDataType {
        <T as Element>::TYPE
    }

    fn new(device: &Shared<D>, node: &Node) -> Outcome<Self> {
        let (heads, kv_heads) = (node.integer(c"num_heads")?, node.integer(c"kv_num_heads")?);
        Ok(DecodeAttention { device: device.clone(), heads, kv_heads, types: PhantomData })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let DecodeAttention { heads, kv_heads, .. } = *self;
        let missing = "a tensor is missing";
        // SAFETY: these are the declared types, and all tensors are in the memory
        // where the operator computes.
        let work = unsafe {
            let queries = rows::<T>(call, 0)?.ok_or(missing)?;
            let (cache_shape, keys) = call.input::<T>(1)?.ok_or(missing)?;
            let (_, stored) = call.input::<T>(2)?.ok_or(missing)?;
            let numbers = |index: usize| -> Outcome<Slice<'_, i32>> {
                let (shape, data) = call.input::<i32>(index)?.ok_or(missing)?;
                Ok(values(shape, data))
            };
            let (shape, scratch) = call.input::<f32>(6)?.ok_or(missing)?;
            let scratch = values(shape, scratch);
            let shape = [queries.rows as i64, queries.width as i64];
            let &[_, size, _, width] = cache_shape else {
                return Err(format!("a KV cache of shape {cache_shape:?}"));
            };
            Decoding {
                queries: queries.values,
                out: values(&shape, call.output::<T>(0, &shape)?),
                cache: [values(cache_shape, keys), values(cache_shape, stored)],
                tasks: numbers(3)?,
                count: numbers(4)?,
                positions: numbers(5)?,
                scratch,
                rows: queries.rows,
                heads,
                kv_heads,
                width: width as usize,
                size: size as usize,
            }
        };
        on(&self.device, |device| work.run(device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::device::tasks::tasks;
    use crate::engine::device::tasks::tests::Cached;
    use device::{Any, Buffer};
    use half::{bf16, f16};
    use record::philox::{Draws, Part, Stream};

    trait Number: Activation + Default + PartialEq + Into<f32> {}
    impl Number for f32 {}
    impl Number for bf16 {}
    impl Number for f16 {}

    /// A layer's sizes and its cache.
    struct Layer<T> {
        width: usize,
        size: usize,
        heads: usize,
        kv_heads: usize,
        cache: [Vec<T>; 2],
    }

    fn numbers<T: Number>(draws: &mut Draws, count: usize) -> Vec<T> {
        (0..count).map(|_| T::round(draws.next_u32() as f32 / 2_f32.powi(31) * 1.6 - 1.6)).collect()
    }

    fn draws(seed: u64) -> Draws {
        Draws::new(Stream::named(seed, &[Part::Text("attention")]))
    }

    fn placed<T: device::Element>(device: &mut Any, values: &[T]) -> Buffer<T> {
        let buffer = device.allocate(values.len()).expect("memory");
        device.upload(values, buffer.all()).expect("an upload");
        buffer
    }

    impl<T: Number> Layer<T> {
        /// The results of sequences, padded to `rows` rows, with room for the partial results of `room` rows.
        fn attend(
            &self,
            seed: u64,
            cached: &Cached,
            queries: &[Vec<T>],
            rows: usize,
            room: usize,
        ) -> Vec<Vec<T>> {
            let Layer { width, size, heads, kv_heads, .. } = *self;
            let mut device = Any::for_tests(seed).expect("a device");
            device.reserve(64 << 20).expect("memory");
            let list = tasks(cached, rows, size, heads / kv_heads);
            let chunks = cached.0.iter().map(|(length, _)| length.div_ceil(size)).max().expect("a row") + 1;
            // Entries after the last task are from an earlier run.
            let mut all: Vec<i32> = list.iter().flatten().copied().collect();
            all.resize(4 * rows * chunks, i32::MAX);
            let mut positions: Vec<i32> = cached.0.iter().map(|(length, _)| *length as i32 - 1).collect();
            positions.resize(rows, 0);
            let mut flat = queries.concat();
            flat.resize(rows * heads * width, T::default());
            let tasks = placed(&mut device, &all);
            let count = placed(&mut device, &[list.len() as i32]);
            let positions = placed(&mut device, &positions);
            let cache = self.cache.each_ref().map(|values| placed(&mut device, values));
            let flat = placed(&mut device, &flat);
            let out = device.allocate::<T>(rows * heads * width).expect("memory");
            let scratch = device.allocate::<f32>(room * heads * chunks * (width + 2)).expect("memory");
            let work = Decoding {
                queries: flat.all(),
                out: out.all(),
                cache: [cache[0].all(), cache[1].all()],
                tasks: tasks.all(),
                count: count.all(),
                positions: positions.all(),
                scratch: scratch.all(),
                rows,
                heads,
                kv_heads,
                width,
                size,
            };
            work.run(&mut device).expect("launches");
            let mut found = vec![T::default(); out.len()];
            device.download(out.all(), &mut found).expect("a download");
            found.chunks(heads * width).take(queries.len()).map(<[T]>::to_vec).collect()
        }

        /// The result of one row in f64.
        fn wanted(&self, (length, blocks): &(usize, Vec<u32>), query: &[T]) -> Vec<f64> {
            let Layer { width, size, heads, kv_heads, .. } = *self;
            let value = |value: T| f64::from(value.into());
            let mut out = Vec::new();
            for head in 0..heads {
                let place = |position: usize| {
                    let slot = blocks[position / size] as usize * size + position % size;
                    (slot * kv_heads + head / (heads / kv_heads)) * width
                };
                let own = &query[head * width..][..width];
                let scores: Vec<f64> = (0..*length)
                    .map(|position| {
                        let key = &self.cache[0][place(position)..][..width];
                        let sum: f64 = own.iter().zip(key).map(|(&a, &b)| value(a) * value(b)).sum();
                        sum / (width as f64).sqrt()
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
                for column in 0..width {
                    let sum: f64 = (0..*length)
                        .map(|at| (scores[at] - largest).exp() * value(self.cache[1][place(at) + column]))
                        .sum();
                    out.push(sum / total);
                }
            }
            out
        }
    }

    /// Groups of branches that share the whole blocks of their prompts, as copy-on-write leaves them; some have ended.
    fn groups(draws: &mut Draws, size: usize, prompts: &[usize]) -> (Cached, u32) {
        let (mut cached, mut used) = (Cached::default(), 1);
        let mut new = |count: usize| -> Vec<u32> {
            used += count as u32;
            (used - count as u32..used).collect()
        };
        for &prompt in prompts {
            let shared = new(prompt / size);
            for _ in 0..1 + draws.next_u32() % 5 {
                let length = prompt + 1 + draws.next_u32() as usize % size;
                let own = new(length.div_ceil(size) - prompt / size);
                cached.0.push((length, [shared.clone(), own].concat()));
            }
        }
        (cached, used)
    }

    fn check<T: Number>(
        seed: u64,
        [width, size, heads, kv_heads]: [usize; 4],
        prompts: &[usize],
        tolerance: f64,
    ) {
        let mut draws = draws(seed);
        let (cached, blocks) = groups(&mut draws, size, prompts);
        let side = blocks as usize * size * kv_heads * width;
        let cache = [numbers::<T>(&mut draws, side), numbers::<T>(&mut draws, side)];
        let layer = Layer { width, size, heads, kv_heads, cache };
        let count = cached.0.len();
        let queries: Vec<Vec<T>> = (0..count).map(|_| numbers(&mut draws, heads * width)).collect();
        let together = layer.attend(seed, &cached, &queries, count + 2, count + 2);
        for (row, found) in together.iter().enumerate() {
            for (found, wanted) in found.iter().zip(layer.wanted(&cached.0[row], &queries[row])) {
                let found = f64::from((*found).into());
                assert!((found - wanted).abs() <= tolerance, "{width}: row {row}: {found} {wanted}");
            }
        }
        // Equal bits with room for fewer rows, backwards, alone, and without sharing.
        assert!(layer.attend(seed + 1, &cached, &queries, count, 2) == together, "{width}: in turns");
        let backwards = |all: &[Vec<T>]| all.iter().rev().cloned().collect::<Vec<_>>();
        let turned = Cached(cached.0.iter().rev().cloned().collect());
        let found = layer.attend(seed, &turned, &backwards(&queries), count, count);
        assert!(backwards(&found) == together, "{width}: backwards");
        for row in [0, count / 2, count - 1] {
            let alone = Cached(vec![cached.0[row].clone()]);
            let found = layer.attend(seed, &alone, &queries[row..=row], 1, 1);
            assert!(found[0] == together[row], "{width}: row {row} alone");
        }
        let (apart, copied) = layer.unshared(&cached);
        assert!(copied.attend(seed, &apart, &queries, count, count) == together, "{width}: without sharing");
    }

    impl<T: Number> Layer<T> {
        /// Sequences without shared blocks, and a cache with their content.
        fn unshared(&self, cached: &Cached) -> (Cached, Layer<T>) {
            let Layer { width, size, heads, kv_heads, .. } = *self;
            let block = size * kv_heads * width;
            let mut cache = [Vec::new(), Vec::new()];
            let mut apart = Cached::default();
            let mut used = 0;
            for (length, own) in &cached.0 {
                for (side, to) in self.cache.iter().zip(&mut cache) {
                    own.iter().for_each(|&of| to.extend(&side[of as usize * block..][..block]));
                }
                apart.0.push((*length, (used..used + own.len() as u32).collect()));
                used += own.len() as u32;
            }
            (apart, Layer { width, size, heads, kv_heads, cache })
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_company_and_they_are_right() {
        // Prompts end in a block, at its end, and before the first ends.
        check::<bf16>(0, [128, 128, 4, 2], &[300, 128, 5], 0.012);
        check::<bf16>(1, [64, 256, 3, 1], &[256, 40], 0.012);
        check::<bf16>(2, [96, 16, 10, 2], &[48, 33, 15], 0.012);
        // Eight times as exact as bf16.
        check::<f16>(0, [128, 128, 4, 2], &[300, 128, 5], 0.0015);
        check::<f16>(1, [64, 256, 3, 1], &[256, 40], 0.0015);
        check::<f32>(3, [16, 16, 4, 2], &[32, 33, 1], 1e-5);
        check::<f32>(2, [128, 64, 2, 1], &[70], 1e-5);
    }

    #[test]
    fn more_branches_than_a_product_has_rows_are_right() {
        let layer_of = |draws: &mut Draws| [numbers::<bf16>(draws, 3 * 16 * 64), numbers(draws, 3 * 16 * 64)];
        let mut draws = draws(5);
        let cache = layer_of(&mut draws);
        let layer = Layer { width: 64, size: 16, heads: 5, kv_heads: 1, cache };
        let cached = Cached(vec![(16, vec![1]); 9]);
        let queries: Vec<Vec<bf16>> = (0..9).map(|_| numbers(&mut draws, 5 * 64)).collect();
        let found = layer.attend(0, &cached, &queries, 9, 9);
        for (row, found) in found.iter().enumerate() {
            let alone = layer.attend(0, &Cached(vec![cached.0[row].clone()]), &queries[row..=row], 1, 1);
            assert!(alone[0] == *found, "row {row}");
        }
    }
}
