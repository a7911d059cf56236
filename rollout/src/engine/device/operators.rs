//! The operators of the paged graph on a device: products by the device's own library, norms of the residual stream and SwiGLU
//! by our kernels (`kernels/operators.cu`). ONNX Runtime owns their tensors and decides the order; all of it is enqueued in the
//! stream that it works in, so it can be captured with the rest. `policy::graph` has their inputs and outputs.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use device::{Device, Gemm, Operand, Shape, Slice};
use ort::sys::ONNXTensorElementDataType;
use record::failure::Result;

use super::config::Activation;
use super::paged_attention::PagedAttention;
use super::session::Provider;
use crate::engine::custom_op::{Call, Domain, Kernel, Node, Operator, Outcome};
use crate::engine::onnx::Element;
use crate::runtime;

/// A handle on the device, for the operators of a session.
pub type Shared<D> = Arc<Mutex<D>>;

/// The operators of a graph of `T`, on a device of their own handle.
///
/// # Errors
/// 69 without ONNX Runtime or memory for the workspace of products, 1 where ONNX Runtime refuses.
pub fn domain<D: Device, T: Activation>(device: &D, provider: Provider) -> Result<Domain<Shared<D>>> {
    runtime::environment()?;
    let mut own = device.beside()?;
    own.reserve(own.workspace())?;
    let shared = Arc::new(Mutex::new(own));
    let operators = match provider {
        Provider::Cpu => vec![
            Operator::new::<Product<D, T, T>>(shared.clone()),
            Operator::new::<Product<D, T, Stream>>(shared.clone()),
            Operator::new::<RmsNorm<D, T>>(shared.clone()),
            Operator::new::<SwiGlu<D, T>>(shared.clone()),
            Operator::new::<PagedAttention<Shared<D>>>(shared),
        ],
        Provider::Cuda { .. } => vec![
            Operator::on_cuda::<Product<D, T, T>>(shared.clone()),
            Operator::on_cuda::<Product<D, T, Stream>>(shared.clone()),
            Operator::on_cuda::<RmsNorm<D, T>>(shared.clone()),
            Operator::on_cuda::<SwiGlu<D, T>>(shared),
        ],
    };
    Domain::new(operators)
}

/// What a product's result is: an activation, or the residual stream.
trait Output {
    type Value: device::Element + Element;
    const NAME: &'static CStr;
}

impl<T: Activation> Output for T {
    type Value = T;
    const NAME: &'static CStr = c"Linear";
}

/// The residual stream, which is f32.
struct Stream;

impl Output for Stream {
    type Value = f32;
    const NAME: &'static CStr = c"ResidualLinear";
}

/// Rows of a tensor that ONNX Runtime owns.
struct Rows<'a, T: device::Element> {
    rows: usize,
    width: usize,
    values: Slice<'a, T>,
}

/// A tensor of the running call.
///
/// # Safety
/// `T` is its type, and it is on the device.
unsafe fn values<'a, T: device::Element>(shape: &[i64], data: *mut T) -> Slice<'a, T> {
    let count = shape.iter().product::<i64>() as usize;
    // SAFETY: ONNX Runtime keeps it until the work is done that is enqueued in its stream, which is the device's.
    unsafe { Slice::foreign(data as u64, count) }
}

/// An input of rows.
///
/// # Safety
/// As [`values`].
unsafe fn rows<'a, T: device::Element>(call: &Call, index: usize) -> Outcome<Option<Rows<'a, T>>> {
    let Some((shape, data)) = call.input::<T>(index)? else { return Ok(None) };
    let &[rows, width] = shape else {
        return Err(format!("a tensor of shape {shape:?} where rows are expected"));
    };
    // SAFETY: the caller's promise.
    let values = unsafe { values(shape, data) };
    Ok(Some(Rows { rows: rows as usize, width: width as usize, values }))
}

/// Does `work` on the device.
fn on<D: Device>(shared: &Shared<D>, work: impl FnOnce(&mut D) -> Result<()>) -> Outcome<()> {
    // Nothing panics while it is held.
    let mut device = shared.lock().unwrap_or_else(PoisonError::into_inner);
    work(&mut device).map_err(|failure| failure.message)
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
        // SAFETY: the types are those that ONNX Runtime was told; all is where the operator computes.
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
        let outputs = weight.rows;
        let product = Gemm::new(
            Operand::new(input.values, input.width),
            Operand::new(weight.values, weight.width).transposed(),
            Operand::new(out, outputs),
            [input.rows, outputs, input.width],
        );
        let product = match addend {
            Some(addend) => product.plus(Operand::new(addend.values, addend.width)),
            None => product,
        };
        on(&self.device, |device| device.gemm(&product))
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
        // SAFETY: as in `Product`.
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
        // SAFETY: as in `Product`.
        let (input, out, width) = unsafe {
            let input = rows::<T>(call, 0)?.ok_or("a tensor is missing")?;
            let shape = [input.rows as i64, (input.width / 2) as i64];
            let out: Slice<'_, T> = values(&shape, call.output::<T>(0, &shape)?);
            let width = input.width / 2;
            (input, out, width)
        };
        // The kernel takes rows as the second extent of its grid, which ends at 65,535.
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
