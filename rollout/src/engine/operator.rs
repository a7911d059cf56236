//! The two operators of the decoder's graph that are our own, through ONNX Runtime's C interface.
//!
//! `SharedPrefixAttention` and `SwiGlu` are described with the graph (`policy::graph`). The C interface is used because
//! its kernels take a shared reference: one session may then run on many threads. What differs between threads, keys
//! and values above all, is lent to the operators for the time of a run through a thread-local pointer: with one
//! thread a run, ONNX Runtime calls the operators on the thread that called it.

use super::attention::{Layer, Pass, Tensors};
use super::isa::Kernels;
use super::session::check;
use ort::sys::*;
use policy::graph::DOMAIN;
use record::failure::Result;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

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

/// Our operators as a session knows them. Must outlive every session that it was registered with.
pub struct Domain {
    domain: *mut OrtCustomOpDomain,
    /// ONNX Runtime keeps their addresses: the vector never grows.
    _operators: Vec<Operator>,
}

// SAFETY: nothing in it is changed after it was made.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// The operators, run by these kernels.
    pub fn new(kernels: Kernels) -> Result<Self> {
        let name = CString::new(DOMAIN).expect("the domain's name has no zero byte");
        let mut domain = ptr::null_mut();
        // SAFETY: `domain` receives a handle that is released when this is dropped; the operators live as long.
        unsafe { check((ort::api().CreateCustomOpDomain)(name.as_ptr(), &mut domain))? };
        let operators = vec![Operator::attention(kernels), Operator::swiglu(kernels)];
        let made = Domain { domain, _operators: operators };
        for operator in &made._operators {
            // SAFETY: both are alive, and `base` is the operator's first field.
            unsafe { check((ort::api().CustomOpDomain_Add)(domain, &operator.base))? };
        }
        Ok(made)
    }

    /// Makes the operators known to a session.
    pub fn register(&self, options: *mut OrtSessionOptions) -> Result<()> {
        // SAFETY: the options are those of a builder that is alive.
        unsafe { check((ort::api().AddCustomOpDomain)(options, self.domain)) }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made in `new`, released once, after the session.
        unsafe { (ort::api().ReleaseCustomOpDomain)(self.domain) }
    }
}

/// What ONNX Runtime sees of an operator, and the kernels behind it.
#[repr(C)]
struct Operator {
    base: OrtCustomOp,
    kernels: Kernels,
}

const FLOAT: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
type Characteristic = OrtCustomOpInputOutputCharacteristic;

impl Operator {
    fn attention(kernels: Kernels) -> Self {
        Operator {
            base: OrtCustomOp {
                GetName: Some(attention_name),
                GetInputTypeCount: Some(three),
                CreateKernelV2: Some(attention_create),
                KernelComputeV2: Some(attention_compute),
                KernelDestroy: Some(attention_destroy),
                ..BASE
            },
            kernels,
        }
    }

    fn swiglu(kernels: Kernels) -> Self {
        Operator {
            base: OrtCustomOp {
                GetName: Some(swiglu_name),
                GetInputTypeCount: Some(one),
                CreateKernelV2: Some(swiglu_create),
                KernelComputeV2: Some(swiglu_compute),
                KernelDestroy: Some(swiglu_destroy),
                ..BASE
            },
            kernels,
        }
    }
}

/// What both have in common: f32 tensors on CPU, the first input and the output required, any version.
const BASE: OrtCustomOp = OrtCustomOp {
    version: ORT_API_VERSION,
    CreateKernel: None,
    GetName: None,
    GetExecutionProviderType: Some(any_provider),
    GetInputType: Some(float),
    GetInputTypeCount: None,
    GetOutputType: Some(float),
    GetOutputTypeCount: Some(one),
    KernelCompute: None,
    KernelDestroy: None,
    GetInputCharacteristic: Some(first_required),
    GetOutputCharacteristic: Some(first_required),
    GetInputMemoryType: Some(plain_memory),
    GetVariadicInputMinArity: Some(version_one),
    GetVariadicInputHomogeneity: Some(version_one),
    GetVariadicOutputMinArity: Some(version_one),
    GetVariadicOutputHomogeneity: Some(version_one),
    CreateKernelV2: None,
    KernelComputeV2: None,
    InferOutputShapeFn: None,
    GetStartVersion: Some(version_one),
    GetEndVersion: Some(any_version),
    GetMayInplace: None,
    ReleaseMayInplace: None,
    GetAliasMap: None,
    ReleaseAliasMap: None,
};

unsafe extern "system" fn attention_name(_: *const OrtCustomOp) -> *const c_char {
    c"SharedPrefixAttention".as_ptr()
}

unsafe extern "system" fn swiglu_name(_: *const OrtCustomOp) -> *const c_char {
    c"SwiGlu".as_ptr()
}

unsafe extern "system" fn any_provider(_: *const OrtCustomOp) -> *const c_char {
    ptr::null()
}

unsafe extern "system" fn float(_: *const OrtCustomOp, _: usize) -> ONNXTensorElementDataType {
    FLOAT
}

unsafe extern "system" fn one(_: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn three(_: *const OrtCustomOp) -> usize {
    3
}

unsafe extern "system" fn first_required(_: *const OrtCustomOp, index: usize) -> Characteristic {
    if index == 0 { Characteristic::INPUT_OUTPUT_REQUIRED } else { Characteristic::INPUT_OUTPUT_OPTIONAL }
}

unsafe extern "system" fn plain_memory(_: *const OrtCustomOp, _: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn version_one(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn any_version(_: *const OrtCustomOp) -> c_int {
    c_int::MAX
}

type Outcome<T> = std::result::Result<T, String>;

/// Runs a callback; an error or a panic becomes an error of ONNX Runtime, which names the node.
fn guarded(callback: impl FnOnce() -> Outcome<()>) -> OrtStatusPtr {
    let message = match catch_unwind(AssertUnwindSafe(callback)) {
        Ok(Ok(())) => return OrtStatusPtr(ptr::null_mut()),
        Ok(Err(message)) => message,
        Err(_) => "the operator panicked".to_owned(),
    };
    let message = CString::new(message).unwrap_or_default();
    // SAFETY: the text is copied.
    unsafe { (ort::api().CreateStatus)(OrtErrorCode::ORT_FAIL, message.as_ptr()) }
}

fn plain<T>(result: Result<T>) -> Outcome<T> {
    result.map_err(|failure| failure.message)
}

/// Shape and address of a tensor of f32.
unsafe fn floats(value: *const OrtValue) -> Outcome<(Vec<i64>, *mut f32)> {
    if value.is_null() {
        return Err("a tensor is missing".to_owned());
    }
    // SAFETY: `value` is a tensor that lives as long as the call that it was given to.
    unsafe {
        let api = ort::api();
        let mut info = ptr::null_mut();
        plain(check((api.GetTensorTypeAndShape)(value, &mut info)))?;
        let mut count = 0;
        let counted = check((api.GetDimensionsCount)(info, &mut count));
        let mut shape = vec![0; count];
        let read = check((api.GetDimensions)(info, shape.as_mut_ptr(), count));
        (api.ReleaseTensorTypeAndShapeInfo)(info);
        plain(counted.and(read))?;
        let mut data = ptr::null_mut();
        plain(check((api.GetTensorMutableData)(value.cast_mut(), &mut data)))?;
        Ok((shape, data.cast()))
    }
}

/// The first input as `[rows, width]`, and its address.
unsafe fn input(context: *mut OrtKernelContext) -> Outcome<(usize, usize, *const f32)> {
    let mut value = ptr::null();
    // SAFETY: the context is that of the running call.
    let (shape, data) = unsafe {
        plain(check((ort::api().KernelContext_GetInput)(context, 0, &mut value)))?;
        floats(value)?
    };
    let [rows, width] = shape[..] else {
        return Err(format!("a tensor of shape {shape:?} where rows are expected"));
    };
    Ok((rows as usize, width as usize, data))
}

/// The output as `[rows, width]`.
unsafe fn output(context: *mut OrtKernelContext, rows: usize, width: usize) -> Outcome<*mut f32> {
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

/// An attention node of the graph.
struct AttentionNode {
    layer: Layer,
    head_size: usize,
    kernels: Kernels,
}

impl AttentionNode {
    unsafe fn new(operator: &Operator, info: *const OrtKernelInfo) -> Outcome<Self> {
        let api = ort::api();
        let integer = |name: &CStr| {
            let mut value = 0;
            // SAFETY: `info` is that of the node being made; so below.
            plain(check(unsafe { (api.KernelInfoGetAttribute_int64)(info, name.as_ptr(), &mut value) }))?;
            usize::try_from(value).map_err(|_| format!("attribute {name:?} is {value}"))
        };
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
        let pass = LENT.get();
        if pass.is_null() {
            return Err("no decoder lends its keys and values on this thread".to_owned());
        }
        // SAFETY: `lend` borrowed it exclusively for this run, and nodes of a run follow each other on this thread.
        let pass = unsafe { &mut *pass };
        let Layer { heads, kv_heads, .. } = self.layer;
        // SAFETY: the context is that of the running call.
        let (rows, width, query) = unsafe { input(context)? };
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
            let (rows, width, gates) = input(context)?;
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
