//! An NVIDIA GPU through the CUDA driver, with `cudarc`. Libraries are loaded on first use and never linked.
//!
//! One stream carries all work, in call order. Kernels are compiled for the GPU's architecture at their first
//! launch, and cached on disk. The context is the GPU's primary one, which other libraries in the process
//! (ONNX Runtime) share; [`Cuda::stream`] lets them enqueue work in the same order.

mod choices;
mod compile;
mod cublaslt;
mod installation;
mod library;
pub mod nccl;
mod plan;
mod timing;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUfunction, CUfunction_attribute, CUmodule};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, cuStreamQuery};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError, result};
use record::failure::{Failure, Result};

use crate::arena::{Arena, Buffer, Slice};
use crate::element::Element;
use crate::gemm::Gemm;
use crate::kernel::{Argument, Kernel, Shape, Source};
use crate::{Device, Memory};

pub use compile::{Compiled, Usage, architecture, compile, version as compiler_version};
use cublaslt::CublasLt;
pub use installation::{check_cards, gpus, identities, installation};
pub use library::{Found, Library, cudnn_version, open as open_library};

/// cuBLASLt's workspace in bytes; part of the arena.
pub const GEMM_WORKSPACE: u64 = 32 << 20;

/// Dynamic shared memory per block above which a kernel must opt in: 48 KiB less the static
/// arrays (at most 16 KiB here).
const DEFAULT_SHARED: u32 = 32 * 1024;

/// One NVIDIA GPU.
pub struct Cuda {
    // Fields drop in this order: device memory before the context.
    cublaslt: Option<CublasLt>,
    workspace: Option<Buffer<u8>>,
    arena: Option<Arena>,
    memory: Option<DeviceMemory>,
    functions: HashMap<*const Kernel, CUfunction>,
    modules: HashMap<*const Source, CUmodule>,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
    number: u32,
    name: String,
    architecture: String,
    /// Largest shared memory of a block, in bytes.
    most_shared: u32,
    /// True if it runs kernels written for its architecture only.
    architecture_kernels: bool,
    /// True if asynchronous uploads read host memory after the call returns.
    reads_late: bool,
    multiprocessors: u32,
}

/// The arena's memory.
struct DeviceMemory {
    address: u64,
    context: Arc<CudaContext>,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: our allocation, freed once, in its context; errors of the context were reported earlier.
        unsafe {
            let _ = self.context.bind_to_thread();
            let _ = result::free_sync(self.address);
        }
    }
}

impl Cuda {
    /// Opens GPU `number`; allocates nothing beyond the context.
    ///
    /// # Errors
    /// 69: the driver, the GPU or a library is missing or unusable, or a library is newer than the driver.
    pub fn new(number: u32) -> Result<Self> {
        installation::check_cards(&[number])?;
        let refused = |what: &str, error: DriverError| {
            Failure::unavailable(format!("cuda:{number}: {what}: {}", words(error)))
                .hint("nvidia-smi shows the GPUs and who uses them; --device cpu needs none")
        };
        installation::check_versions(number)?;
        let context = CudaContext::new(number as usize).map_err(|error| refused("opening", error))?;
        let name = context.name().map_err(|error| refused("its name", error))?;
        let ask =
            |attribute| context.attribute(attribute).map_err(|error| refused("its architecture", error));
        let major = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if major < 8 {
            return Err(Failure::unavailable(format!(
                "cuda:{number}: {name} has compute capability {major}.{minor}; 8.0 is the least (bf16)"
            )));
        }
        let most_shared = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let tables = ask(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)?;
        let multiprocessors = ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let stream = context.new_stream().map_err(|error| refused("its stream", error))?;
        Ok(Cuda {
            cublaslt: None,
            workspace: None,
            arena: None,
            memory: None,
            functions: HashMap::new(),
            modules: HashMap::new(),
            stream,
            context,
            number,
            name,
            architecture: compile::architecture(major, minor),
            most_shared: u32::try_from(most_shared).unwrap_or_default(),
            architecture_kernels: true,
            reads_late: tables != 0,
            multiprocessors: u32::try_from(multiprocessors).unwrap_or_default().max(1),
        })
    }

    /// Runs the portable kernels instead of those written for this architecture.
    pub fn without_architecture_kernels(&mut self) {
        self.architecture_kernels = false;
    }

    /// The stream that carries all work, as CUDA's handle, for libraries that take one.
    pub fn stream(&self) -> *mut c_void {
        self.stream.cu_stream().cast()
    }

    fn failed(&self, what: &str, error: DriverError) -> Failure {
        Failure::work(format!("cuda:{}: {what}: {}", self.number, words(error)))
    }

    /// Makes the GPU's context current in the calling thread.
    fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|error| self.failed("its context", error))
    }

    fn function(&mut self, kernel: &'static Kernel) -> Result<CUfunction> {
        let source = kernel.source();
        let key = std::ptr::from_ref(source);
        if !self.modules.contains_key(&key) {
            let image = compile::cached(source, &self.architecture)?;
            // SAFETY: a whole CUBIN, which the driver copies.
            let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
                .map_err(|error| self.failed(source.name, error))?;
            self.modules.insert(key, module);
        }
        if let Some(function) = self.functions.get(&std::ptr::from_ref(kernel)) {
            return Ok(*function);
        }
        let name = CString::new(kernel.name()).map_err(Failure::work)?;
        // SAFETY: the module is loaded until the context goes.
        let function = unsafe { result::module::get_function(self.modules[&key], name) }
            .map_err(|error| self.failed(kernel.name(), error))?;
        self.functions.insert(kernel, function);
        Ok(function)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Running work may still use the modules.
        let _ = self.context.bind_to_thread().and_then(|()| self.stream.synchronize());
        for module in self.modules.values() {
            // SAFETY: loaded by us, unloaded once, and no kernel of it runs any more.
            let _ = unsafe { result::module::unload(*module) };
        }
    }
}

impl Device for Cuda {
    type Graph = CudaGraph;

    fn describe(&self) -> String {
        let total = self.memory().map(|memory| memory.total as f64 / f64::from(1 << 30)).unwrap_or_default();
        format!("cuda:{} {} ({}), {total:.1} GiB", self.number, self.name, self.architecture)
    }

    fn beside(&self) -> Result<Self> {
        Ok(Cuda {
            cublaslt: None,
            workspace: None,
            arena: None,
            memory: None,
            functions: HashMap::new(),
            modules: HashMap::new(),
            stream: self.stream.clone(),
            context: self.context.clone(),
            name: self.name.clone(),
            architecture: self.architecture.clone(),
            ..*self
        })
    }

    fn memory(&self) -> Result<Memory> {
        self.bind()?;
        let (free, total) = result::mem_get_info().map_err(|error| self.failed("its memory", error))?;
        Ok(Memory { free: free as u64, total: total as u64 })
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        if self.arena.is_some() {
            return Err(Failure::work(format!("cuda:{}: memory is reserved already", self.number)));
        }
        let memory = self.memory()?;
        if bytes > memory.free {
            return Err(Failure::unavailable(format!(
                "cuda:{}: {bytes} bytes are planned, but of {} only {} are free",
                self.number, memory.total, memory.free
            ))
            .hint("end what else uses the GPU (nvidia-smi), or give update a lower --max-tokens-per-batch"));
        }
        // SAFETY: freed by `DeviceMemory`.
        let address = unsafe { result::malloc_sync(bytes as usize) }.map_err(|error| {
            Failure::unavailable(format!("cuda:{}: {bytes} bytes: {}", self.number, words(error)))
        })?;
        self.memory = Some(DeviceMemory { address, context: self.context.clone() });
        self.arena = Some(Arena::new(address, bytes, 0));
        Ok(())
    }

    fn suspend(&mut self) -> Result<()> {
        self.synchronize()?;
        self.memory = None;
        Ok(())
    }

    fn resume(&mut self) -> Result<bool> {
        let Some((address, bytes)) = self.arena.as_ref().map(|arena| (arena.base(), arena.total())) else {
            return Ok(false);
        };
        if self.memory()?.free < bytes {
            return Ok(false);
        }
        // SAFETY: freed by `DeviceMemory`.
        let Ok(found) = (unsafe { result::malloc_sync(bytes as usize) }) else { return Ok(false) };
        let memory = DeviceMemory { address: found, context: self.context.clone() };
        // The driver returns the range it freed last, unless someone else has taken it.
        let same = found == address;
        self.memory = same.then_some(memory);
        Ok(same)
    }

    fn workspace(&self) -> u64 {
        GEMM_WORKSPACE
    }

    fn arena(&self) -> Result<&Arena> {
        self.arena
            .as_ref()
            .ok_or_else(|| Failure::work(format!("cuda:{}: no memory is reserved yet", self.number)))
    }

    fn upload<T: Element>(&mut self, from: &[T], to: Slice<'_, T>) -> Result<()> {
        crate::same_length("upload", from.len(), to.len())?;
        to.raw().check(self.arena()?)?;
        if from.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the slice is ours and of the same length. The driver stages `from` (pageable memory) before
        // it returns. A GPU that reads pageable memory itself (Grace Hopper) may still be reading it, so
        // there the stream is synchronized.
        unsafe { result::memcpy_htod_async(to.address(), from, self.stream.cu_stream()) }
            .map_err(|error| self.failed("upload", error))?;
        if self.reads_late { self.synchronize() } else { Ok(()) }
    }

    fn download<T: Element>(&mut self, from: Slice<'_, T>, to: &mut [T]) -> Result<()> {
        crate::same_length("download", from.len(), to.len())?;
        from.raw().check(self.arena()?)?;
        if to.is_empty() {
            return self.synchronize();
        }
        self.bind()?;
        // SAFETY: the slice is ours and of the same length; `to` is borrowed until the stream has finished.
        unsafe { result::memcpy_dtoh_async(to, from.address(), self.stream.cu_stream()) }
            .map_err(|error| self.failed("download", error))?;
        self.synchronize()
    }

    fn copy<T: Element>(&mut self, from: Slice<'_, T>, to: Slice<'_, T>) -> Result<()> {
        crate::same_length("copy", from.len(), to.len())?;
        from.raw().check(self.arena()?)?;
        to.raw().check(self.arena()?)?;
        if from.is_empty() {
            return Ok(());
        }
        self.bind()?;
        let bytes = from.len() * size_of::<T>();
        // SAFETY: both slices are ours and of the same length.
        unsafe { result::memcpy_dtod_async(to.address(), from.address(), bytes, self.stream.cu_stream()) }
            .map_err(|error| self.failed("copy", error))
    }

    fn clear<T: Element>(&mut self, what: Slice<'_, T>) -> Result<()> {
        what.raw().check(self.arena()?)?;
        self.bind()?;
        // SAFETY: the slice is ours.
        unsafe {
            result::memset_d8_async(what.address(), 0, what.len() * size_of::<T>(), self.stream.cu_stream())
        }
        .map_err(|error| self.failed("clear", error))
    }

    fn runs(&self, source: &Source) -> bool {
        source.architecture.is_none_or(|only| self.architecture_kernels && only == self.architecture)
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    fn choice(&self, name: &str) -> Option<u64> {
        choices::Choices::without_library(&self.name).of_shape(name).first().map(|choice| choice[0])
    }

    fn keep_choice(&mut self, name: &str, choice: u64) {
        let mut kept = choices::Choices::without_library(&self.name);
        if kept.measures {
            kept.keep(name, [choice, 0, 0, 0, 0, 0, 0, 0]);
        }
    }

    fn launch(&mut self, kernel: &'static Kernel, shape: Shape, arguments: &[Argument<'_>]) -> Result<()> {
        let kernel = kernel.of(arguments);
        kernel.check(self.arena()?, shape, arguments)?;
        self.bind()?;
        let function = self.function(kernel)?;
        if shape.shared > self.most_shared {
            return Err(Failure::unavailable(format!(
                "cuda:{}: kernel {} needs {} bytes of shared memory a block, and {} has {}",
                self.number,
                kernel.name(),
                shape.shared,
                self.name,
                self.most_shared
            ))
            .hint("the kernels are for GPUs of compute capability 8.0 and later"));
        }
        if shape.shared > DEFAULT_SHARED {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            unsafe { result::function::set_function_attribute(function, attribute, shape.shared as i32) }
                .map_err(|error| self.failed(kernel.name(), error))?;
        }
        let mut bits: Vec<u64> = arguments.iter().map(Argument::bits).collect();
        let mut pointers: Vec<*mut c_void> =
            bits.iter_mut().map(|bits| std::ptr::from_mut(bits).cast()).collect();
        let triple = |[x, y, z]: [u32; 3]| (x, y, z);
        // SAFETY: number and types of the arguments match the kernel, its buffers are ours, and the driver
        // copies the arguments before it returns.
        unsafe {
            result::launch_kernel(
                function,
                triple(shape.grid),
                triple(shape.block),
                shape.shared,
                self.stream.cu_stream(),
                &mut pointers,
            )
        }
        .map_err(|error| self.failed(kernel.name(), error))
    }

    fn gemm(&mut self, gemm: &Gemm<'_>) -> Result<()> {
        gemm.check(self.arena()?)?;
        if gemm.rows == 0 || gemm.columns == 0 {
            return Ok(());
        }
        self.bind()?;
        let workspace = match self.workspace.take() {
            Some(workspace) => workspace,
            None => self.allocate(GEMM_WORKSPACE as usize)?,
        };
        let range = (workspace.address(), workspace.len());
        self.workspace = Some(workspace);
        let stream = self.stream().cast();
        let cublaslt = match &mut self.cublaslt {
            Some(cublaslt) => cublaslt,
            none => none.insert(CublasLt::new(&self.name)?),
        };
        // SAFETY: the description has been checked, and everything lies in our arena, in the current context.
        unsafe { cublaslt.run(gemm, range, stream) }
    }

    fn synchronize(&mut self) -> Result<()> {
        self.bind()?;
        self.stream.synchronize().map_err(|error| self.failed("work on it", error))
    }

    fn is_idle(&mut self) -> Result<bool> {
        self.bind()?;
        // SAFETY: the stream is ours.
        match unsafe { cuStreamQuery(self.stream.cu_stream()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => code.result().map(|()| true).map_err(|error| self.failed("work on it", error)),
        }
    }

    fn library_stream(&self) -> Option<*mut c_void> {
        Some(self.stream())
    }

    fn begin_capture(&mut self) -> Result<bool> {
        // Relaxed, so that other threads are unaffected, and libraries may allocate during the capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.stream.begin_capture(mode).map_err(|error| self.failed("capture", error))?;
        Ok(true)
    }

    fn end_capture(&mut self) -> Result<CudaGraph> {
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        let graph = graph.map_err(|error| self.failed("capture", error))?;
        graph.ok_or_else(|| Failure::work(format!("cuda:{}: nothing was captured", self.number)))
    }

    fn replay(&mut self, graph: &CudaGraph) -> Result<()> {
        graph.launch().map_err(|error| self.failed("replay", error))
    }
}

/// The driver's message for an error.
fn words(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{text} ({name})"),
        _ => format!("error {}", error.0 as u32),
    }
}
