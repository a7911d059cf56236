//! One device with memory, kernels and matrix products: an NVIDIA GPU, or its simulator on the CPU.
//!
//! [`Device`] is what code above needs of hardware and no more. [`Cuda`] is a GPU, [`Sim`] runs the very text of the CUDA kernels on
//! the CPU, so that everything of the GPU's path but the driver's calls is exercised on machines without a GPU.
//! Stages share this crate and know nothing of each other. Left out: several devices in one process, streams (work
//! happens in the order in which it is asked for), and any operation of a model.
//!
//! # How a crate declares its kernels
//!
//! 1. `kernels/NAME.cu`: `#include "device.cuh"` (its header lists what a kernel may use; own headers in the same
//!    folder are included the same way, no others are needed), and kernels as
//!    `extern "C" __global__ void __launch_bounds__(128) name(bf16* out, const float* x, int rows)`. Parameters are
//!    values of or pointers to `bf16 float u8 i16 int u32 i64 u64`. Kernel names are unique in the crate. For
//!    several head sizes write a `template <int width> __device__ void` and one `extern "C"` kernel for each size.
//! 2. `build.rs`: `fn main() { compile_kernels::declare("kernels"); }` with `compile-kernels` in
//!    `[build-dependencies]`.
//! 3. `src/kernels.rs`: `include!(concat!(env!("OUT_DIR"), "/kernels.rs"));`. It holds a `pub static NAME: Kernel` for
//!    each kernel, in capitals, and `ALL`.
//! 4. To run: `device.launch(&kernels::NAME, Shape::rows(blocks, threads), &[(&buffer).into(), 3i32.into()])?`. Number
//!    and types of the arguments are checked against the kernel's parameters.
//!
//! # Memory
//!
//! [`Device::reserve`] takes one arena from the device, once; before that nothing is allocated there. [`Buffer`]s are
//! ranges of the arena, given back when dropped. New buffers hold no promise: under the simulator they are NaN, and
//! a kernel that writes past the end of one of its buffers, or reads NaN it should not, is found by tests.
//!
//! # Tests
//!
//! A test takes its device from [`Any::for_tests`] and runs under the seeds 0 to 3. It then runs in the simulator, and
//! on a GPU where `TROUPE_TEST_DEVICE=cuda` is set.
//!
//! # Order and errors
//!
//! Work is done in the order of the calls; [`Device::download`] and [`Device::synchronize`] wait for it. An error of a
//! kernel may therefore be reported by a later call. Errors are [`record::failure::Failure`]s: 69 where the device
//! or a library is not there or lacks memory, 1 where work on it failed.

extern crate self as device;

mod any;
mod arena;
mod buffer;
mod choice;
pub mod cuda;
mod element;
mod gemm;
mod kernel;
pub mod kernels;
mod sim;

use record::failure::{Failure, Result};

pub use any::{Any, TEST_DEVICE};
pub use arena::{Arena, footprint};
pub use buffer::{Buffer, Slice};
pub use choice::Choice;
pub use cuda::{Cuda, PRODUCT_WORKSPACE};
pub use element::{Element, Scalar};
pub use gemm::{Gemm, Operand};
pub use kernel::{Argument, Kernel, Parameter, SHARED_LIMIT, Shape, Source};
pub use sim::Sim;

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What could be allocated now.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

/// Hardware that holds buffers and runs kernels and matrix products on them, in order.
pub trait Device {
    /// Work that was written down by [`Device::record`].
    type Recording;

    /// What it is, for people: `cuda:0 NVIDIA H200, 139.8 GiB`.
    fn describe(&self) -> String;

    /// Memory of the whole device; an arena counts as taken.
    ///
    /// # Errors
    /// 69 where the device cannot be asked.
    fn memory(&self) -> Result<Memory>;

    /// Takes the arena: `bytes` of device memory in which every buffer lies.
    ///
    /// # Errors
    /// 69 with what is free where there is not so much, 1 if there is an arena already.
    fn reserve(&mut self, bytes: u64) -> Result<()>;

    /// Bytes of the arena that products take for themselves.
    fn workspace(&self) -> u64;

    /// The arena.
    ///
    /// # Errors
    /// 1 before [`Device::reserve`].
    fn arena(&self) -> Result<&Arena>;

    /// A buffer of `length` values, whose content is unspecified.
    ///
    /// # Errors
    /// 69 where the arena has no room for it, 1 before [`Device::reserve`].
    fn allocate<T: Element>(&mut self, length: usize) -> Result<Buffer<T>> {
        self.arena()?.allocate(length)
    }

    /// Copies values from the host; `from` may be reused at once.
    ///
    /// # Errors
    /// 1 for different lengths or if the device fails.
    fn upload<T: Element>(&mut self, from: &[T], to: Slice<'_, T>) -> Result<()>;

    /// Waits for all work, then copies values to the host.
    ///
    /// # Errors
    /// 1 for different lengths, or if the device or work before has failed.
    fn download<T: Element>(&mut self, from: Slice<'_, T>, to: &mut [T]) -> Result<()>;

    /// Copies values on the device; the ranges do not overlap.
    ///
    /// # Errors
    /// 1 for different lengths or if the device fails.
    fn copy<T: Element>(&mut self, from: Slice<'_, T>, to: Slice<'_, T>) -> Result<()>;

    /// Sets every value to zero.
    ///
    /// # Errors
    /// 1 if the device fails.
    fn clear<T: Element>(&mut self, what: Slice<'_, T>) -> Result<()>;

    /// Runs a kernel.
    ///
    /// The kernel's own contract (lengths its buffers must have for the scalars given) is not checked here.
    ///
    /// # Errors
    /// 1 for arguments that are not the kernel's, an impossible shape, or if the kernel fails.
    fn launch(&mut self, kernel: &'static Kernel, shape: Shape, arguments: &[Argument<'_>]) -> Result<()>;

    /// Computes a product of matrices.
    ///
    /// # Errors
    /// 1 for a description that makes no sense or if the device fails.
    fn gemm(&mut self, gemm: &Gemm<'_>) -> Result<()>;

    /// Waits for all work.
    ///
    /// # Errors
    /// 1 if work before has failed.
    fn synchronize(&mut self) -> Result<()>;

    /// From now on launches, products, copies on the device and what libraries put into its stream are written down
    /// instead of done; false where the device cannot do that.
    ///
    /// # Errors
    /// 1 if the device refuses.
    fn begin_recording(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// What was written down since [`Device::begin_recording`].
    ///
    /// # Errors
    /// 1 where something was asked for that cannot be written down (to wait, to read the host's memory), or nothing was.
    fn end_recording(&mut self) -> Result<Self::Recording> {
        Err(Failure::work("this device does not record"))
    }

    /// Does what was written down, over what its buffers hold now, at the price of one call.
    ///
    /// # Errors
    /// 1 if the device fails.
    fn repeat(&mut self, _recording: &Self::Recording) -> Result<()> {
        Err(Failure::work("this device does not record"))
    }

    /// Writes down what `work` asks for and does none of it; nothing, with `work` not called, where the device cannot.
    /// Whatever has to be loaded or allocated for the work must be there: do it once before it is recorded.
    ///
    /// # Errors
    /// Those of `work`, [`Device::begin_recording`] and [`Device::end_recording`].
    fn record(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<Option<Self::Recording>>
    where
        Self: Sized,
    {
        if !self.begin_recording()? {
            return Ok(None);
        }
        let outcome = work(self);
        let recording = self.end_recording();
        outcome.and(recording).map(Some)
    }
}

fn same_length(what: &str, from: usize, to: usize) -> Result<()> {
    if from == to { Ok(()) } else { Err(Failure::work(format!("{what}: {from} values to a place of {to}"))) }
}
