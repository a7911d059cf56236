//! The operator between the product of queries, keys and values and attention: bias, norms and rotary positions by one kernel
//! (`kernels/heads.cu`), which rounds where training does.

use std::ffi::CStr;
use std::marker::PhantomData;

use device::{Device, Shape, Slice};
use ort::sys::ONNXTensorElementDataType;

use super::config::Activation;
use super::operators::{Shared, on, rows, values};
use crate::engine::custom_op::{Call, Kernel, Node, Outcome};
use crate::engine::onnx::Element;

/// The most values of a head that the kernel takes; they are a multiple of four.
const WIDEST: usize = 256;
/// Warps of a CUDA block, each of which takes a head of a row.
const WARPS: usize = 8;

/// Queries, keys and values of a layer.
pub struct Heads<D, T> {
    device: Shared<D>,
    heads: usize,
    kv_heads: usize,
    epsilon: f32,
    rotary: bool,
    types: PhantomData<T>,
}

impl<D: Device, T: Activation> Kernel for Heads<D, T> {
    type Shared = Shared<D>;
    const NAME: &'static CStr = c"Heads";
    const INPUTS: usize = 7;
    const OUTPUTS: usize = 3;

    fn input_type(index: usize) -> ONNXTensorElementDataType {
        match index {
            1 => i32::TYPE,
            2 | 3 => f32::TYPE,
            _ => <T as Element>::TYPE,
        }
    }

    fn output_type() -> ONNXTensorElementDataType {
        <T as Element>::TYPE
    }

    fn new(device: &Shared<D>, node: &Node) -> Outcome<Self> {
        Ok(Heads {
            device: device.clone(),
            heads: node.integer(c"num_heads")?,
            kv_heads: node.integer(c"kv_num_heads")?,
            epsilon: node.float(c"epsilon")?,
            rotary: node.integer(c"rotary")? != 0,
            types: PhantomData,
        })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let Heads { heads, kv_heads, .. } = *self;
        // SAFETY: the types are those that ONNX Runtime was told; all is where the operator computes.
        let (qkv, [query, key, value], positions, tables, [bias, query_norm, key_norm]) = unsafe {
            let qkv = rows::<T>(call, 0)?.ok_or("the heads are missing")?;
            let width = qkv.width / (heads + 2 * kv_heads);
            let output = |index: usize, heads: usize| -> Outcome<Slice<'_, T>> {
                let shape = [qkv.rows as i64, (heads * width) as i64];
                Ok(values(&shape, call.output::<T>(index, &shape)?))
            };
            let out = [output(0, heads)?, output(1, kv_heads)?, output(2, kv_heads)?];
            let given = |index: usize| -> Outcome<Option<Slice<'_, T>>> {
                Ok(call.input::<T>(index)?.map(|(shape, data)| values(shape, data)))
            };
            let (shape, positions) = call.input::<i32>(1)?.ok_or("the positions are missing")?;
            let positions: Slice<'_, i32> = values(shape, positions);
            let table = |index: usize| -> Outcome<Slice<'_, f32>> {
                let (shape, data) = call.input::<f32>(index)?.ok_or("a rotary table is missing")?;
                Ok(values(shape, data))
            };
            let (tables, more) = ([table(2)?, table(3)?], [given(4)?, given(5)?, given(6)?]);
            (qkv, out, positions, tables, more)
        };
        let width = qkv.width / (heads + 2 * kv_heads);
        if width > WIDEST || !width.is_multiple_of(4) {
            return Err(format!("heads {width} wide are not implemented"));
        }
        if qkv.rows == 0 {
            return Ok(());
        }
        let has = i32::from(bias.is_some())
            + 2 * i32::from(query_norm.is_some() && key_norm.is_some())
            + 4 * i32::from(self.rotary);
        let absent = qkv.values;
        let arguments = [
            query.into(),
            key.into(),
            value.into(),
            qkv.values.into(),
            bias.unwrap_or(absent).into(),
            query_norm.unwrap_or(absent).into(),
            key_norm.unwrap_or(absent).into(),
            tables[0].into(),
            tables[1].into(),
            positions.into(),
            (qkv.rows as i32).into(),
            (heads as i32).into(),
            (kv_heads as i32).into(),
            (width as i32).into(),
            self.epsilon.into(),
            has.into(),
        ];
        let blocks = (qkv.rows * (heads + 2 * kv_heads)).div_ceil(WARPS);
        let shape = Shape::rows(blocks as u32, 32 * WARPS as u32);
        on(&self.device, |device| device.launch(T::heads_kernel(), shape, &arguments))
    }
}
