//! What operators of our own have in common, through ONNX Runtime's C interface.
//!
//! The interface is used and not the wrapper crate's because its kernels take a shared reference: one session may then
//! run on many threads.

use super::values::check;
use ort::sys::*;
use policy::graph::DOMAIN;
use record::failure::Result;
use std::ffi::{CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Something that begins with ONNX Runtime's description of an operator.
pub trait Custom {
    /// That description.
    fn base(&self) -> &OrtCustomOp;
}

/// Operators as a session knows them. Must outlive every session that it was registered with.
pub struct Domain<O> {
    domain: *mut OrtCustomOpDomain,
    /// ONNX Runtime keeps their addresses: the vector never grows.
    _operators: Vec<O>,
}

// SAFETY: nothing in it is changed after it was made.
unsafe impl<O> Send for Domain<O> {}
// SAFETY: as above.
unsafe impl<O> Sync for Domain<O> {}

impl<O: Custom> Domain<O> {
    /// These operators, in our domain.
    pub fn new(operators: Vec<O>) -> Result<Domain<O>> {
        let name = CString::new(DOMAIN).expect("the domain's name has no zero byte");
        let mut domain = ptr::null_mut();
        // SAFETY: `domain` receives a handle that is released when this is dropped; the operators live as long.
        unsafe { check((ort::api().CreateCustomOpDomain)(name.as_ptr(), &mut domain))? };
        let made = Domain { domain, _operators: operators };
        for operator in &made._operators {
            // SAFETY: both are alive.
            unsafe { check((ort::api().CustomOpDomain_Add)(domain, operator.base()))? };
        }
        Ok(made)
    }
}

impl<O> Domain<O> {
    /// Makes the operators known to a session.
    pub fn register(&self, options: *mut OrtSessionOptions) -> Result<()> {
        // SAFETY: the options are those of a builder that is alive.
        unsafe { check((ort::api().AddCustomOpDomain)(options, self.domain)) }
    }
}

impl<O> Drop for Domain<O> {
    fn drop(&mut self) {
        // SAFETY: made in `new`, released once, after the session.
        unsafe { (ort::api().ReleaseCustomOpDomain)(self.domain) }
    }
}

/// The type of most tensors.
pub const FLOAT: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
type Characteristic = OrtCustomOpInputOutputCharacteristic;

/// What most have in common: f32 tensors on CPU, the first input and the output required, any version.
pub const BASE: OrtCustomOp = OrtCustomOp {
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

unsafe extern "system" fn any_provider(_: *const OrtCustomOp) -> *const c_char {
    ptr::null()
}

unsafe extern "system" fn float(_: *const OrtCustomOp, _: usize) -> ONNXTensorElementDataType {
    FLOAT
}

/// A count of inputs or outputs.
pub unsafe extern "system" fn one(_: *const OrtCustomOp) -> usize {
    1
}

/// A count of inputs or outputs.
pub unsafe extern "system" fn two(_: *const OrtCustomOp) -> usize {
    2
}

/// A count of inputs or outputs.
pub unsafe extern "system" fn three(_: *const OrtCustomOp) -> usize {
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

/// Of a callback; an error becomes one of ONNX Runtime.
pub type Outcome<T> = std::result::Result<T, String>;

/// Runs a callback; an error or a panic becomes an error of ONNX Runtime, which names the node.
pub fn guarded(callback: impl FnOnce() -> Outcome<()>) -> OrtStatusPtr {
    let message = match catch_unwind(AssertUnwindSafe(callback)) {
        Ok(Ok(())) => return OrtStatusPtr(ptr::null_mut()),
        Ok(Err(message)) => message,
        Err(_) => "the operator panicked".to_owned(),
    };
    let message = CString::new(message).unwrap_or_default();
    // SAFETY: the text is copied.
    unsafe { (ort::api().CreateStatus)(OrtErrorCode::ORT_FAIL, message.as_ptr()) }
}

/// A failure's message.
pub fn plain<T>(result: Result<T>) -> Outcome<T> {
    result.map_err(|failure| failure.message)
}

/// Shape and address of a tensor of f32.
///
/// # Safety
/// `value` lives as long as the call that it was given to.
pub unsafe fn floats(value: *const OrtValue) -> Outcome<(Vec<i64>, *mut f32)> {
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
