//! Workers of the simulator, which run blocks: the interface to its C++ side.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use record::failure::{Failure, Result};

use crate::kernel::{Shape, SimulatorEntry};

unsafe extern "C" {
    fn troupe_simulator_worker_new() -> *mut c_void;
    fn troupe_simulator_worker_free(worker: *mut c_void);
}

/// `simulator::Launch`, shared by the workers of one launch; they touch it with atomic operations.
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

/// `simulator::Call`.
#[repr(C)]
struct Call {
    launch: *mut Shared,
    worker: *mut c_void,
}

/// One launch.
pub(crate) struct Launch(UnsafeCell<Shared>);

// SAFETY: while workers run, the C++ side accesses the changing fields with atomic operations only, and the message
// is written by the one worker that set `failed` first; it is read after all workers are done.
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
        // SAFETY: the message ends with a zero, as snprintf leaves it.
        let message = unsafe { CStr::from_ptr(shared.message.as_ptr()) };
        Err(Failure::work(message.to_string_lossy()))
    }
}

/// The stacks and the shared memory of the block that one thread runs.
pub(crate) struct Worker(NonNull<c_void>);

// SAFETY: a worker is memory that whoever calls `run` owns for the time of the call.
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
    /// `arguments` must be the addresses of the values of the parameters that `entry` was generated for.
    pub unsafe fn run(&mut self, entry: SimulatorEntry, launch: &Launch, arguments: *const *const c_void) {
        let mut call = Call { launch: launch.0.get(), worker: self.0.as_ptr() };
        // SAFETY: `call` is what the entry expects, and this worker is ours for the time of the call.
        unsafe { entry((&raw mut call).cast(), arguments) };
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: made by the matching function, and no longer used.
        unsafe { troupe_simulator_worker_free(self.0.as_ptr()) };
    }
}
