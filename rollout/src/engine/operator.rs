//! The operators of the decoder's graph that are our own, through ONNX Runtime's C interface.
//!
//! `SharedPrefixAttention`, `Linear`, `SwiGlu` and `LowRank` are described with the graph (`policy::graph`). One session runs on many
//! threads; what differs between them, keys and values above all, is lent to the operators for the time of a run through a
//! thread-local pointer: with one thread a run, ONNX Runtime calls the operators on the thread that called it.

use super::attention::{Layer, Pass, Tensors};
use super::custom::{BASE, Custom, Domain, Outcome, floats, guarded, one, plain, three, two};
use super::isa::Kernels;
use super::linear::{self, LinearNode, Linears};
use super::low_rank::{self, LowRankNode};
use super::values::check;
use ort::sys::*;
use record::failure::Result;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;

thread_local! {
    static LENT: Cell<*mut Pass> = const { Cell::new(ptr::null_mut()) };
}

/// Takes the pass back from the operators when dropped.
pub struct Lent<'a>(std::marker::PhantomData<&'a mut Pass>);

/// Lends a pass to the operators that run on this thread, until the result is dropped.
pub fn lend(pass: &mut Pass) -> Lent<'_> {
    LENT.set(pass);
    Lent(std::marker::PhantomData)
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        LENT.set(ptr::null_mut());
    }
}

/// What ONNX Runtime sees of an operator, and what is behind it.
#[repr(C)]
pub struct Operator {
    base: OrtCustomOp,
    kernels: Kernels,
    linears: Option<Arc<Linears>>,
}

impl Custom for Operator {
    fn base(&self) -> &OrtCustomOp {
        &self.base
    }
}

/// The graph's own operators, run by these kernels.
pub fn domain(kernels: Kernels, linears: Option<Arc<Linears>>) -> Result<Domain<Operator>> {
    let descriptions = [ATTENTION, LINEAR, SWIGLU, LOW_RANK];
    Domain::new(descriptions.map(|base| Operator { base, kernels, linears: linears.clone() }).into())
}

const ATTENTION: OrtCustomOp = OrtCustomOp {
    GetName: Some(attention_name),
    GetInputTypeCount: Some(three),
    CreateKernelV2: Some(attention_create),
    KernelComputeV2: Some(attention_compute),
    KernelDestroy: Some(attention_destroy),
    ..BASE
};

const LINEAR: OrtCustomOp = OrtCustomOp {
    GetName: Some(linear_name),
    GetInputTypeCount: Some(one),
    CreateKernelV2: Some(linear_create),
    KernelComputeV2: Some(linear::compute),
    KernelDestroy: Some(linear::destroy),
    ..BASE
};

const SWIGLU: OrtCustomOp = OrtCustomOp {
    GetName: Some(swiglu_name),
    GetInputTypeCount: Some(one),
    CreateKernelV2: Some(swiglu_create),
    KernelComputeV2: Some(swiglu_compute),
    KernelDestroy: Some(swiglu_destroy),
    ..BASE
};

const LOW_RANK: OrtCustomOp = OrtCustomOp {
    GetName: Some(low_rank_name),
    GetInputTypeCount: Some(two),
    CreateKernelV2: Some(low_rank_create),
    KernelComputeV2: Some(low_rank::compute),
    KernelDestroy: Some(low_rank::destroy),
    ..BASE
};

unsafe extern "system" fn attention_name(_: *const OrtCustomOp) -> *const c_char {
    c"SharedPrefixAttention".as_ptr()
}

unsafe extern "system" fn linear_name(_: *const OrtCustomOp) -> *const c_char {
    c"Linear".as_ptr()
}

unsafe extern "system" fn swiglu_name(_: *const OrtCustomOp) -> *const c_char {
    c"SwiGlu".as_ptr()
}

unsafe extern "system" fn low_rank_name(_: *const OrtCustomOp) -> *const c_char {
    c"LowRank".as_ptr()
}

/// An input as `[rows, width]`, and its address.
///
/// # Safety
///
/// The context is that of the running call.
pub unsafe fn input(context: *mut OrtKernelContext, index: usize) -> Outcome<(usize, usize, *const f32)> {
    let mut value = ptr::null();
    // SAFETY: the context is that of the running call.
    let (shape, data) = unsafe {
        plain(check((ort::api().KernelContext_GetInput)(context, index, &mut value)))?;
        floats(value)?
    };
    let [rows, width] = shape[..] else {
        return Err(format!("a tensor of shape {shape:?} where rows are expected"));
    };
    Ok((rows as usize, width as usize, data))
}

/// The output as `[rows, width]`.
///
/// # Safety
///
/// The context is that of the running call.
pub unsafe fn output(context: *mut OrtKernelContext, rows: usize, width: usize) -> Outcome<*mut f32> {
    let shape = [rows as i64, width as i64];
    let mut value = ptr::null_mut();
    let mut data = ptr::null_mut();
    // SAFETY: the context is that of the running call.
    unsafe {
        plain(check((ort::api().KernelContext_GetOutput)(context, 0, shape.as_ptr(), 2, &mut value)))?;
        plain(check((ort::api().GetTensorMutableData)(value, &mut data)))?;
    }
    Ok(data.cast())
}

/// An attribute of a node.
///
/// # Safety
///
/// `info` is that of the node being made.
pub unsafe fn integer(info: *const OrtKernelInfo, name: &CStr) -> Outcome<usize> {
    let mut value = 0;
    // SAFETY: the caller's promise.
    plain(check(unsafe { (ort::api().KernelInfoGetAttribute_int64)(info, name.as_ptr(), &mut value) }))?;
    usize::try_from(value).map_err(|_| format!("attribute {name:?} is {value}"))
}

/// The pass that is lent to the operators on this thread.
///
/// # Safety
///
/// One node at a time may hold it.
pub unsafe fn lent<'a>() -> Outcome<&'a mut Pass> {
    let pass = LENT.get();
    if pass.is_null() {
        return Err("no decoder lends its keys and values on this thread".to_owned());
    }
    // SAFETY: `lend` borrowed it exclusively for this run, and nodes of a run follow each other on this thread.
    Ok(unsafe { &mut *pass })
}

/// An attention node of the graph.
struct AttentionNode {
    layer: Layer,
    head_size: usize,
    kernels: Kernels,
}

impl AttentionNode {
    unsafe fn new(operator: &Operator, info: *const OrtKernelInfo) -> Outcome<Self> {
        let api = ort::api();
        // SAFETY: `info` is that of the node being made; so below.
        let integer = |name: &CStr| unsafe { integer(info, name) };
        let mut epsilon = 0.0;
        // SAFETY: as above.
        plain(check(unsafe { (api.KernelInfoGetAttribute_float)(info, c"epsilon".as_ptr(), &mut epsilon) }))?;
        let head_size = integer(c"head_dim")?;
        let gain = |index: usize| {
            let (mut constant, mut value) = (0, ptr::null());
            // SAFETY: as above; a constant lives as long as the session.
            unsafe {
                plain(check((api.KernelInfoGetConstantInput_tensor)(
                    info,
                    index,
                    &mut constant,
                    &mut value,
                )))?;
                let (shape, data) = floats(value)?;
                if constant == 0 || shape != [head_size as i64] {
                    return Err(format!("input {index} is not a constant of {head_size} numbers"));
                }
                Ok(std::slice::from_raw_parts(data, head_size).to_vec())
            }
        };
        let normalised = integer(c"qk_norm")? == 1;
        let layer = Layer {
            index: integer(c"layer")?,
            heads: integer(c"num_heads")?,
            kv_heads: integer(c"kv_num_heads")?,
            epsilon,
            query_gain: normalised.then(|| gain(1)).transpose()?,
            key_gain: normalised.then(|| gain(2)).transpose()?,
        };
        Ok(AttentionNode { layer, head_size, kernels: operator.kernels })
    }

    unsafe fn compute(&self, context: *mut OrtKernelContext) -> Outcome<()> {
        // SAFETY: nodes of a run follow each other on this thread.
        let pass = unsafe { lent()? };
        let Layer { heads, kv_heads, .. } = self.layer;
        // SAFETY: the context is that of the running call.
        let (rows, width, query) = unsafe { input(context, 0)? };
        if rows != pass.plan.rows || width != (heads + 2 * kv_heads) * self.head_size {
            return Err(format!("[{rows}, {width}] does not fit a plan of {} rows", pass.plan.rows));
        }
        let shape = pass.arena.shape();
        if (shape.head_size, shape.kv_heads) != (self.head_size, kv_heads) || self.layer.index >= shape.layers
        {
            return Err("the decoder's keys and values are those of another model".to_owned());
        }
        // SAFETY: the sizes were checked above; the scheduler's plan is within its arena by construction.
        unsafe {
            let output = output(context, rows, heads * self.head_size)?;
            let key = query.add(heads * self.head_size);
            let value = key.add(kv_heads * self.head_size);
            let tensors = Tensors { query, key, value, width, output };
            (self.kernels.attention)(pass, &self.layer, tensors);
        }
        Ok(())
    }
}

unsafe extern "system" fn attention_create(
    operator: *const OrtCustomOp,
    _: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: the operator is one of ours, so it is an `Operator`; the kernel goes to `attention_destroy`.
        unsafe {
            let node = AttentionNode::new(&*operator.cast::<Operator>(), info)?;
            *kernel = Box::into_raw(Box::new(node)).cast();
        }
        Ok(())
    })
}

unsafe extern "system" fn attention_compute(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: the kernel was made by `attention_create` and is only ever read.
    guarded(|| unsafe { (*kernel.cast::<AttentionNode>()).compute(context) })
}

unsafe extern "system" fn attention_destroy(kernel: *mut c_void) {
    // SAFETY: made by `attention_create`, destroyed once.
    drop(unsafe { Box::from_raw(kernel.cast::<AttentionNode>()) });
}

unsafe extern "system" fn linear_create(
    operator: *const OrtCustomOp,
    _: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: as in `attention_create`; the kernel goes to `linear::destroy`.
        unsafe {
            let node = LinearNode::new((*operator.cast::<Operator>()).linears.as_ref(), info)?;
            *kernel = Box::into_raw(Box::new(node)).cast();
        }
        Ok(())
    })
}

unsafe extern "system" fn low_rank_create(
    operator: *const OrtCustomOp,
    _: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: as in `attention_create`; the kernel goes to `low_rank::destroy`.
        unsafe {
            let node = LowRankNode::new((*operator.cast::<Operator>()).kernels, info)?;
            *kernel = Box::into_raw(Box::new(node)).cast();
        }
        Ok(())
    })
}

unsafe extern "system" fn swiglu_create(
    operator: *const OrtCustomOp,
    _: *const OrtApi,
    _: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: as in `attention_create`; the operator lives as long as the session and is the kernel.
    unsafe { *kernel = operator.cast_mut().cast() };
    OrtStatusPtr(ptr::null_mut())
}

unsafe extern "system" fn swiglu_compute(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: the kernel is the operator, see `swiglu_create`; sizes are those of the tensors.
        unsafe {
            let kernels = &(*kernel.cast::<Operator>()).kernels;
            let (rows, width, gates) = input(context, 0)?;
            let half = width / 2;
            let output = output(context, rows, half)?;
            for row in 0..rows {
                let gate = gates.add(row * width);
                (kernels.swiglu)(gate, gate.add(half), half, output.add(row * half));
            }
        }
        Ok(())
    })
}

unsafe extern "system" fn swiglu_destroy(_: *mut c_void) {}
