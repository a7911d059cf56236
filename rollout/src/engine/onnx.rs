//! ONNX Runtime's C interface: tensors over memory that we allocate, errors, and session options.

use crate::runtime;
use half::{bf16, f16};
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::sys::{
    ONNXTensorElementDataType as ElementType, OrtAllocatorType, OrtMemType, OrtMemoryInfo, OrtStatusPtr,
    OrtValue,
};
use record::failure::{Failure, Result};
use std::ffi::CStr;
use std::ptr;

/// The location of tensors.
pub struct Memory(*mut OrtMemoryInfo);

// SAFETY: the description is immutable.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn host() -> Result<Memory> {
        let mut memory = ptr::null_mut();
        // SAFETY: `memory` receives a description that is released when this is dropped.
        check(unsafe {
            (ort::api().CreateCpuMemoryInfo)(
                OrtAllocatorType::OrtDeviceAllocator,
                OrtMemType::OrtMemTypeDefault,
                &mut memory,
            )
        })?;
        Ok(Memory(memory))
    }

    /// Memory of an NVIDIA GPU.
    pub fn cuda(device: u32) -> Result<Memory> {
        let mut memory = ptr::null_mut();
        // SAFETY: as in `host`.
        check(unsafe {
            (ort::api().CreateMemoryInfo)(
                c"Cuda".as_ptr(),
                OrtAllocatorType::OrtDeviceAllocator,
                device as i32,
                OrtMemType::OrtMemTypeDefault,
                &mut memory,
            )
        })?;
        Ok(Memory(memory))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made by one of the constructors, released once.
        unsafe { (ort::api().ReleaseMemoryInfo)(self.0) }
    }
}

/// A tensor's element type.
pub trait Element {
    /// ONNX Runtime's name for it.
    const TYPE: ElementType;
}

impl Element for i64 {
    const TYPE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
}

impl Element for i32 {
    const TYPE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
}

impl Element for f16 {
    const TYPE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
}

/// A tensor over borrowed memory.
pub struct Tensor(*mut OrtValue);

// SAFETY: the handle is immutable; the owner controls access to the memory.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// A tensor over caller-owned memory, which must be as large as the shape says and outlive the tensor.
    /// Inputs are only read, whatever the pointer's type.
    pub fn over<T: Element>(memory: &Memory, numbers: *mut T, shape: &[usize]) -> Result<Tensor> {
        let bytes = size_of::<T>() * shape.iter().product::<usize>();
        let shape: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let mut value = ptr::null_mut();
        // SAFETY: the size follows from the shape; callers keep the rest of the contract above.
        check(unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                memory.0,
                numbers.cast(),
                bytes,
                shape.as_ptr(),
                shape.len(),
                T::TYPE,
                &mut value,
            )
        })?;
        Ok(Tensor(value))
    }

    pub fn pointer(&self) -> *mut OrtValue {
        self.0
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made in `over`, released once.
        unsafe { (ort::api().ReleaseValue)(self.0) }
    }
}

/// ONNX Runtime's message as our failure.
pub fn check(status: OrtStatusPtr) -> Result<()> {
    if status.0.is_null() {
        return Ok(());
    }
    // SAFETY: a status that is not null has a message and is released once.
    let message = unsafe {
        let text = CStr::from_ptr((ort::api().GetErrorMessage)(status.0)).to_string_lossy().into_owned();
        (ort::api().ReleaseStatus)(status.0);
        text
    };
    Err(failed(message))
}

/// Converts an error of the wrapper crate. The message becomes one line.
pub fn failed(error: impl std::fmt::Display) -> Failure {
    let message = error.to_string();
    let words: Vec<&str> = message.split_whitespace().collect();
    Failure::work(format!("ONNX Runtime: {}", words.join(" ")))
}

/// Options for all sessions. One thread per run: parallelism is over groups and needs no barriers. No memory
/// patterns, because shapes change from run to run. No logging, because errors are returned as a status.
pub fn session_builder() -> Result<SessionBuilder> {
    let environment = runtime::environment()?;
    let configured = || -> ort::Result<SessionBuilder> {
        Ok(Session::builder(environment)?
            .with_intra_threads(1)?
            .with_inter_threads(1)?
            .with_intra_op_spinning(false)?
            .with_memory_pattern(false)?
            .with_optimization_level(GraphOptimizationLevel::All)?
            .with_log_level(ort::logging::LogLevel::Fatal)?)
    };
    configured().map_err(failed)
}
