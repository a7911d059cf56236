//! The operators of the graphs on a device: matrix products by the device's library, or by our kernel
//! for few rows; norms of the residual stream and SwiGLU by our kernels (`kernels/operators.cu`). ONNX
//! Runtime owns the tensors and decides the order. All work is enqueued in ONNX Runtime's stream, so it can
//! be captured with the rest. `policy::graph` defines the inputs and outputs.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use device::{Device, Gemm, Operand, Shape, Slice};
use ort::sys::ONNXTensorElementDataType;
use record::failure::Result;

use super::config::Activation;
use super::decode_attention::DecodeAttention;
use super::heads::SplitHeads;
use super::paged_attention::PagedAttention;
use super::prefill_attention::PrefillAttention;
use super::session::Provider;
use crate::engine::custom_op::{Call, Domain, Kernel, Node, Operator, Outcome};
use crate::engine::onnx::Element;
use crate::runtime;

/// A device handle, shared by the operators of a session.
pub type Shared<D> = Arc<Mutex<D>>;

/// A separate handle of the device, for the operators of a policy.
///
/// # Errors
/// 69: no memory for the workspace of products.
pub fn shared<D: Device>(device: &D) -> Result<Shared<D>> {
    let mut own = device.beside()?;
    own.reserve(own.workspace())?;
    Ok(Arc::new(Mutex::new(own)))
}

/// The operators of a graph of `T`.
pub fn domain<D: Device, T: Activation>(shared: &Shared<D>, provider: Provider) -> Result<Domain<Shared<D>>> {
    runtime::environment()?;
    let operators = match provider {
        Provider::Cpu => vec![
            Operator::new::<Product<D, T, T>>(shared.clone()),
            Operator::new::<Product<D, T, Stream>>(shared.clone()),
            Operator::new::<RmsNorm<D, T>>(shared.clone()),
            Operator::new::<SwiGlu<D, T>>(shared.clone()),
            Operator::new::<SplitHeads<D, T, false>>(shared.clone()),
            Operator::new::<SplitHeads<D, T, true>>(shared.clone()),
            Operator::new::<PrefillAttention<D, T>>(shared.clone()),
            Operator::new::<DecodeAttention<D, T>>(shared.clone()),
            Operator::new::<PagedAttention<Shared<D>>>(shared.clone()),
        ],
        Provider::Cuda { .. } => vec![
            Operator::on_cuda::<Product<D, T, T>>(shared.clone()),
            Operator::on_cuda::<Product<D, T, Stream>>(shared.clone()),
            Operator::on_cuda::<RmsNorm<D, T>>(shared.clone()),
            Operator::on_cuda::<SwiGlu<D, T>>(shared.clone()),
            Operator::on_cuda::<SplitHeads<D, T, false>>(shared.clone()),
            Operator::on_cuda::<SplitHeads<D, T, true>>(shared.clone()),
            Operator::on_cuda::<PrefillAttention<D, T>>(shared.clone()),
            Operator::on_cuda::<DecodeAttention<D, T>>(shared.clone()),
        ],
    };
    Domain::new(operators)
}

/// The type of a product's result: an activation, or the residual stream.
trait Output {
    type Value: device::Element + Element;
    const NAME: &'static CStr;
    /// Index into [`Activation::few_rows_kernels`].
    const KERNEL: usize;
}

impl<T: Activation> Output for T {
    type Value = T;
    const NAME: &'static CStr = c"Linear";
    const KERNEL: usize = 0;
}

/// The residual stream, which is f32.
struct Stream;

impl Output for Stream {
    type Value = f32;
    const NAME: &'static CStr = c"ResidualLinear";
    const KERNEL: usize = 1;
}

/// A tensor of rows that ONNX Runtime owns.
pub(super) struct Rows<'a, T: device::Element> {
    pub rows: usize,
    pub width: usize,
    pub values: Slice<'a, T>,
}

/// A tensor of the current call.
///
/// # Safety
/// It must have type `T` and be on the device.
pub(super) unsafe fn values<'a, T: device::Element>(shape: &[i64], data: *mut T) -> Slice<'a, T> {
    let count = shape.iter().product::<i64>() as usize;
    // SAFETY: ONNX Runtime keeps it until the work enqueued in its stream, which is the device's, is done.
    unsafe { Slice::foreign(data as u64, count) }
}

/// An input of rows.
///
/// # Safety
/// See [`values`].
pub(super) unsafe fn rows<'a, T: device::Element>(call: &Call, index: usize) -> Outcome<Option<Rows<'a, T>>> {
    let Some((shape, data)) = call.input::<T>(index)? else { return Ok(None) };
    let &[rows, width] = shape else {
        return Err(format!("a tensor of shape {shape:?} where rows are expected"));
    };
    // SAFETY: the caller's promise.
    let values = unsafe { values(shape, data) };
    Ok(Some(Rows { rows: rows as usize, width: width as usize, values }))
}

/// Runs `work` on the device.
pub(super) fn on<D: Device>(shared: &Shared<D>, work: impl FnOnce(&mut D) -> Result<()>) -> Outcome<()> {
    // No code panics while holding it.
    let mut device = shared.lock().unwrap_or_else(PoisonError::into_inner);
    work(&mut device).map_err(|failure| failure.message)
}

/// Most rows for which our kernel computes a product. With so little arithmetic only the speed of reading
/// weights matters, and it reads them at memory speed.
const FEW: usize = 4;

/// `out = addend + input · weightᵀ`, with `kernel`, if there is one and the rows are few.
fn product<D: Device, T: Activation, O: device::Element>(
    device: &mut D,
    kernel: Option<&'static device::Kernel>,
    input: &Rows<'_, T>,
    weight: &Rows<'_, T>,
    addend: Option<Slice<'_, O>>,
    out: Slice<'_, O>,
) -> Result<()> {
    let (inputs, outputs) = (input.width, weight.rows);
    let few = input.rows <= FEW && inputs.is_multiple_of(8);
    if let Some(kernel) = kernel.filter(|_| few) {
        const WARPS: usize = 4;
        let arguments = [
            out.into(),
            input.values.into(),
            weight.values.into(),
            addend.unwrap_or(out).into(),
            (input.rows as i32).into(),
            (inputs as i32).into(),
            (outputs as i32).into(),
            i32::from(addend.is_some()).into(),
        ];
        let shape = Shape::rows(outputs.div_ceil(WARPS) as u32, 32 * WARPS as u32);
        return device.launch(kernel, shape, &arguments);
    }
    let product = Gemm::new(
        Operand::new(input.values, inputs),
        Operand::new(weight.values, inputs).transposed(),
        Operand::new(out, outputs),
        [input.rows, outputs, inputs],
    );
    device.gemm(&addend.map_or(product, |addend| product.plus(Operand::new(addend, outputs))))
}

/// `out = addend + input · weightᵀ`.
struct Product<D, T, O> {
    device: Shared<D>,
    types: PhantomData<(T, O)>,
}

impl<D: Device, T: Activation, O: Output> Kernel for Product<D, T, O> {
    type Shared = Shared<D>;
    const NAME: &'static CStr = O::NAME;
    const INPUTS: usize = 3;

    fn input_type(index: usize) -> ONNXTensorElementDataType {
        if index == 2 { O::Value::TYPE } else { <T as Element>::TYPE }
    }

    fn output_type() -> ONNXTensorElementDataType {
        O::Value::TYPE
    }

    fn new(device: &Shared<D>, _: &Node) -> Outcome<Self> {
        Ok(Product { device: device.clone(), types: PhantomData })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let missing = "a tensor is missing";
        // SAFETY: these are the declared types, and all tensors are in the memory
        // where the operator computes.
        let (input, weight, addend, out) = unsafe {
            let input = rows::<T>(call, 0)?.ok_or(missing)?;
            let weight = rows::<T>(call, 1)?.ok_or(missing)?;
            let shape = [input.rows as i64, weight.rows as i64];
            let out = call.output::<O::Value>(0, &shape)?;
            (input, weight, rows::<O::Value>(call, 2)?, values(&shape, out))
        };
        if input.width != weight.width {
            return Err(format!("rows of {} for a matrix of {}", input.width, weight.width));
        }
        if input.rows == 0 {
            return Ok(());
        }
        let kernel = T::few_rows_kernels().map(|kernels| kernels[O::KERNEL]);
        on(&self.device, |device| {
            product(device, kernel, &input, &weight, addend.map(|rows| rows.values), out)
        })
    }
}

/// The RMS norm of the residual stream.
struct RmsNorm<D, T> {
    device: Shared<D>,
    epsilon: f32,
    types: PhantomData<T>,
}

impl<D: Device, T: Activation> Kernel for RmsNorm<D, T> {
    type Shared = Shared<D>;
    const NAME: &'static CStr = c"RmsNorm";
    const INPUTS: usize = 2;

    fn input_type(index: usize) -> ONNXTensorElementDataType {
        if index == 0 { f32::TYPE } else { <T as Element>::TYPE }
    }

    fn output_type() -> ONNXTensorElementDataType {
        <T as Element>::TYPE
    }

    fn new(device: &Shared<D>, node: &Node) -> Outcome<Self> {
        Ok(RmsNorm { device: device.clone(), epsilon: node.float(c"epsilon")?, types: PhantomData })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let missing = "a tensor is missing";
        // SAFETY: see `Product`.
        let (input, weight, out) = unsafe {
            let input = rows::<f32>(call, 0)?.ok_or(missing)?;
            let (shape, weight) = call.input::<T>(1)?.ok_or(missing)?;
            let weight: Slice<'_, T> = values(shape, weight);
            let shape = [input.rows as i64, input.width as i64];
            let out = call.output::<T>(0, &shape)?;
            (input, weight, values(&shape, out))
        };
        if weight.len() != input.width {
            return Err(format!("{} weights for rows of {}", weight.len(), input.width));
        }
        if input.rows == 0 {
            return Ok(());
        }
        let arguments = [
            out.into(),
            input.values.into(),
            weight.into(),
            (input.width as i32).into(),
            self.epsilon.into(),
        ];
        let threads = input.width.div_ceil(4).next_multiple_of(32).clamp(32, 512);
        let shape = Shape::rows(input.rows as u32, threads as u32);
        on(&self.device, |device| device.launch(T::norm_kernel(), shape, &arguments))
    }
}

/// `silu(gate) * up`.
struct SwiGlu<D, T> {
    device: Shared<D>,
    types: PhantomData<T>,
}

impl<D: Device, T: Activation> Kernel for SwiGlu<D, T> {
    type Shared = Shared<D>;
    const NAME: &'static CStr = c"SwiGlu";
    const INPUTS: usize = 1;

    fn input_type(_: usize) -> ONNXTensorElementDataType {
        <T as Element>::TYPE
    }

    fn output_type() -> ONNXTensorElementDataType {
        <T as Element>::TYPE
    }

    fn new(device: &Shared<D>, _: &Node) -> Outcome<Self> {
        Ok(SwiGlu { device: device.clone(), types: PhantomData })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        const THREADS: usize = 128;
        // SAFETY: see `Product`.
        let (input, out, width) = unsafe {
            let input = rows::<T>(call, 0)?.ok_or("a tensor is missing")?;
            let shape = [input.rows as i64, (input.width / 2) as i64];
            let out: Slice<'_, T> = values(&shape, call.output::<T>(0, &shape)?);
            let width = input.width / 2;
            (input, out, width)
        };
        // The kernel's grid has rows in its second dimension, which is limited to 65,535.
        for first in (0..input.rows).step_by(65_535) {
            let count = (input.rows - first).min(65_535);
            let arguments = [
                out.slice(first * width..(first + count) * width).into(),
                input.values.slice(2 * first * width..2 * (first + count) * width).into(),
                (width as i32).into(),
            ];
            let parts = width.div_ceil(8 * THREADS) as u32;
            let shape = Shape { grid: [parts, count as u32, 1], block: [THREADS as u32, 1, 1], shared: 0 };
            on(&self.device, |device| device.launch(T::glu_kernel(), shape, &arguments))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels;
    use device::{Any, Buffer, GEMM_WORKSPACE};
    use half::bf16;

    fn numbers(count: usize, salt: usize) -> Vec<bf16> {
        (0..count).map(|i| bf16::from_f32(((i * 7919 + salt * 31) % 211) as f32 / 64.0 - 1.6)).collect()
    }

    fn opened(seed: u64) -> Any {
        let mut device = Any::for_tests(seed).expect("a device");
        device.reserve(GEMM_WORKSPACE + (8 << 20)).expect("memory");
        device
    }

    fn placed<T: device::Element>(device: &mut Any, values: &[T]) -> Buffer<T> {
        let buffer = device.allocate(values.len()).expect("memory");
        device.upload(values, buffer.all()).expect("an upload");
        buffer
    }

    fn read<T: device::Element + Default>(device: &mut Any, buffer: &Buffer<T>) -> Vec<T> {
        let mut values = vec![T::default(); buffer.len()];
        device.download(buffer.all(), &mut values).expect("a download");
        values
    }

    #[test]
    fn products_of_few_rows_are_those_of_many_and_have_the_same_bits_in_any_company() {
        let (inputs, outputs) = (264, 37);
        let (x, w) = (numbers(FEW * inputs, 1), numbers(outputs * inputs, 2));
        let addend: Vec<f32> = numbers(FEW * outputs, 3).into_iter().map(bf16::to_f32).collect();
        let rounded: Vec<bf16> = addend.iter().copied().map(bf16::from_f32).collect();
        let wanted = |row: usize, column: usize| -> f64 {
            let pairs = x[row * inputs..][..inputs].iter().zip(&w[column * inputs..][..inputs]);
            pairs.map(|(a, b)| a.to_f64() * b.to_f64()).sum()
        };
        for seed in Any::test_seeds() {
            let mut device = opened(seed);
            let (x, w) = (placed(&mut device, &x), placed(&mut device, &w));
            let (wide, narrow) = (placed(&mut device, &addend), placed(&mut device, &rounded));
            let weight = Rows { rows: outputs, width: inputs, values: w.all() };
            let mut all: Vec<f32> = Vec::new();
            for rows in (1..=FEW).rev() {
                let input = Rows { rows, width: inputs, values: x.slice(..rows * inputs) };
                let out = device.allocate::<f32>(rows * outputs).expect("memory");
                let sum = Some(wide.slice(..rows * outputs));
                let kernel = Some(&kernels::FEW_ROWS_STREAM);
                product(&mut device, kernel, &input, &weight, sum, out.all()).expect("a product");
                let found = read(&mut device, &out);
                for (at, found) in found.iter().enumerate() {
                    let wanted = wanted(at / outputs, at % outputs) + f64::from(addend[at]);
                    assert!((f64::from(*found) - wanted).abs() < 1e-3, "{rows} rows, {at}: {found} {wanted}");
                }
                if rows == FEW {
                    all = found;
                } else {
                    assert_eq!(found, all[..rows * outputs], "{rows} rows");
                }
                let out = device.allocate::<bf16>(rows * outputs).expect("memory");
                for sum in [None, Some(narrow.slice(..rows * outputs))] {
                    let kernel = Some(&kernels::FEW_ROWS_BF16);
                    product(&mut device, kernel, &input, &weight, sum, out.all()).expect("a product");
                    for (at, found) in read(&mut device, &out).iter().enumerate() {
                        let added = if sum.is_some() { rounded[at].to_f64() } else { 0.0 };
                        let wanted = wanted(at / outputs, at % outputs) + added;
                        let error = (found.to_f64() - wanted).abs();
                        assert!(error <= wanted.abs() / 256.0 + 1e-3, "{rows} rows, {at}: {found} {wanted}");
                    }
                }
            }
        }
    }

    #[test]
    fn norms_and_swiglu_are_rounded_once_for_any_width() {
        for (rows, width, seed) in [(3, 264, 0), (2, 70, 1), (5, 33, 2), (1, 2048, 3)] {
            let mut device = opened(seed);
            let x: Vec<f32> = numbers(rows * width, 4).into_iter().map(bf16::to_f32).collect();
            let (weight, gate_up) = (numbers(width, 5), numbers(rows * 2 * width, 6));
            let (stream, weights) = (placed(&mut device, &x), placed(&mut device, &weight));
            let both = placed(&mut device, &gate_up);
            let out = device.allocate::<bf16>(rows * width).expect("memory");
            let arguments =
                [(&out).into(), (&stream).into(), (&weights).into(), (width as i32).into(), 1e-6_f32.into()];
            device.launch(bf16::norm_kernel(), Shape::rows(rows as u32, 64), &arguments).expect("a launch");
            let near = |found: &[bf16], wanted: &dyn Fn(usize, usize) -> f64| {
                for (at, found) in found.iter().enumerate() {
                    let wanted = wanted(at / width, at % width);
                    // Half a unit in the last place of eight bits.
                    let error = (found.to_f64() - wanted).abs();
                    assert!(error <= wanted.abs() / 255.0 + 1e-6, "{width}, {at}: {found} {wanted}");
                }
            };
            near(&read(&mut device, &out), &|row, column| {
                let row = &x[row * width..][..width];
                let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / width as f64;
                f64::from(row[column]) / (mean + 1e-6).sqrt() * weight[column].to_f64()
            });
            let arguments = [(&out).into(), (&both).into(), (width as i32).into()];
            let shape = Shape { grid: [2, rows as u32, 1], block: [32, 1, 1], shared: 0 };
            device.launch(bf16::glu_kernel(), shape, &arguments).expect("a launch");
            near(&read(&mut device, &out), &|row, column| {
                let (gate, up) = (gate_up[2 * row * width + column], gate_up[(2 * row + 1) * width + column]);
                gate.to_f64() / (1.0 + (-gate.to_f64()).exp()) * up.to_f64()
            });
        }
    }
}
