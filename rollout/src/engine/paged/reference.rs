//! `PagedAttention` in plain Rust, for where ONNX Runtime has none: the simulator and the tests of everything around it.
//!
//! The operator is the one of `com.microsoft` as far as the decoder's graph uses it (`policy::graph`, the paged kind), in
//! f32 and written to be read: no attempt is made to be fast.

use crate::engine::custom::{BASE, Custom, Domain, FLOAT, Outcome, floats, guarded, plain, three};
use crate::engine::values::check;
use ort::sys::*;
use record::failure::Result;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// The operator's description.
pub struct Operator {
    base: OrtCustomOp,
}

impl Custom for Operator {
    fn base(&self) -> &OrtCustomOp {
        &self.base
    }
}

/// The operator in our domain.
pub fn domain() -> Result<Domain<Operator>> {
    let base = OrtCustomOp {
        GetName: Some(name),
        GetInputType: Some(input_type),
        GetInputTypeCount: Some(seventeen),
        GetOutputTypeCount: Some(three),
        CreateKernelV2: Some(create),
        KernelComputeV2: Some(compute),
        KernelDestroy: Some(destroy),
        ..BASE
    };
    Domain::new(vec![Operator { base }])
}

unsafe extern "system" fn name(_: *const OrtCustomOp) -> *const c_char {
    c"PagedAttention".as_ptr()
}

unsafe extern "system" fn seventeen(_: *const OrtCustomOp) -> usize {
    17
}

/// Lengths, tables and slots are integers.
unsafe extern "system" fn input_type(_: *const OrtCustomOp, index: usize) -> ONNXTensorElementDataType {
    match index {
        5..=7 | 10 | 16 => ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        _ => FLOAT,
    }
}

/// An attention node of the graph.
struct Node {
    heads: usize,
    kv_heads: usize,
    epsilon: f32,
}

/// What a run gives a node: query, key and value rows, blocks, and what says where everything is.
struct Tensors<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    keys: &'a mut [f32],
    values: &'a mut [f32],
    cumulative: &'a [i32],
    past: &'a [i32],
    table: &'a [i32],
    rotation: Rotation<'a>,
    slots: &'a [i32],
    /// Weights of the norms of query and key heads.
    gains: Option<[&'a [f32]; 2]>,
    block_size: usize,
    output: &'a mut [f32],
}

/// Cosines and sines, `[positions, head size / 2]` each.
#[derive(Clone, Copy)]
struct Rotation<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Node {
    fn run(&self, tensors: Tensors<'_>) {
        let rotation = tensors.rotation;
        let Node { heads, kv_heads, .. } = *self;
        let rows = tensors.slots.len();
        let size = tensors.query.len() / (rows * heads).max(1);
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
                let position = past as usize + row - begin;
                // A row without a slot is read by nobody.
                let Ok(slot) = usize::try_from(tensors.slots[row]) else { continue };
                for head in 0..kv_heads {
                    let from = row * key_width + head * size;
                    let to = slot * key_width + head * size;
                    let stored = &mut tensors.keys[to..to + size];
                    stored.copy_from_slice(&tensors.key[from..from + size]);
                    self.rotate(stored, tensors.gains.map(|gains| gains[1]), rotation, position);
                    tensors.values[to..to + size].copy_from_slice(&tensors.value[from..from + size]);
                }
            }
            for row in begin..end {
                let length = past as usize + row - begin + 1;
                for head in 0..heads {
                    let at = row * query_width + head * size;
                    let mut query = tensors.query[at..at + size].to_vec();
                    self.rotate(&mut query, tensors.gains.map(|gains| gains[0]), rotation, length - 1);
                    let place = |position| slot_of(position) * key_width + head / (heads / kv_heads) * size;
                    let scale = (size as f32).sqrt().recip();
                    let scores: Vec<f32> = (0..length)
                        .map(|position| {
                            let key = &tensors.keys[place(position)..][..size];
                            key.iter().zip(&query).map(|(a, b)| a * b).sum::<f32>() * scale
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

    /// A head's norm and its rotation by halves.
    fn rotate(&self, head: &mut [f32], gain: Option<&[f32]>, rotation: Rotation<'_>, position: usize) {
        if let Some(gain) = gain {
            let mean = head.iter().map(|x| x * x).sum::<f32>() / head.len() as f32;
            let scale = (mean + self.epsilon).sqrt().recip();
            head.iter_mut().zip(gain).for_each(|(x, gain)| *x *= scale * gain);
        }
        let half = head.len() / 2;
        let (cos, sin) = (&rotation.cos[position * half..][..half], &rotation.sin[position * half..][..half]);
        let (low, high) = head.split_at_mut(half);
        for at in 0..half {
            let (a, b) = (low[at], high[at]);
            low[at] = a * cos[at] - b * sin[at];
            high[at] = b * cos[at] + a * sin[at];
        }
    }
}

/// A tensor of the running call as a slice; empty where it is absent. `T` is its type.
unsafe fn input<'a, T>(context: *mut OrtKernelContext, index: usize) -> Outcome<(Vec<i64>, &'a mut [T])> {
    let mut value = ptr::null();
    // SAFETY: the context is that of the running call, and so are its tensors; the caches, which alone are written,
    // are lent to no other node of the run.
    unsafe {
        plain(check((ort::api().KernelContext_GetInput)(context, index, &mut value)))?;
        if value.is_null() {
            return Ok((Vec::new(), &mut []));
        }
        let (shape, data) = floats(value)?;
        let count = shape.iter().product::<i64>() as usize;
        let data = if count == 0 { ptr::NonNull::dangling().as_ptr() } else { data.cast() };
        Ok((shape, from_raw_parts_mut(data, count)))
    }
}

impl Node {
    unsafe fn new(info: *const OrtKernelInfo) -> Outcome<Node> {
        let integer = |name: &CStr| {
            let mut value = 0;
            // SAFETY: `info` is that of the node being made; so below.
            plain(check(unsafe {
                (ort::api().KernelInfoGetAttribute_int64)(info, name.as_ptr(), &mut value)
            }))?;
            usize::try_from(value).map_err(|_| format!("attribute {name:?} is {value}"))
        };
        let mut epsilon = 0.0;
        // SAFETY: as above.
        plain(check(unsafe {
            (ort::api().KernelInfoGetAttribute_float)(info, c"qk_norm_epsilon".as_ptr(), &mut epsilon)
        }))?;
        Ok(Node { heads: integer(c"num_heads")?, kv_heads: integer(c"kv_num_heads")?, epsilon })
    }

    unsafe fn compute(&self, context: *mut OrtKernelContext) -> Outcome<()> {
        // SAFETY: the types are those of `input_type`.
        unsafe {
            let (shape, query) = input::<f32>(context, 0)?;
            let (cache_shape, keys) = input::<f32>(context, 3)?;
            let (_, values) = input::<f32>(context, 4)?;
            let [rows, width] = shape[..] else { return Err(format!("a query of shape {shape:?}")) };
            let mut outputs = [ptr::null_mut(); 3];
            for (index, (output, shape)) in
                outputs.iter_mut().zip([&[rows, width][..], &cache_shape, &cache_shape]).enumerate()
            {
                let mut value = ptr::null_mut();
                plain(check((ort::api().KernelContext_GetOutput)(
                    context,
                    index,
                    shape.as_ptr(),
                    shape.len(),
                    &mut value,
                )))?;
                plain(check((ort::api().GetTensorMutableData)(value, output)))?;
            }
            if outputs[1] != keys.as_mut_ptr().cast() || outputs[2] != values.as_mut_ptr().cast() {
                return Err("the caches are not updated in place".to_owned());
            }
            let gains = [input::<f32>(context, 12)?.1, input::<f32>(context, 13)?.1];
            let gains = gains.map(|gain| from_raw_parts(gain.as_ptr(), gain.len()));
            let output =
                if query.is_empty() { &mut [] } else { from_raw_parts_mut(outputs[0].cast(), query.len()) };
            self.run(Tensors {
                query,
                key: input(context, 1)?.1,
                value: input(context, 2)?.1,
                keys,
                values,
                cumulative: input(context, 5)?.1,
                past: input(context, 6)?.1,
                table: input(context, 7)?.1,
                rotation: Rotation { cos: input(context, 8)?.1, sin: input(context, 9)?.1 },
                slots: input(context, 10)?.1,
                gains: (!gains[0].is_empty()).then_some(gains),
                block_size: cache_shape[1] as usize,
                output,
            });
        }
        Ok(())
    }
}

unsafe extern "system" fn create(
    _: *const OrtCustomOp,
    _: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: the kernel goes to `destroy`.
        unsafe { *kernel = Box::into_raw(Box::new(Node::new(info)?)).cast() };
        Ok(())
    })
}

unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut OrtKernelContext) -> OrtStatusPtr {
    // SAFETY: the kernel was made by `create` and is only ever read.
    guarded(|| unsafe { (*kernel.cast::<Node>()).compute(context) })
}

unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: made by `create`, destroyed once.
    drop(unsafe { Box::from_raw(kernel.cast::<Node>()) });
}
