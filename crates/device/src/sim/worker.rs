//! Workers that run the simulator's blocks: the interface to the C++ code.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use record::failure::{Failure, Result};

use crate::kernel::{Shape, SimulatorEntry};

unsafe extern "C" {
    fn troupe_simulator_worker_new() -> *mut c_void;
    fn troupe_simulator_worker_free(worker: *mut c_void);
}

/// Mirrors `simulator::Launch`, which a launch's workers share and access atomically.
#[repr(C)]
struct Shared {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u64,
    shared_limit: u64,
    seed: u64,
    next_block: u64,
    failed: u32,
    message: [c_char; 512],
}

/// Mirrors `simulator::Call`.
#[repr(C)]
struct Call {
    launch: *mut Shared,
    worker: *mut c_void,
}

pub(crate) struct Launch(UnsafeCell<Shared>);

// SAFETY: while workers run, the C++ code accesses changing fields only atomically. Only the worker that
// first sets `failed` writes the message, and it is read after all workers are done.
unsafe impl Sync for Launch {}

impl Launch {
    pub fn new(shape: Shape, shared_limit: u32, seed: u64) -> Self {
        Launch(UnsafeCell::new(Shared {
            grid: shape.grid,
            block: shape.block,
            shared_bytes: u64::from(shape.shared),
            shared_limit: u64::from(shared_limit),
            seed,
            next_block: 0,
            failed: 0,
            message: [0; 512],
        }))
    }

    /// The result, once every worker is done.
    pub fn outcome(self) -> Result<()> {
        let shared = self.0.into_inner();
        if shared.failed == 0 {
            return Ok(());
        }
        // SAFETY: snprintf ends the message with a zero byte.
        let message = unsafe { CStr::from_ptr(shared.message.as_ptr()) };
        Err(Failure::work(message.to_string_lossy()))
    }
}

/// The stacks and shared memory for one block at a time.
pub(crate) struct Worker(NonNull<c_void>);

// SAFETY: a worker is memory that its owner uses exclusively during `run`.
unsafe impl Send for Worker {}

impl Worker {
    pub fn new() -> Result<Self> {
        // SAFETY: no arguments.
        let worker = unsafe { troupe_simulator_worker_new() };
        NonNull::new(worker).map(Worker).ok_or_else(|| Failure::unavailable("sim: no memory for a worker"))
    }

    /// Runs blocks of the launch until none is left.
    ///
    /// # Safety
    /// `arguments` must hold the addresses of values of the parameters that `entry` was generated for.
    pub unsafe fn run(&mut self, entry: SimulatorEntry, launch: &Launch, arguments: *const *const c_void) {
        let mut call = Call { launch: launch.0.get(), worker: self.0.as_ptr() };
        // SAFETY: `call` has the type that the entry expects, and this worker is
        // exclusively ours during the call.
        unsafe { entry((&raw mut call).cast(), arguments) };
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: created by the matching function, and no longer used.
        unsafe { troupe_simulator_worker_free(self.0.as_ptr()) };
    }
}
