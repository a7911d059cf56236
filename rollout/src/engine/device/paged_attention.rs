//! `PagedAttention` in plain Rust, because ONNX Runtime has it only for CUDA: for the simulator, and
//! tests of the code around it.
//!
//! Implements `com.microsoft`'s operator as far as the decoder's graph uses it (`policy::graph`, paged kind),
//! in f32, written for clarity rather than speed.

use crate::engine::custom_op::{Call, Kernel, Node, Outcome};
use ort::sys::ONNXTensorElementDataType;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice::from_raw_parts_mut;

/// An attention node of the graph. `S` is the state shared by the session's operators,
/// which this one does not use.
pub struct PagedAttention<S> {
    heads: usize,
    kv_heads: usize,
    shared: PhantomData<S>,
}

/// The inputs of a node: rows of queries, keys and values, the KV cache, and the tables that locate them.
struct Tensors<'a> {
    /// `[rows, heads, size]`, and `[rows, key heads, size]` for the others.
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    /// Values of a head.
    size: usize,
    keys: &'a mut [f32],
    values: &'a mut [f32],
    cumulative: &'a [i32],
    past: &'a [i32],
    table: &'a [i32],
    slots: &'a [i32],
    block_size: usize,
    output: &'a mut [f32],
}

impl<S> PagedAttention<S> {
    fn run(&self, tensors: Tensors<'_>) {
        let PagedAttention { heads, kv_heads, .. } = *self;
        let size = tensors.size;
        let (query_width, key_width) = (heads * size, kv_heads * size);
        let columns = tensors.table.len() / tensors.past.len().max(1);
        for (sequence, &past) in tensors.past.iter().enumerate() {
            let begin = tensors.cumulative[sequence] as usize;
            let end = tensors.cumulative[sequence + 1] as usize;
            let table = &tensors.table[sequence * columns..(sequence + 1) * columns];
            let slot_of = |at: usize| {
                table[at / tensors.block_size] as usize * tensors.block_size + at % tensors.block_size
            };
            for row in begin..end {
                // Padding has no slot.
                let Ok(slot) = usize::try_from(tensors.slots[row]) else { continue };
                let (from, to) = (row * key_width, slot * key_width);
                tensors.keys[to..to + key_width].copy_from_slice(&tensors.key[from..from + key_width]);
                tensors.values[to..to + key_width].copy_from_slice(&tensors.value[from..from + key_width]);
            }
            for row in begin..end {
                let length = past as usize + row - begin + 1;
                for head in 0..heads {
                    let at = row * query_width + head * size;
                    let query = &tensors.query[at..at + size];
                    let place = |position| slot_of(position) * key_width + head / (heads / kv_heads) * size;
                    let scale = (size as f32).sqrt().recip();
                    let scores: Vec<f32> = (0..length)
                        .map(|position| {
                            let key = &tensors.keys[place(position)..][..size];
                            key.iter().zip(query).map(|(a, b)| a * b).sum::<f32>() * scale
                        })
                        .collect();
                    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let weights: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
                    let total: f32 = weights.iter().sum();
                    let output = &mut tensors.output[at..at + size];
                    output.fill(0.0);
                    for (position, weight) in weights.iter().enumerate() {
                        let value = &tensors.values[place(position)..][..size];
                        output.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight / total * v);
                    }
                }
            }
        }
    }
}

/// A tensor of the current call as a slice; empty if it is absent.
///
/// # Safety
/// `T` is its type, and nobody else writes to it. Only the KV cache is written, and no other
/// node of the run uses it.
#[allow(clippy::mut_from_ref, reason = "the memory is the tensor's and not the call's")]
unsafe fn input<T>(call: &Call, index: usize) -> Outcome<(&[i64], &mut [T])> {
    let Some((shape, data)) = call.input::<T>(index)? else { return Ok((&[], &mut [])) };
    let count = shape.iter().product::<i64>() as usize;
    let data = if count == 0 { NonNull::dangling().as_ptr() } else { data };
    // SAFETY: the caller's promise; the extent is the tensor's.
    Ok((shape, unsafe { from_raw_parts_mut(data, count) }))
}

impl<S> Kernel for PagedAttention<S> {
    type Shared = S;
    const NAME: &'static CStr = c"PagedAttention";
    const INPUTS: usize = 17;
    const OUTPUTS: usize = 3;

    /// Lengths, block tables and slots are integers.
    fn input_type(index: usize) -> ONNXTensorElementDataType {
        match index {
            5..=7 | 10 | 16 => ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
            _ => ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        }
    }

    fn new(_: &S, node: &Node) -> Outcome<Self> {
        let (heads, kv_heads) = (node.integer(c"num_heads")?, node.integer(c"kv_num_heads")?);
        Ok(PagedAttention { heads, kv_heads, shared: PhantomData })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        // SAFETY: the types match `input_type`.
        unsafe {
            let (shape, query) = input::<f32>(call, 0)?;
            let (cache_shape, keys) = input::<f32>(call, 3)?;
            let (_, values) = input::<f32>(call, 4)?;
            let &[rows, _] = shape else { return Err(format!("a query of shape {shape:?}")) };
            let (_, key) = input::<f32>(call, 1)?;
            let (_, value) = input::<f32>(call, 2)?;
            // A cache is `[blocks, slots, heads, size]`.
            let size = *cache_shape.last().ok_or("a KV cache without a shape")?;
            let query_width = self.heads * size as usize;
            let result = call.output(0, &[rows, query_width as i64])?;
            let caches = [call.output(1, cache_shape)?, call.output(2, cache_shape)?];
            if caches != [keys.as_mut_ptr(), values.as_mut_ptr()] {
                return Err("the KV cache is not updated in place".to_owned());
            }
            let length = rows as usize * query_width;
            let output = if length == 0 { &mut [] } else { from_raw_parts_mut(result, length) };
            self.run(Tensors {
                query,
                key,
                value,
                size: size as usize,
                keys,
                values,
                cumulative: input(call, 5)?.1,
                past: input(call, 6)?.1,
                table: input(call, 7)?.1,
                slots: input(call, 10)?.1,
                block_size: cache_shape[1] as usize,
                output,
            });
        }
        Ok(())
    }
}
