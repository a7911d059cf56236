//! Custom operators, through ONNX Runtime's C interface.
//!
//! The kernels of the wrapper crate take `&mut`; these take a shared reference, so that one session
//! can run on many threads.

use super::onnx::check;
use ort::sys::*;
use policy::graph::DOMAIN;
use record::failure::Result;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// An operator's kernel; one instance per node.
pub trait Kernel: Sized {
    /// State shared by all kernels of a session.
    type Shared;
    /// The operator's name.
    const NAME: &'static CStr;
    /// Number of inputs; only the first is required.
    const INPUTS: usize;
    /// Number of outputs; only the first is required.
    const OUTPUTS: usize = 1;

    fn input_type(_index: usize) -> ONNXTensorElementDataType {
        FLOAT
    }

    fn output_type() -> ONNXTensorElementDataType {
        FLOAT
    }

    /// The kernel of a node.
    fn new(shared: &Self::Shared, node: &Node) -> Outcome<Self>;

    /// Runs the node.
    fn compute(&self, call: &Call) -> Outcome<()>;
}

/// An operator in ONNX Runtime's layout, followed by our state.
#[repr(C)]
pub struct Operator<S> {
    base: OrtCustomOp,
    shared: S,
}

impl<S> Operator<S> {
    pub fn new<K: Kernel<Shared = S>>(shared: S) -> Operator<S> {
        Operator { base: description::<K>(), shared }
    }

    /// The operator of a kernel that computes on a GPU, with its tensors in GPU memory.
    pub fn on_cuda<K: Kernel<Shared = S>>(shared: S) -> Operator<S> {
        let base = OrtCustomOp { GetExecutionProviderType: Some(cuda_provider), ..description::<K>() };
        Operator { base, shared }
    }
}

/// A set of operators to register with sessions. Must outlive them.
pub struct Domain<S> {
    domain: *mut OrtCustomOpDomain,
    /// ONNX Runtime keeps their addresses, so the vector never grows.
    _operators: Vec<Operator<S>>,
}

// SAFETY: it is immutable after construction.
unsafe impl<S> Send for Domain<S> {}
// SAFETY: as above.
unsafe impl<S> Sync for Domain<S> {}

impl<S> Domain<S> {
    /// These operators, in our domain.
    pub fn new(operators: Vec<Operator<S>>) -> Result<Domain<S>> {
        let name = CString::new(DOMAIN).expect("the domain's name has no zero byte");
        let mut domain = ptr::null_mut();
        // SAFETY: `domain` receives a handle that is released when this is dropped; the operators live as long.
        unsafe { check((ort::api().CreateCustomOpDomain)(name.as_ptr(), &mut domain))? };
        let made = Domain { domain, _operators: operators };
        for operator in &made._operators {
            // SAFETY: both are alive.
            unsafe { check((ort::api().CustomOpDomain_Add)(domain, &operator.base))? };
        }
        Ok(made)
    }

    /// Registers the operators with a session.
    pub fn register(&self, options: *mut OrtSessionOptions) -> Result<()> {
        // SAFETY: the options belong to a live builder.
        unsafe { check((ort::api().AddCustomOpDomain)(options, self.domain)) }
    }
}

impl<S> Drop for Domain<S> {
    fn drop(&mut self) {
        // SAFETY: made in `new`, released once, after the session.
        unsafe { (ort::api().ReleaseCustomOpDomain)(self.domain) }
    }
}

const FLOAT: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
type Characteristic = OrtCustomOpInputOutputCharacteristic;

const fn description<K: Kernel>() -> OrtCustomOp {
    OrtCustomOp {
        version: ORT_API_VERSION,
        CreateKernel: None,
        GetName: Some(name::<K>),
        GetExecutionProviderType: Some(any_provider),
        GetInputType: Some(input_type::<K>),
        GetInputTypeCount: Some(inputs::<K>),
        GetOutputType: Some(output_type::<K>),
        GetOutputTypeCount: Some(outputs::<K>),
        KernelCompute: None,
        KernelDestroy: Some(destroy::<K>),
        GetInputCharacteristic: Some(first_required),
        GetOutputCharacteristic: Some(first_required),
        GetInputMemoryType: Some(default_memory),
        GetVariadicInputMinArity: Some(version_one),
        GetVariadicInputHomogeneity: Some(version_one),
        GetVariadicOutputMinArity: Some(version_one),
        GetVariadicOutputHomogeneity: Some(version_one),
        CreateKernelV2: Some(create::<K>),
        KernelComputeV2: Some(compute::<K>),
        InferOutputShapeFn: None,
        GetStartVersion: Some(version_one),
        GetEndVersion: Some(any_version),
        GetMayInplace: None,
        ReleaseMayInplace: None,
        GetAliasMap: None,
        ReleaseAliasMap: None,
    }
}

unsafe extern "system" fn name<K: Kernel>(_: *const OrtCustomOp) -> *const c_char {
    K::NAME.as_ptr()
}

unsafe extern "system" fn any_provider(_: *const OrtCustomOp) -> *const c_char {
    ptr::null()
}

unsafe extern "system" fn cuda_provider(_: *const OrtCustomOp) -> *const c_char {
    c"CUDAExecutionProvider".as_ptr()
}

unsafe extern "system" fn input_type<K: Kernel>(
    _: *const OrtCustomOp,
    index: usize,
) -> ONNXTensorElementDataType {
    K::input_type(index)
}

unsafe extern "system" fn output_type<K: Kernel>(
    _: *const OrtCustomOp,
    _: usize,
) -> ONNXTensorElementDataType {
    K::output_type()
}

unsafe extern "system" fn inputs<K: Kernel>(_: *const OrtCustomOp) -> usize {
    K::INPUTS
}

unsafe extern "system" fn outputs<K: Kernel>(_: *const OrtCustomOp) -> usize {
    K::OUTPUTS
}

unsafe extern "system" fn first_required(_: *const OrtCustomOp, index: usize) -> Characteristic {
    if index == 0 { Characteristic::INPUT_OUTPUT_REQUIRED } else { Characteristic::INPUT_OUTPUT_OPTIONAL }
}

unsafe extern "system" fn default_memory(_: *const OrtCustomOp, _: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn version_one(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn any_version(_: *const OrtCustomOp) -> c_int {
    c_int::MAX
}

unsafe extern "system" fn create<K: Kernel>(
    operator: *const OrtCustomOp,
    _: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: the operator is one of ours, so it is an `Operator`; the kernel goes to `destroy`.
        unsafe {
            let made = K::new(&(*operator.cast::<Operator<K::Shared>>()).shared, &Node(info))?;
            *kernel = Box::into_raw(Box::new(made)).cast();
        }
        Ok(())
    })
}

unsafe extern "system" fn compute<K: Kernel>(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: the kernel was made by `create` and is only ever read.
    guarded(|| unsafe { (*kernel.cast::<K>()).compute(&Call(context)) })
}

unsafe extern "system" fn destroy<K: Kernel>(kernel: *mut c_void) {
    // SAFETY: made by `create`, destroyed once.
    drop(unsafe { Box::from_raw(kernel.cast::<K>()) });
}

/// A callback's result.
pub type Outcome<T> = std::result::Result<T, String>;

/// Runs a callback. An error or panic becomes an ONNX Runtime error, which names the node.
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

/// [`check`] for callbacks.
fn checked(status: OrtStatusPtr) -> Outcome<()> {
    check(status).map_err(|failure| failure.message)
}

/// The node that a kernel is being made for.
pub struct Node(*const OrtKernelInfo);

impl Node {
    /// A non-negative integer attribute.
    pub fn integer(&self, name: &CStr) -> Outcome<usize> {
        let mut value = 0;
        // SAFETY: only `create` constructs a `Node`, for the node that ONNX Runtime is creating; also below.
        checked(unsafe { (ort::api().KernelInfoGetAttribute_int64)(self.0, name.as_ptr(), &mut value) })?;
        usize::try_from(value).map_err(|_| format!("attribute {name:?} is {value}"))
    }

    /// A float attribute.
    pub fn float(&self, name: &CStr) -> Outcome<f32> {
        let mut value = 0.0;
        // SAFETY: as above.
        checked(unsafe { (ort::api().KernelInfoGetAttribute_float)(self.0, name.as_ptr(), &mut value) })?;
        Ok(value)
    }
}

/// A running call of a kernel. Addresses that it returns are valid as long as the call.
pub struct Call(*mut OrtKernelContext);

impl Call {
    /// Shape and address of an input of element type `T`; `None` if it is absent.
    pub fn input<T>(&self, index: usize) -> Outcome<Option<(&[i64], *mut T)>> {
        let mut value = ptr::null();
        // SAFETY: only `compute` constructs a `Call`, for the call that ONNX Runtime is making; also below.
        checked(unsafe { (ort::api().KernelContext_GetInput)(self.0, index, &mut value) })?;
        if value.is_null() { Ok(None) } else { tensor(value).map(Some) }
    }

    /// An f32 input as `[rows, width]`, and its address.
    pub fn input_rows(&self, index: usize) -> Outcome<(usize, usize, *const f32)> {
        let (shape, data) = self.input::<f32>(index)?.ok_or("a tensor is missing")?;
        let &[rows, width] = shape else {
            return Err(format!("a tensor of shape {shape:?} where rows are expected"));
        };
        Ok((rows as usize, width as usize, data))
    }

    /// An output of a shape and of element type `T`.
    pub fn output<T>(&self, index: usize, shape: &[i64]) -> Outcome<*mut T> {
        let (mut value, mut data) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: as above.
        unsafe {
            let api = ort::api();
            checked((api.KernelContext_GetOutput)(self.0, index, shape.as_ptr(), shape.len(), &mut value))?;
            checked((api.GetTensorMutableData)(value, &mut data))?;
        }
        Ok(data.cast())
    }

    /// The first output as `[rows, width]`.
    pub fn output_rows(&self, rows: usize, width: usize) -> Outcome<*mut f32> {
        self.output(0, &[rows as i64, width as i64])
    }
}

/// Shape and address of a tensor of ONNX Runtime. The shape lives as long as the tensor.
fn tensor<'a, T>(value: *const OrtValue) -> Outcome<(&'a [i64], *mut T)> {
    // SAFETY: the value belongs to the current call.
    unsafe {
        let api = ort::api();
        let (mut element, mut shape, mut count) = (FLOAT, ptr::null(), 0);
        checked((api.GetTensorElementTypeAndShapeDataReference)(
            value,
            &mut element,
            &mut shape,
            &mut count,
        ))?;
        let mut data = ptr::null_mut();
        checked((api.GetTensorMutableData)(value.cast_mut(), &mut data))?;
        // A scalar's shape may be null.
        let shape = if count == 0 { &[] } else { std::slice::from_raw_parts(shape, count) };
        Ok((shape, data.cast()))
    }
}
