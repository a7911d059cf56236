//! A device with memory, kernels and GEMMs: an NVIDIA GPU, or its simulator on the CPU.
//!
//! [`Device`] is the interface. [`Cuda`] is a GPU. [`Sim`] runs the same CUDA kernel sources on the CPU, so
//! that everything but the driver calls is tested without a GPU. A process may open several; [`cuda::nccl`] moves values
//! between GPUs of several processes. Left out: copies between devices of one process, several streams (work runs in call
//! order), and operations of a model.
//!
//! # How a crate declares its kernels
//!
//! 1. `kernels/NAME.cu`: `#include "device.cuh"` (its header lists what a kernel may use; headers in the same
//!    folder, and those that several crates use, are included the same way), and kernels as
//!    `extern "C" __global__ void __launch_bounds__(128) name(scalar_t* out, const float* x, int rows)`. Parameters
//!    are values of or pointers to `scalar_t bf16 f16 float u8 i16 int u32 i64 u64`. Kernel names are unique in the
//!    crate. A file with a kernel over `scalar_t` is compiled for bf16 and for f16, and a launch runs the kernel of its
//!    arguments' type.
//!    For several head sizes, write a `template <int width> __device__ void` and one `extern "C"` kernel per
//!    size. A file `NAME_sm90a.cu` is only for that architecture, with `wgmma.cuh` and more shared memory;
//!    see [`Device::runs`].
//! 2. `build.rs`: `fn main() { compile_kernels::declare("kernels"); }` with `compile-kernels` in
//!    `[build-dependencies]`.
//! 3. `src/kernels.rs`: `include!(concat!(env!("OUT_DIR"), "/kernels.rs"));`. It holds a `pub static NAME: Kernel` for
//!    each kernel, in capitals.
//! 4. To run: `device.launch(&kernels::NAME, Shape::rows(blocks, threads), &[(&buffer).into(), 3i32.into()])?`. Number
//!    and types of the arguments are checked against the kernel's parameters.
//!
//! # Memory
//!
//! [`Device::reserve`] allocates one arena on the device, once. [`Buffer`]s are ranges of it, freed when dropped. New
//! buffers are uninitialized: the simulator fills them with NaN, and finds kernels that write past a buffer's end.
//!
//! # Tests
//!
//! Get the device from [`Any::for_tests`] and repeat the test for the seeds 0 to 3. It runs in the simulator,
//! or on a GPU with `TROUPE_TEST_DEVICE=cuda`.
//!
//! # Order and errors
//!
//! Work runs asynchronously in call order; [`Device::download`] and [`Device::synchronize`] wait for it. A
//! kernel's error may therefore be reported by a later call. Errors are [`record::failure::Failure`]s: 69 if
//! the device, a library or memory is not available, 1 if work on it failed.

extern crate self as device;

mod arena;
pub mod cuda;
mod dtype;
mod element;
mod gemm;
mod kernel;
pub mod kernels;
mod list;
mod selection;
mod sim;
mod times;

use std::ffi::c_void;

use record::failure::{Failure, Result};

pub use arena::{AnySlice, Arena, Buffer, Slice, footprint};
pub use cuda::{Cuda, GEMM_WORKSPACE};
pub use dtype::ComputeDtype;
pub use element::{Element, Scalar};
pub use gemm::{Gemm, Operand};
pub use kernel::{Argument, Kernel, Parameter, SHARED_LIMIT, Shape, Source};
pub use list::Devices;
pub use selection::{Any, DeviceKind, TEST_DEVICE};
pub use sim::Sim;

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub free: u64,
    pub total: u64,
}

/// Hardware that holds buffers, and runs kernels and GEMMs on them in order.
///
/// # Errors
/// Every method fails with 1 if the device or earlier work failed, if slices differ in length, or
/// if arguments do not match a kernel's declaration or a GEMM's operands. Methods that may also
/// fail with 69 document it.
pub trait Device {
    /// A CUDA graph; see [`Device::capture`].
    type Graph;

    /// A human-readable description: `cuda:0 NVIDIA H200, 139.8 GiB`.
    fn describe(&self) -> String;

    /// Another handle on this device, without an arena. It shares the stream, so work of both
    /// handles runs in call order.
    fn beside(&self) -> Result<Self>
    where
        Self: Sized;

    /// Free and total memory of the device; an arena counts as used.
    fn memory(&self) -> Result<Memory>;

    /// Allocates the arena: `bytes` of device memory for all buffers.
    ///
    /// # Errors
    /// 69: not enough memory is free; 1: there already is an arena.
    fn reserve(&mut self, bytes: u64) -> Result<()>;

    /// Frees the arena's memory. Its buffers remain, without content, until [`Device::resume`].
    fn suspend(&mut self) -> Result<()>;

    /// Allocates the arena's memory again, with undefined content. Returns false if memory is
    /// short, or available only at another address. Then everything that stores addresses, such as
    /// a graph, must be rebuilt.
    fn resume(&mut self) -> Result<bool>;

    /// Bytes of the arena that GEMMs use as workspace.
    fn workspace(&self) -> u64;

    fn arena(&self) -> Result<&Arena>;

    /// Allocates an uninitialized buffer of `length` values.
    ///
    /// # Errors
    /// 69: the arena is full; 1: [`Device::reserve`] was not called.
    fn allocate<T: Element>(&mut self, length: usize) -> Result<Buffer<T>> {
        self.arena()?.allocate(length)
    }

    /// Copies values from the host. `from` may be reused as soon as this returns.
    fn upload<T: Element>(&mut self, from: &[T], to: Slice<'_, T>) -> Result<()>;

    /// Waits for all work, then copies values to the host.
    fn download<T: Element>(&mut self, from: Slice<'_, T>, to: &mut [T]) -> Result<()>;

    /// Copies values on the device; the ranges must not overlap.
    fn copy<T: Element>(&mut self, from: Slice<'_, T>, to: Slice<'_, T>) -> Result<()>;

    /// Sets every value to zero.
    fn clear<T: Element>(&mut self, what: Slice<'_, T>) -> Result<()>;

    /// Returns true if it runs the kernels of a source, which may be limited to one architecture.
    fn runs(&self, source: &Source) -> bool {
        source.architecture.is_none()
    }

    /// Multiprocessors, which kernels with a grid of any size choose it by.
    fn multiprocessors(&self) -> u32 {
        1
    }

    /// A choice that was measured on this hardware before, and kept on disk.
    fn choice(&self, _name: &str) -> Option<u64> {
        None
    }

    /// Keeps a measured choice for later processes. Without a place for it they only have to measure again.
    fn keep_choice(&mut self, _name: &str, _choice: u64) {}

    /// Runs a kernel.
    ///
    /// Does not check the kernel's contract, such as the buffer lengths that follow from its scalars.
    fn launch(&mut self, kernel: &'static Kernel, shape: Shape, arguments: &[Argument<'_>]) -> Result<()>;

    /// Computes a GEMM.
    fn gemm(&mut self, gemm: &Gemm<'_>) -> Result<()>;

    /// Waits for all work.
    fn synchronize(&mut self) -> Result<()>;

    /// Returns true if all work is done, without waiting where that is possible.
    fn is_idle(&mut self) -> Result<bool> {
        self.synchronize().map(|()| true)
    }

    /// The CUDA stream that carries all work, for libraries that take one; `None` without CUDA.
    fn library_stream(&self) -> Option<*mut c_void> {
        None
    }

    /// Starts capturing: launches, GEMMs, device copies and work that libraries enqueue are recorded in a
    /// graph instead of run. Returns false if the device cannot capture.
    fn begin_capture(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Ends capturing.
    fn end_capture(&mut self) -> Result<Self::Graph> {
        Err(Failure::work("this device has no CUDA graphs"))
    }

    /// Runs a captured graph on the current content of its buffers.
    fn replay(&mut self, _graph: &Self::Graph) -> Result<()> {
        Err(Failure::work("this device has no CUDA graphs"))
    }

    /// Captures `work` without running it. Returns `None` without calling `work` if the device cannot
    /// capture. Modules and memory that the work needs must be loaded already, so run it once before.
    fn capture(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<Option<Self::Graph>>
    where
        Self: Sized,
    {
        if !self.begin_capture()? {
            return Ok(None);
        }
        let outcome = work(self);
        let graph = self.end_capture();
        outcome.and(graph).map(Some)
    }
}

fn same_length(what: &str, from: usize, to: usize) -> Result<()> {
    if from == to { Ok(()) } else { Err(Failure::work(format!("{what}: {from} values to a slice of {to}"))) }
}
