//! An ONNX Runtime session over a device's memory: every tensor is bound to an address of ours, nothing is copied.
//!
//! On a GPU the session works in the stream that it was given, and a run returns as soon as its work is in there: what is
//! asked of the device next comes after it, and the next download waits for all of it.

use crate::engine::custom::Domain;
use crate::engine::values::{Element, Memory, Tensor, check, failed};
use crate::runtime;
use ort::AsPointer;
use ort::session::builder::GraphOptimizationLevel;
use ort::sys::{OrtIoBinding, OrtRunOptions, OrtSessionOptions};
use record::failure::{Failure, Result};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr;

use super::reference;

/// Who computes.
#[derive(Debug, Clone, Copy)]
pub enum Provider {
    /// The processor, on memory that the simulator lends.
    Processor,
    /// An NVIDIA GPU: its number, and the stream in which all work is done (`CUstream`).
    Cuda {
        /// The GPU's number.
        number: u32,
        /// The stream.
        stream: *mut c_void,
    },
}

/// A graph ready to run over bound tensors.
pub struct Session {
    binding: Binding,
    options: RunOptions,
    /// Behind the binding, which must go first.
    session: ort::session::Session,
    /// What is bound, by name.
    bound: HashMap<CString, Tensor>,
    /// Of the device, and the processor's own.
    device: Memory,
    plain: Memory,
    /// Must outlive the session, so it stands behind it.
    _domain: Option<Domain<reference::Operator>>,
}

struct Binding(*mut OrtIoBinding);

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: made in `Session::open`, released once, before its session.
        unsafe { (ort::api().ReleaseIoBinding)(self.0) }
    }
}

/// How a run is done: without waiting for the device at its end.
struct RunOptions(*mut OrtRunOptions);

impl RunOptions {
    fn new() -> Result<RunOptions> {
        let mut options = ptr::null_mut();
        // SAFETY: `options` receives what is released when this is dropped; the texts outlive the call.
        unsafe {
            check((ort::api().CreateRunOptions)(&mut options))?;
            let options = RunOptions(options);
            let (key, value) = (c"disable_synchronize_execution_providers", c"1");
            check((ort::api().AddRunConfigEntry)(options.0, key.as_ptr(), value.as_ptr()))?;
            Ok(options)
        }
    }
}

impl Drop for RunOptions {
    fn drop(&mut self) {
        // SAFETY: made in `new`, released once.
        unsafe { (ort::api().ReleaseRunOptions)(self.0) }
    }
}

impl Session {
    /// Opens a session over `graph`, a serialised model whose external data lies in `folder`.
    ///
    /// # Errors
    /// 69 without ONNX Runtime or its CUDA provider, 1 where ONNX Runtime refuses the graph.
    pub fn open(graph: &[u8], folder: &Path, provider: Provider) -> Result<Session> {
        let environment = runtime::environment()?;
        let folder = folder.to_str().ok_or_else(|| Failure::data("the directory's name is not UTF-8"))?;
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
            // What fails comes back as a status, and is said once.
            .with_log_level(ort::logging::LogLevel::Fatal)
            .map_err(failed)?
            .with_config_entry("session.model_external_initializers_file_folder_path", folder)
            .map_err(failed)?;
        let (domain, device) = match provider {
            Provider::Processor => {
                let domain = reference::domain()?;
                domain.register(builder.ptr_mut())?;
                (Some(domain), Memory::plain()?)
            }
            Provider::Cuda { number, stream } => {
                append_cuda(builder.ptr_mut(), number, stream)?;
                // A node that CUDA cannot run would drag every token through plain memory: an error is better.
                builder =
                    builder.with_config_entry("session.disable_cpu_ep_fallback", "1").map_err(failed)?;
                // Weights take what they are, outside of the pieces that activations share.
                builder = builder
                    .with_config_entry("session.use_device_allocator_for_initializers", "1")
                    .map_err(failed)?;
                (None, Memory::cuda(number)?)
            }
        };
        let session = runtime::open_session(builder, graph)
            .map_err(|error| refused(failed(error), "loads the weights"))?;
        let mut binding = ptr::null_mut();
        // SAFETY: the session is alive, and outlives the binding.
        check(unsafe { (ort::api().CreateIoBinding)(session.ptr().cast_mut(), &mut binding) })?;
        let (binding, options, plain) = (Binding(binding), RunOptions::new()?, Memory::plain()?);
        Ok(Session { binding, options, session, bound: HashMap::new(), device, plain, _domain: domain })
    }

    /// Binds an input to numbers in the device's memory, which stay there until it is bound again.
    ///
    /// # Errors
    /// 1 where ONNX Runtime refuses.
    pub fn input<T: Element>(&mut self, name: &str, address: u64, shape: &[usize]) -> Result<()> {
        let tensor = Tensor::over(&self.device, address as *mut T, shape)?;
        self.bind_input(name, tensor)
    }

    /// Binds an input to numbers in plain memory, which stay there until it is bound again.
    ///
    /// # Errors
    /// As [`Session::input`].
    pub fn plain_input<T: Element>(&mut self, name: &str, numbers: &[T], shape: &[usize]) -> Result<()> {
        let tensor = Tensor::over(&self.plain, numbers.as_ptr().cast_mut(), shape)?;
        self.bind_input(name, tensor)
    }

    fn bind_input(&mut self, name: &str, tensor: Tensor) -> Result<()> {
        let name = CString::new(name).map_err(|_| Failure::work("a tensor's name has a zero byte"))?;
        // SAFETY: the tensor is kept as long as it is bound.
        check(unsafe { (ort::api().BindInput)(self.binding.0, name.as_ptr(), tensor.pointer()) })?;
        self.bound.insert(name, tensor);
        Ok(())
    }

    /// Binds an output to room in the device's memory.
    ///
    /// # Errors
    /// As [`Session::input`].
    pub fn output<T: Element>(&mut self, name: &str, address: u64, shape: &[usize]) -> Result<()> {
        let tensor = Tensor::over(&self.device, address as *mut T, shape)?;
        let name = CString::new(name).map_err(|_| Failure::work("a tensor's name has a zero byte"))?;
        // SAFETY: as for inputs.
        check(unsafe { (ort::api().BindOutput)(self.binding.0, name.as_ptr(), tensor.pointer()) })?;
        self.bound.insert(name, tensor);
        Ok(())
    }

    /// Runs the graph over what is bound; on a GPU its work is then under way in the stream.
    ///
    /// # Errors
    /// 1 where the model fails, in ONNX Runtime's words.
    pub fn run(&mut self) -> Result<()> {
        // SAFETY: session, binding and all bound tensors are alive, and `self` is held exclusively.
        check(unsafe {
            (ort::api().RunWithBinding)(self.session.ptr().cast_mut(), self.options.0, self.binding.0)
        })
        .map_err(|failure| refused(failure, "runs the model"))
    }
}

/// Memory that is not there is no mistake of the work. ONNX Runtime has no code for it, so its words must do: the first are
/// those of its arena, the second those of CUDA.
fn refused(failure: Failure, what: &str) -> Failure {
    let words = ["Failed to allocate memory", "out of memory"];
    if !words.iter().any(|words| failure.message.contains(words)) {
        return failure;
    }
    Failure::unavailable(format!("the device's memory is used up while ONNX Runtime {what}"))
        .hint("end what else uses the GPU (nvidia-smi), or take a smaller policy or another device")
}

/// Lets a GPU compute, in a stream of ours: its work and that of our own kernels then follow each other without waiting.
fn append_cuda(options: *mut OrtSessionOptions, number: u32, stream: *mut c_void) -> Result<()> {
    let api = ort::api();
    let mut cuda = ptr::null_mut();
    // SAFETY: `cuda` receives options that are released below; all texts outlive their calls.
    unsafe {
        check((api.CreateCUDAProviderOptions)(&mut cuda)).map_err(without_cuda)?;
        let number = CString::new(number.to_string()).unwrap_or_default();
        // A run of a few more rows than any before asks for a little more of everything. Memory that grows by what was asked
        // for can never serve it again, and is all taken after a few dozen such runs; in few large pieces, each a whole again
        // at the end of a run, it is.
        let pairs = [
            (c"device_id", number.as_c_str()),
            (c"arena_extend_strategy", c"kNextPowerOfTwo"),
            (c"do_copy_in_default_stream", c"1"),
            // FlashAttention, or the next best of ONNX Runtime's own: the same on every machine, whether or not cuDNN happens to
            // be installed.
            (c"sdpa_kernel", c"3"),
        ];
        let (keys, values): (Vec<_>, Vec<_>) =
            pairs.iter().map(|(key, value)| (key.as_ptr(), value.as_ptr())).unzip();
        let outcome =
            check((api.UpdateCUDAProviderOptions)(cuda, keys.as_ptr(), values.as_ptr(), keys.len()))
                .and_then(|()| {
                    check((api.UpdateCUDAProviderOptionsWithValue)(
                        cuda,
                        c"user_compute_stream".as_ptr(),
                        stream,
                    ))
                })
                .and_then(|()| check((api.SessionOptionsAppendExecutionProvider_CUDA_V2)(options, cuda)));
        (api.ReleaseCUDAProviderOptions)(cuda);
        outcome.map_err(without_cuda)
    }
}

fn without_cuda(failure: Failure) -> Failure {
    Failure::unavailable(failure.message).hint(
        "this needs the ONNX Runtime with CUDA and the CUDA libraries: ./pipeline.sh --setup --device cuda fetches them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_used_up_is_no_mistake_of_the_work() {
        let arena =
            "ONNX Runtime: bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 25749504";
        let cuda = "ONNX Runtime: CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);";
        for message in [arena, cuda] {
            let failure = refused(Failure::work(message), "runs the model");
            assert_eq!(failure.code, record::failure::UNAVAILABLE, "{message}");
            assert!(failure.hint.is_some() && !failure.message.contains("cc:"), "{failure}");
        }
        let other = Failure::work("ONNX Runtime: Invalid Feed Input Name");
        assert_eq!(refused(other.clone(), "runs the model"), other);
    }
}
