//! An ONNX Runtime session over device memory: every tensor is bound to one of our addresses, without copies.
//!
//! On a GPU the session works in the given stream, and a run returns as soon as its work is enqueued.

use super::attention_tier::{is_reproducible, sdpa_kernel};
use crate::engine::custom_op::Domain;
use crate::engine::onnx::{Element, Memory, Tensor, check, failed, session_builder};
use crate::runtime;
use ort::AsPointer;
use ort::sys::{OrtIoBinding, OrtRunOptions, OrtSessionOptions, OrtStatusPtr, OrtValue};
use record::failure::{Failure, Result};
use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::ptr;

/// The hardware that computes.
#[derive(Debug, Clone, Copy)]
pub enum Provider {
    /// The CPU, over the simulator's memory.
    Cpu,
    /// An NVIDIA GPU, and the stream for all work (`CUstream`).
    Cuda {
        /// The GPU's number.
        number: u32,
        stream: *mut c_void,
    },
}

impl Provider {
    /// Says in a failure which of several GPUs failed.
    pub fn named(&self, failure: Failure) -> Failure {
        let Provider::Cuda { number, .. } = self else { return failure };
        let name = format!("cuda:{number}");
        let failure = match failure.message.starts_with(&format!("{name}: ")) {
            true => failure,
            false => failure.at(name),
        };
        match failure.hint {
            Some(_) => failure,
            None => failure.hint(
                "nvidia-smi shows the state of the GPUs; --device takes those that are well, as cuda:0,2",
            ),
        }
    }
}

/// A graph ready to run over bound tensors.
pub struct Session {
    binding: Binding,
    options: RunOptions,
    /// After the binding, which must be dropped first.
    session: ort::session::Session,
    /// Bound tensors, by name.
    bound: HashMap<CString, Tensor>,
    device: Memory,
    host: Memory,
    /// True if two runs over the same content give the same bits.
    pub exact: bool,
    /// The operators. They must outlive the session, so they are dropped after it.
    _domain: Box<dyn Any>,
}

/// `BindInput` or `BindOutput`.
type Bind = unsafe extern "system" fn(*mut OrtIoBinding, *const c_char, *const OrtValue) -> OrtStatusPtr;

struct Binding(*mut OrtIoBinding);

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: made in `Session::open`, released once, before its session.
        unsafe { (ort::api().ReleaseIoBinding)(self.0) }
    }
}

/// Run options that do not wait for the device at the end of a run.
struct RunOptions(*mut OrtRunOptions);

impl RunOptions {
    fn new() -> Result<RunOptions> {
        let mut options = ptr::null_mut();
        // SAFETY: `options` receives the provider options, which are released when this is dropped; the texts
        // outlive the call.
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
    /// Opens a session over `graph`, a serialized model, with custom operators.
    ///
    /// # Errors
    /// 69 without ONNX Runtime or its CUDA provider, 1 if ONNX Runtime refuses the graph.
    pub fn open<S: 'static>(graph: &[u8], provider: Provider, domain: Domain<S>) -> Result<Session> {
        let mut builder = session_builder()?;
        domain.register(builder.ptr_mut())?;
        let (device, exact) = match provider {
            Provider::Cpu => (Memory::host()?, true),
            Provider::Cuda { number, stream } => {
                let attention = sdpa_kernel()?;
                append_cuda(builder.ptr_mut(), number, stream, attention)?;
                // Fail instead: a node that CUDA cannot run would move every token through host memory.
                builder =
                    builder.with_config_entry("session.disable_cpu_ep_fallback", "1").map_err(failed)?;
                // Allocate rotary tables separately, outside the arena of activations.
                builder = builder
                    .with_config_entry("session.use_device_allocator_for_initializers", "1")
                    .map_err(failed)?;
                (Memory::cuda(number)?, is_reproducible(attention))
            }
        };
        let session = runtime::open_session(builder, graph)
            .map_err(|error| refused(failed(error), "opens the model"))?;
        let mut binding = ptr::null_mut();
        // SAFETY: the session is alive, and outlives the binding.
        check(unsafe { (ort::api().CreateIoBinding)(session.ptr().cast_mut(), &mut binding) })?;
        let (binding, options, host) = (Binding(binding), RunOptions::new()?, Memory::host()?);
        let (bound, _domain) = (HashMap::new(), Box::new(domain));
        Ok(Session { binding, options, session, bound, device, host, exact, _domain })
    }

    /// Binds an input to device memory, whose content must not change until the input is bound again.
    pub fn input<T: Element>(&mut self, name: &str, address: u64, shape: &[usize]) -> Result<()> {
        let tensor = Tensor::over(&self.device, address as *mut T, shape)?;
        self.bind(name, tensor, ort::api().BindInput)
    }

    /// Binds an input to host memory, whose content must not change until the input is bound again.
    pub fn host_input<T: Element>(&mut self, name: &str, numbers: &[T], shape: &[usize]) -> Result<()> {
        let tensor = Tensor::over(&self.host, numbers.as_ptr().cast_mut(), shape)?;
        self.bind(name, tensor, ort::api().BindInput)
    }

    /// Binds an output to device memory.
    pub fn output<T: Element>(&mut self, name: &str, address: u64, shape: &[usize]) -> Result<()> {
        let tensor = Tensor::over(&self.device, address as *mut T, shape)?;
        self.bind(name, tensor, ort::api().BindOutput)
    }

    fn bind(&mut self, name: &str, tensor: Tensor, bind: Bind) -> Result<()> {
        let name = CString::new(name).map_err(|_| Failure::work("a tensor's name has a zero byte"))?;
        // SAFETY: the tensor is kept while it is bound.
        check(unsafe { bind(self.binding.0, name.as_ptr(), tensor.pointer()) })?;
        self.bound.insert(name, tensor);
        Ok(())
    }

    /// Runs the graph over the bound tensors; on a GPU, enqueues its work.
    ///
    /// # Errors
    /// 1 if the model fails, with ONNX Runtime's message.
    pub fn run(&mut self) -> Result<()> {
        // SAFETY: session, binding and all bound tensors are alive, and `self` is held exclusively.
        check(unsafe {
            (ort::api().RunWithBinding)(self.session.ptr().cast_mut(), self.options.0, self.binding.0)
        })
        .map_err(|failure| refused(failure, "runs the model"))
    }
}

/// Makes out of memory exit 69 instead of 1. ONNX Runtime has no error code for it, so this matches messages:
/// the first is from its arena, the second from CUDA.
fn refused(failure: Failure, what: &str) -> Failure {
    let texts = ["Failed to allocate memory", "out of memory"];
    if !texts.iter().any(|text| failure.message.contains(text)) {
        return failure;
    }
    Failure::unavailable(format!("the device is out of memory while ONNX Runtime {what}"))
        .hint("end what else uses the GPU (nvidia-smi), or take a smaller policy or another device")
}

/// Adds the CUDA provider in our stream, so that its work and our kernels follow each other without waiting.
fn append_cuda(
    options: *mut OrtSessionOptions,
    number: u32,
    stream: *mut c_void,
    attention: u32,
) -> Result<()> {
    let api = ort::api();
    let attention = CString::new(attention.to_string()).unwrap_or_default();
    let mut cuda = ptr::null_mut();
    // SAFETY: `cuda` receives options that are released below; all texts outlive their calls.
    unsafe {
        check((api.CreateCUDAProviderOptions)(&mut cuda)).map_err(without_cuda)?;
        let number = CString::new(number.to_string()).unwrap_or_default();
        // A run with a few more rows than any before needs slightly larger buffers. An arena that grows
        // by exactly that can never reuse the old ones, and fills the device after a few dozen such runs;
        // an arena that doubles can.
        let pairs = [
            (c"device_id", number.as_c_str()),
            (c"arena_extend_strategy", c"kNextPowerOfTwo"),
            (c"do_copy_in_default_stream", c"1"),
            (c"sdpa_kernel", attention.as_c_str()),
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
        "this needs the ONNX Runtime with CUDA and the CUDA libraries: ./pipeline.sh setup --device cuda fetches them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_is_unavailable() {
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
