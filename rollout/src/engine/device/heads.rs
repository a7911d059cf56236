//! The operators between the QKV projection and attention: bias, norms and rotary positions in one kernel
//! (`kernels/heads.cu`), which rounds where training does. With our attention it also stores keys and values.

use std::ffi::CStr;
use std::marker::PhantomData;

use device::{Argument, Device, Shape, Slice};
use ort::sys::ONNXTensorElementDataType;

use super::config::Activation;
use super::operators::{Shared, on, rows, values};
use crate::engine::custom_op::{Call, Kernel, Node, Outcome};
use crate::engine::onnx::Element;

/// Largest head size of the kernel; sizes are multiples of four.
const WIDEST: usize = 256;
/// Warps per CUDA block; each processes one head of a row.
const WARPS: usize = 8;

/// Splits a layer's queries, keys and values; if it `APPENDS`, keys and values go into the KV cache.
pub struct SplitHeads<D, T, const APPENDS: bool> {
    device: Shared<D>,
    heads: usize,
    kv_heads: usize,
    epsilon: f32,
    rotary: bool,
    types: PhantomData<T>,
}

impl<D: Device, T: Activation, const APPENDS: bool> Kernel for SplitHeads<D, T, APPENDS> {
    type Shared = Shared<D>;
    const NAME: &'static CStr = if APPENDS { c"AppendHeads" } else { c"Heads" };
    const INPUTS: usize = if APPENDS { 10 } else { 7 };
    const OUTPUTS: usize = 3;

    fn input_type(index: usize) -> ONNXTensorElementDataType {
        match index {
            1 | 9 => i32::TYPE,
            2 | 3 => f32::TYPE,
            _ => <T as Element>::TYPE,
        }
    }

    fn output_type() -> ONNXTensorElementDataType {
        <T as Element>::TYPE
    }

    fn new(device: &Shared<D>, node: &Node) -> Outcome<Self> {
        Ok(SplitHeads {
            device: device.clone(),
            heads: node.integer(c"num_heads")?,
            kv_heads: node.integer(c"kv_num_heads")?,
            epsilon: node.float(c"epsilon")?,
            rotary: node.integer(c"rotary")? != 0,
            types: PhantomData,
        })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let SplitHeads { heads, kv_heads, .. } = *self;
        // SAFETY: these are the declared types, and all tensors are in the memory
        // where the operator computes.
        let (qkv, [query, key, value], places, tables, [bias, query_norm, key_norm]) = unsafe {
            let qkv = rows::<T>(call, 0)?.ok_or("the heads are missing")?;
            let width = qkv.width / (heads + 2 * kv_heads);
            let output = |index: usize, heads: usize| -> Outcome<Slice<'_, T>> {
                let shape = [qkv.rows as i64, (heads * width) as i64];
                Ok(values(&shape, call.output::<T>(index, &shape)?))
            };
            let in_place = |index: usize| -> Outcome<Slice<'_, T>> {
                let (shape, cache) = call.input::<T>(6 + index)?.ok_or("the KV cache is missing")?;
                if call.output::<T>(index, shape)? != cache {
                    return Err("the KV cache is not updated in place".to_owned());
                }
                Ok(values(shape, cache))
            };
            let out = match APPENDS {
                true => [output(0, heads)?, in_place(1)?, in_place(2)?],
                false => [output(0, heads)?, output(1, kv_heads)?, output(2, kv_heads)?],
            };
            let given = |index: usize| -> Outcome<Option<Slice<'_, T>>> {
                Ok(call.input::<T>(index)?.map(|(shape, data)| values(shape, data)))
            };
            let place = |index: usize| -> Outcome<Slice<'_, i32>> {
                let (shape, data) = call.input::<i32>(index)?.ok_or("the rows' places are missing")?;
                Ok(values(shape, data))
            };
            let mut places = vec![place(1)?];
            if APPENDS {
                places.push(place(9)?);
            }
            let table = |index: usize| -> Outcome<Slice<'_, f32>> {
                let (shape, data) = call.input::<f32>(index)?.ok_or("a rotary table is missing")?;
                Ok(values(shape, data))
            };
            let (tables, more) = ([table(2)?, table(3)?], [given(4)?, given(5)?, given(6)?]);
            (qkv, out, places, tables, more)
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
        let mut arguments: Vec<Argument<'_>> = vec![
            query.into(),
            key.into(),
            value.into(),
            qkv.values.into(),
            bias.unwrap_or(absent).into(),
            query_norm.unwrap_or(absent).into(),
            key_norm.unwrap_or(absent).into(),
            tables[0].into(),
            tables[1].into(),
        ];
        arguments.extend(places.into_iter().map(Argument::from));
        arguments.extend([qkv.rows, heads, kv_heads, width].map(|size| Argument::from(size as i32)));
        arguments.push(self.epsilon.into());
        arguments.push(has.into());
        let blocks = (qkv.rows * (heads + 2 * kv_heads)).div_ceil(WARPS);
        let shape = Shape::rows(blocks as u32, 32 * WARPS as u32);
        let kernel = if APPENDS { T::append_kernel() } else { T::heads_kernel() };
        on(&self.device, |device| device.launch(kernel, shape, &arguments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{Any, Buffer};
    use half::bf16;

    fn numbers(count: usize, salt: usize) -> Vec<bf16> {
        (0..count).map(|i| bf16::from_f32(((i * 7919 + salt * 31) % 211) as f32 / 64.0 - 1.6)).collect()
    }

    fn placed<T: device::Element>(device: &mut Any, values: &[T]) -> Buffer<T> {
        let buffer = device.allocate(values.len()).expect("memory");
        device.upload(values, buffer.all()).expect("an upload");
        buffer
    }

    /// Options in the kernel's numbering: bias, norms, rotation.
    #[test]
    fn heads_are_normed_and_rotated_in_f32_and_rounded_once() {
        let (rows, heads, kv_heads, positions) = (3, 4, 2, [0, 5, 9]);
        for (width, has, seed) in
            [(128, 7_i32, 0), (64, 6, 1), (20, 5, 2), (256, 4, 3), (16, 0, 0), (128, 2, 1)]
        {
            let mut device = Any::for_tests(seed).expect("a device");
            device.reserve(1 << 20).expect("memory");
            let (parts, half) = (heads + 2 * kv_heads, width / 2);
            let [qkv, bias] = [numbers(rows * parts * width, 1), numbers(parts * width, 2)];
            let norms = [numbers(width, 3), numbers(width, 4)];
            let angle = |at: usize| (at / half) as f32 * 0.7_f32.powi((at % half) as i32);
            let tables = [f32::cos, f32::sin]
                .map(|turn| (0..10 * half).map(|at| turn(angle(at))).collect::<Vec<f32>>());
            let out = [heads, kv_heads, kv_heads].map(|count| numbers(rows * count * width, 5));
            let out = out.each_ref().map(|values| placed(&mut device, values));
            let inputs = [&qkv, &bias, &norms[0], &norms[1]].map(|values| placed(&mut device, values));
            let placed_tables = tables.each_ref().map(|values| placed(&mut device, values));
            let places = placed(&mut device, &positions);
            let mut arguments: Vec<device::Argument<'_>> = out.iter().map(Into::into).collect();
            arguments.extend(inputs.iter().map(device::Argument::from));
            arguments.extend(placed_tables.iter().map(device::Argument::from));
            arguments.push((&places).into());
            arguments.extend([rows, heads, kv_heads, width].map(|size| device::Argument::from(size as i32)));
            arguments.push(1e-6_f32.into());
            arguments.push(has.into());
            let shape = Shape::rows((rows * parts).div_ceil(2) as u32, 64);
            device.launch(bf16::heads_kernel(), shape, &arguments).expect("a launch");
            let read = |device: &mut Any, buffer: &Buffer<bf16>| {
                let mut values = vec![bf16::ZERO; buffer.len()];
                device.download(buffer.all(), &mut values).expect("a download");
                values
            };
            let found = out.each_ref().map(|buffer| read(&mut device, buffer));
            // Into a cache, with one row that is not stored.
            let slots = [4, -1, 1];
            let cache = [0, 1].map(|side| numbers(5 * kv_heads * width, 6 + side));
            let [keys, stored] = cache.each_ref().map(|values| placed(&mut device, values));
            let slots_there = placed(&mut device, &slots);
            let query = placed(&mut device, &numbers(rows * heads * width, 8));
            arguments[..3].copy_from_slice(&[(&query).into(), (&keys).into(), (&stored).into()]);
            arguments.insert(10, (&slots_there).into());
            device.launch(bf16::append_kernel(), shape, &arguments).expect("a launch");
            assert_eq!(read(&mut device, &query), found[0], "{width}, {has}");
            for (side, place) in [keys, stored].iter().enumerate() {
                let mut wanted = cache[side].clone();
                for (row, &slot) in slots.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
                    let own = kv_heads * width;
                    wanted[slot as usize * own..][..own]
                        .copy_from_slice(&found[1 + side][row * own..][..own]);
                }
                assert_eq!(read(&mut device, place), wanted, "{width}, {has}: side {side}");
            }
            for row in 0..rows {
                for head in 0..parts {
                    let (kind, first) = match head {
                        query if query < heads => (0, 0),
                        key if key < heads + kv_heads => (1, heads),
                        _ => (2, heads + kv_heads),
                    };
                    let mut x: Vec<f64> = (0..width)
                        .map(|i| {
                            let value = qkv[(row * parts + head) * width + i];
                            match has & 1 {
                                0 => value.to_f64(),
                                _ => {
                                    bf16::from_f32(value.to_f32() + bias[head * width + i].to_f32()).to_f64()
                                }
                            }
                        })
                        .collect();
                    if has & 2 != 0 && kind < 2 {
                        let mean = x.iter().map(|x| x * x).sum::<f64>() / width as f64;
                        let scale = (mean + 1e-6).sqrt().recip();
                        x.iter_mut().zip(&norms[kind]).for_each(|(x, norm)| *x *= scale * norm.to_f64());
                    }
                    if has & 4 != 0 && kind < 2 {
                        for i in 0..half {
                            let at = positions[row] as usize * half + i;
                            let (cos, sin) = (f64::from(tables[0][at]), f64::from(tables[1][at]));
                            let (a, b) = (x[i], x[i + half]);
                            (x[i], x[i + half]) = (a * cos - b * sin, b * cos + a * sin);
                        }
                    }
                    let count = if kind == 0 { heads } else { kv_heads };
                    let own = &found[kind][(row * count + head - first) * width..][..width];
                    for (i, (own, wanted)) in own.iter().zip(&x).enumerate() {
                        // Half a unit in the last place of eight bits.
                        let error = (own.to_f64() - wanted).abs();
                        assert!(
                            error <= wanted.abs() / 255.0 + 1e-5,
                            "{width}, {has}: row {row}, head {head}, {i}: {own} {wanted}"
                        );
                    }
                }
            }
        }
    }
}
