//! An ONNX Runtime session that many threads run at once, each with a [`Pass`] of its own.
//!
//! `OrtSession::Run` is thread-safe; the wrapper crate's methods ask for `&mut`, so this calls the C function. Inputs
//! and outputs are tensors over our own memory: nothing is copied and nothing is kept between runs.

use super::attention::Pass;
use super::isa::Kernels;
use super::operator::{Domain, lend};
use crate::runtime;
use ort::AsPointer;
use ort::session::builder::GraphOptimizationLevel;
use ort::sys::{ONNXTensorElementDataType as ElementType, OrtMemType, OrtMemoryInfo, OrtStatusPtr, OrtValue};
use record::failure::{Failure, Result};
use std::ffi::CStr;
use std::path::Path;
use std::ptr;

/// A graph ready to run.
pub struct Session {
    session: ort::session::Session,
    memory: Memory,
    vocab_size: usize,
    /// Must outlive the session, so it stands behind it.
    _domain: Domain,
}

/// Says that our tensors lie in plain memory.
struct Memory(*mut OrtMemoryInfo);

// SAFETY: the description is never changed after it was made.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made in `Session::open`, released once.
        unsafe { (ort::api().ReleaseMemoryInfo)(self.0) }
    }
}

impl Session {
    /// Opens a session over `graph`, a serialised model whose external data lies in `folder` and whose logits are
    /// `[rows, vocab_size]`.
    pub fn open(graph: &[u8], folder: &Path, vocab_size: usize, kernels: Kernels) -> Result<Self> {
        let environment = runtime::environment()?;
        let folder = folder.to_str().ok_or_else(|| Failure::data("the directory's name is not UTF-8"))?;
        let domain = Domain::new(kernels)?;
        // One thread a run: parallel work is over groups, where it needs no barriers. Shapes change with every run, so
        // patterns of memory would be recorded and never used again.
        let mut builder = ort::session::Session::builder(environment)
            .map_err(failed)?
            .with_intra_threads(1)
            .map_err(failed)?
            .with_inter_threads(1)
            .map_err(failed)?
            .with_intra_op_spinning(false)
            .map_err(failed)?
            .with_memory_pattern(false)
            .map_err(failed)?
            .with_optimization_level(GraphOptimizationLevel::All)
            .map_err(failed)?
            .with_log_level(ort::logging::LogLevel::Error)
            .map_err(failed)?
            .with_config_entry("session.model_external_initializers_file_folder_path", folder)
            .map_err(failed)?;
        domain.register(builder.ptr_mut())?;
        let session = builder.commit_from_memory(graph).map_err(failed)?;
        let mut memory = ptr::null_mut();
        // SAFETY: `memory` receives a description that `Memory` releases.
        check(unsafe {
            (ort::api().CreateCpuMemoryInfo)(
                ort::sys::OrtAllocatorType::OrtDeviceAllocator,
                OrtMemType::OrtMemTypeDefault,
                &mut memory,
            )
        })?;
        Ok(Session { session, memory: Memory(memory), vocab_size, _domain: domain })
    }

    /// Runs the graph over the rows of `pass.plan`, whose tokens are `ids`. `logits` becomes
    /// `[pass.plan.wanted.len(), vocab_size]`; there may be no row at all.
    pub fn run(&self, pass: &mut Pass, ids: &[i64], logits: &mut Vec<f32>) -> Result<()> {
        let wanted = std::mem::take(&mut pass.plan.wanted);
        logits.resize(wanted.len() * self.vocab_size, 0.0);
        let tokens = self.tensor(ids.as_ptr().cast_mut(), &[ids.len()])?;
        let rows = self.tensor(wanted.as_ptr().cast_mut(), &[wanted.len()])?;
        let result = self.tensor(logits.as_mut_ptr(), &[wanted.len(), self.vocab_size])?;
        let input_names = [c"input_ids".as_ptr(), c"last_idx".as_ptr()];
        let output_names = [c"logits".as_ptr()];
        let inputs = [tokens.0.cast_const(), rows.0.cast_const()];
        let mut outputs = [result.0];
        let lent = lend(pass);
        // SAFETY: all names and tensors outlive the call; the inputs are only read, and the output is `logits`, which
        // this call alone holds. The session may be run by several threads at once.
        let status = unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                ptr::null(),
                input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                output_names.as_ptr(),
                outputs.len(),
                outputs.as_mut_ptr(),
            )
        };
        drop(lent);
        pass.plan.wanted = wanted;
        check(status)
    }

    /// A tensor over memory of ours, which must be as large as the shape says and outlive the tensor. Inputs are only
    /// read, whatever the pointer's type.
    fn tensor<T: Element>(&self, numbers: *mut T, shape: &[usize]) -> Result<Tensor> {
        let bytes = size_of::<T>() * shape.iter().product::<usize>();
        let shape: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let mut value = ptr::null_mut();
        // SAFETY: the size is that of the shape; the rest is said above and kept by `run`.
        check(unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                self.memory.0,
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
}

/// Numbers that tensors are made of.
trait Element {
    const TYPE: ElementType;
}

impl Element for i64 {
    const TYPE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}

/// A tensor that does not own its numbers.
struct Tensor(*mut OrtValue);

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made in `Session::tensor`, released once.
        unsafe { (ort::api().ReleaseValue)(self.0) }
    }
}

/// ONNX Runtime's own words as our failure.
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

/// The same for the wrapper crate's errors. The text becomes one line.
fn failed(error: impl std::fmt::Display) -> Failure {
    let message = error.to_string();
    let words: Vec<&str> = message.split_whitespace().collect();
    Failure::work(format!("ONNX Runtime: {}", words.join(" ")))
}
