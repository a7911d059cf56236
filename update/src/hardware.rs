//! The processor that a call computes on, checked before anything is read.

use std::sync::Mutex;
use std::thread::{self, Builder};

use device::cuda::{Library, check_cards, open_library};
use device::{DeviceKind, Devices};
use gemm::Precision;
use record::failure::{Failure, Result};

/// Where to compute, in which precision, and with how much of the machine.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// The device as `--device` names it.
    pub device: String,
    /// All that it names: ranks have one each.
    pub devices: Devices,
    /// The device of this process.
    pub kind: DeviceKind,
    /// Type in which linear layers compute.
    pub precision: Precision,
    /// Threads of this process.
    pub threads: usize,
    /// Bytes of device memory to use at most, or to plan for.
    pub memory: Option<u64>,
}

impl Hardware {
    /// The precision without `--dtype`.
    pub fn default_precision(device: DeviceKind) -> Precision {
        if device == DeviceKind::Cpu { Precision::Float32 } else { Precision::BFloat16 }
    }

    /// The threads without `--threads`: one a core.
    pub fn all_threads() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    /// True for a GPU or the simulator.
    pub fn is_device(&self) -> bool {
        self.kind != DeviceKind::Cpu
    }

    /// Fails for a device that cannot compute in `dtype`, that is not there, or without the libraries that it needs; a plan
    /// needs none.
    ///
    /// # Errors
    /// Usage (exit 2), or 69.
    pub fn check_device(&self, dtype: Option<Precision>, plans: bool) -> Result<()> {
        if self.is_device() && dtype == Some(Precision::Float32) {
            return Err(Failure::usage("--dtype float32 is for the CPU only: devices compute in bfloat16")
                .hint("leave --dtype out, or train with --device cpu"));
        }
        if !plans && matches!(self.kind, DeviceKind::Cuda(_)) {
            for library in [Library::Driver, Library::Nvrtc, Library::CublasLt] {
                open_library(library)?;
            }
            check_cards(&self.devices.cards())?;
        }
        Ok(())
    }

    /// Fails where the system does not start the threads.
    ///
    /// # Errors
    /// 69.
    pub fn check_threads(&self) -> Result<()> {
        let gate = Mutex::new(());
        let closed = gate.lock();
        thread::scope(|scope| {
            // Each waits until all have started.
            let wait = || drop(gate.lock());
            let mut others = 1..self.threads;
            let started = others.try_for_each(|_| Builder::new().spawn_scoped(scope, wait).map(|_| ()));
            drop(closed);
            started
        })
        .map_err(|error| {
            Failure::unavailable(format!("{} threads cannot be started: {error}", self.threads))
                .hint("lower --threads, or raise the limits that ulimit -u and -v show")
        })
    }
}
