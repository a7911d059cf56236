//! The simulator: CUDA kernels run on the CPU, for tests and debugging.
//!
//! Kernels are the same sources that NVRTC compiles, compiled for the host (`crates/compile-kernels/cuda/simulator.h`
//! lists what is modeled). The simulator also detects divergence at barriers, deadlocks, misaligned or
//! missing asynchronous copies, and writes past the end of a buffer, by guard bytes checked after every
//! launch. Uninitialized memory is NaN. A seed selects the schedule; tests run every kernel under several.

mod gemm;
mod worker;

use std::convert::Infallible;
use std::ffi::c_void;

use memmap2::{MmapMut, MmapOptions};
use record::failure::{Failure, Result};

use crate::arena::{ALIGNMENT, Arena, Buffer, Slice, footprint};
use crate::element::Element;
use crate::gemm::Gemm;
use crate::kernel::{Argument, Kernel, Shape, Source, Value};
use crate::{Device, Memory};

use worker::Worker;

/// Guard bytes after each buffer.
const MARGIN: u64 = 256;
/// The value of guard bytes.
const MARK: u8 = 0xA5;

/// The simulated device.
pub struct Sim {
    arena: Option<Arena>,
    /// The arena's memory; pages are committed when touched.
    host: Option<MmapMut>,
    workers: Vec<Worker>,
    seed: u64,
    total: u64,
    /// True if it runs kernels written for an H200's architecture only.
    architecture_kernels: bool,
}

impl Sim {
    /// A simulator that runs blocks on `threads` threads in the schedule `seed`, with the memory and the kernels of an H200.
    pub fn new(threads: usize, seed: u64) -> Result<Self> {
        let workers = (0..threads.max(1)).map(|_| Worker::new()).collect::<Result<_>>()?;
        Ok(Sim { arena: None, host: None, workers, seed, total: 143_771 << 20, architecture_kernels: true })
    }

    /// Sets the schedule of later launches: 0 is lockstep, other seeds are orders of warps.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Runs the portable kernels instead of those written for an H200.
    pub fn without_architecture_kernels(&mut self) {
        self.architecture_kernels = false;
    }

    /// The values of a slice. Nothing runs between calls, so nothing else writes them.
    #[allow(clippy::mut_from_ref)]
    fn values<T: Element>(&self, slice: Slice<'_, T>) -> Result<&mut [T]> {
        slice.raw().check(self.arena()?)?;
        // SAFETY: the slice lies in a live buffer of our arena, aligned to its type. Callers hold one such
        // slice at a time, or two of disjoint ranges.
        Ok(unsafe { std::slice::from_raw_parts_mut(slice.address() as *mut T, slice.len()) })
    }

    /// Checks the guards after the buffers of a launch.
    fn check_margins(&self, kernel: &Kernel, arguments: &[Argument<'_>]) -> Result<()> {
        for (argument, parameter) in arguments.iter().zip(kernel.parameters()) {
            let Value::Pointer(raw) = argument.0 else { continue };
            if raw.arena.is_none() {
                continue;
            }
            let end = raw.buffer_end.next_multiple_of(ALIGNMENT) + MARGIN;
            // SAFETY: the rest of the buffer's footprint lies in the arena and belongs to no other buffer.
            let margin = unsafe {
                std::slice::from_raw_parts(raw.buffer_end as *const u8, (end - raw.buffer_end) as usize)
            };
            if let Some(past) = margin.iter().position(|&byte| byte != MARK) {
                let (kernel, buffer) = (kernel.name(), parameter.name);
                return Err(Failure::work(format!(
                    "kernel {kernel}: wrote past the end of {buffer} ({past} bytes after it)"
                )));
            }
        }
        Ok(())
    }
}

impl Device for Sim {
    /// Never captured, because CPU libraries do not run on the simulator.
    type Graph = Infallible;

    fn describe(&self) -> String {
        format!("sim: CUDA kernels on {} threads of the CPU, schedule {}", self.workers.len(), self.seed)
    }

    fn beside(&self) -> Result<Self> {
        Ok(Sim {
            architecture_kernels: self.architecture_kernels,
            ..Sim::new(self.workers.len(), self.seed)?
        })
    }

    fn memory(&self) -> Result<Memory> {
        let taken = self.arena.as_ref().map_or(0, Arena::total);
        Ok(Memory { free: self.total - taken, total: self.total })
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        if self.arena.is_some() {
            return Err(Failure::work("sim: memory is reserved already"));
        }
        if bytes > self.total {
            return Err(Failure::unavailable(format!("sim: {bytes} bytes requested of {}", self.total)));
        }
        let extent = Arena::extent(bytes, MARGIN).max(1) as usize;
        let host = MmapOptions::new().len(extent).no_reserve_swap().map_anon();
        let host =
            host.map_err(|error| Failure::unavailable(format!("sim: {extent} bytes of memory: {error}")))?;
        let address = self.host.insert(host).as_mut_ptr() as u64;
        self.arena = Some(Arena::new(address, bytes, MARGIN));
        Ok(())
    }

    fn suspend(&mut self) -> Result<()> {
        Ok(())
    }

    fn resume(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn workspace(&self) -> u64 {
        0
    }

    fn arena(&self) -> Result<&Arena> {
        self.arena.as_ref().ok_or_else(|| Failure::work("sim: no memory is reserved yet"))
    }

    fn allocate<T: Element>(&mut self, length: usize) -> Result<Buffer<T>> {
        let buffer = self.arena()?.allocate::<T>(length)?;
        let bytes = length * size_of::<T>();
        let footprint = (footprint(bytes as u64) + MARGIN) as usize;
        // SAFETY: the footprint and the margin after it belong to the new buffer alone.
        let all = unsafe { std::slice::from_raw_parts_mut(buffer.address() as *mut u8, footprint) };
        let (values, margin) = all.split_at_mut(bytes);
        values.fill(0xFF);
        margin.fill(MARK);
        Ok(buffer)
    }

    fn upload<T: Element>(&mut self, from: &[T], to: Slice<'_, T>) -> Result<()> {
        crate::same_length("upload", from.len(), to.len())?;
        self.values(to)?.copy_from_slice(from);
        Ok(())
    }

    fn download<T: Element>(&mut self, from: Slice<'_, T>, to: &mut [T]) -> Result<()> {
        crate::same_length("download", from.len(), to.len())?;
        to.copy_from_slice(self.values(from)?);
        Ok(())
    }

    fn copy<T: Element>(&mut self, from: Slice<'_, T>, to: Slice<'_, T>) -> Result<()> {
        crate::same_length("copy", from.len(), to.len())?;
        let (start, end) = (from.address(), from.address() + (from.len() * size_of::<T>()) as u64);
        if !from.is_empty() && to.address() < end && start < to.address() + (end - start) {
            return Err(Failure::work("copy: the ranges overlap"));
        }
        let values = self.values(from)?.to_vec();
        self.values(to)?.copy_from_slice(&values);
        Ok(())
    }

    fn clear<T: Element>(&mut self, what: Slice<'_, T>) -> Result<()> {
        self.values(what)?.fill(T::zeroed());
        Ok(())
    }

    fn runs(&self, source: &Source) -> bool {
        source.architecture.is_none() || self.architecture_kernels
    }

    fn launch(&mut self, kernel: &'static Kernel, shape: Shape, arguments: &[Argument<'_>]) -> Result<()> {
        let kernel = kernel.of(arguments);
        kernel.check(self.arena()?, shape, arguments)?;
        let bits: Vec<u64> = arguments.iter().map(Argument::bits).collect();
        let addresses: Vec<usize> = bits.iter().map(|bits| std::ptr::from_ref(bits) as usize).collect();
        let blocks: u64 = shape.grid.iter().map(|&n| u64::from(n)).product();
        let call = worker::Launch::new(shape, kernel.source().shared_limit(), self.seed);
        let helpers = self.workers.len().min(usize::try_from(blocks).unwrap_or(usize::MAX));
        let work = |worker: &mut Worker| {
            let arguments = addresses.as_ptr().cast::<*const c_void>();
            // SAFETY: the addresses point to values of the parameter types that the entry was generated for,
            // which have been checked; `bits` lives until all workers are done.
            unsafe { worker.run(kernel.entry, &call, arguments) };
        };
        if let Some((first, rest)) = self.workers[..helpers].split_first_mut() {
            std::thread::scope(|scope| {
                for worker in rest {
                    // If the system refuses more threads, the others take its blocks.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, || work(worker));
                }
                work(first);
            });
        }
        call.outcome()?;
        self.check_margins(kernel, arguments)
    }

    fn gemm(&mut self, gemm: &Gemm<'_>) -> Result<()> {
        gemm.check(self.arena()?)?;
        // SAFETY: the operands' extents have been checked against buffers of our arena.
        unsafe { gemm::run(gemm, self.workers.len()) };
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}
