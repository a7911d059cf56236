//! The processor that a call computes on, checked before anything is read.

use std::sync::Mutex;
use std::thread::{self, Builder};

use device::cuda::{Library, check_cards, open_library};
use device::{ComputeDtype, DeviceKind, Devices};
use gemm::Precision;
use record::failure::{Failure, Result};

use crate::backend::Half;

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
    pub dtype: ComputeDtype,
    /// Threads of this process.
    pub threads: usize,
    /// Bytes of device memory to use at most, or to plan for.
    pub memory: Option<u64>,
}

impl Hardware {
    /// The type without `--dtype`.
    pub fn default_dtype(device: DeviceKind) -> ComputeDtype {
        if device == DeviceKind::Cpu { ComputeDtype::Float32 } else { ComputeDtype::BFloat16 }
    }

    /// The precision of products on the CPU.
    pub fn precision(&self) -> Precision {
        if self.dtype == ComputeDtype::Float32 { Precision::Float32 } else { Precision::BFloat16 }
    }

    /// The 16-bit type that a device computes in.
    pub fn half(&self) -> Half {
        if self.dtype == ComputeDtype::Float16 { Half::Float16 } else { Half::BFloat16 }
    }

    /// The threads without `--threads`: one a core.
    pub fn all_threads() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    /// True for a GPU or the simulator.
    pub fn is_device(&self) -> bool {
        self.kind != DeviceKind::Cpu
    }

    /// Fails for hardware that cannot compute in its type, that is not there, or without the libraries that it needs; a plan
    /// needs none.
    pub fn check_device(&self, plans: bool) -> Result<()> {
        match (self.is_device(), self.dtype) {
            (true, ComputeDtype::Float32) => {
                let cause = "--dtype float32 is for the CPU only: devices compute in bfloat16 or float16";
                return Err(Failure::usage(cause).hint("leave --dtype out, or train with --device cpu"));
            }
            (false, ComputeDtype::Float16) => {
                let cause = "--dtype float16 is for devices only: the CPU computes in float32 or bfloat16";
                return Err(
                    Failure::usage(cause).hint("use --dtype float32, which is more exact, or --device cuda")
                );
            }
            _ => {}
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
