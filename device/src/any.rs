//! A device of a kind known at run time only: what `--device` names, or what the tests are to run on.

use std::sync::Once;

use record::failure::{Failure, Result};

use crate::arena::Arena;
use crate::buffer::{Buffer, Slice};
use crate::choice::Choice;
use crate::cuda::Cuda;
use crate::element::Element;
use crate::gemm::Gemm;
use crate::kernel::{Argument, Kernel, Shape};
use crate::sim::Sim;
use crate::{Device, Memory};

/// The variable that names the device of tests; the simulator where it is not set.
pub const TEST_DEVICE: &str = "TROUPE_TEST_DEVICE";

/// A GPU or the simulator.
pub enum Any {
    /// A GPU.
    Cuda(Box<Cuda>),
    /// The simulator.
    Sim(Sim),
}

impl Any {
    /// Opens what was chosen; the simulator uses so many threads.
    ///
    /// # Errors
    /// 69 where it is not there; 1 for the CPU, which is no device in this sense.
    pub fn open(choice: Choice, threads: usize) -> Result<Self> {
        match choice {
            Choice::Cpu => Err(Failure::work("the CPU has code of its own")),
            Choice::Cuda(number) => Ok(Any::Cuda(Box::new(Cuda::new(number)?))),
            Choice::Sim => Ok(Any::Sim(Sim::new(threads, 0)?)),
        }
    }

    /// The device that tests run on: the simulator in the schedule of `seed`, or what [`TEST_DEVICE`] names, so that
    /// the same tests hold a GPU to the same results.
    ///
    /// # Errors
    /// As [`Any::open`].
    pub fn for_tests(seed: u64) -> Result<Self> {
        let choice =
            std::env::var(TEST_DEVICE).map_or(Ok(Choice::Sim), |name| Choice::parse(TEST_DEVICE, &name))?;
        if let Choice::Cuda(number) = choice {
            hold(number)?;
        }
        let mut device = Self::open(choice, 2)?;
        if let Any::Sim(sim) = &mut device {
            sim.set_seed(seed);
        }
        Ok(device)
    }

    /// The seeds that tests run under: all schedules that the simulator is asked for; on a GPU, where a seed changes nothing,
    /// two, so that it is seen whether a second run gives the same bits.
    pub fn test_seeds() -> std::ops::Range<u64> {
        let choice = std::env::var(TEST_DEVICE).ok().and_then(|name| name.parse().ok());
        if matches!(choice, Some(Choice::Cuda(_))) { 0..2 } else { 0..4 }
    }
}

/// Keeps the GPU's context until the process ends: made anew for each of a few hundred small devices, it takes minutes.
fn hold(number: u32) -> Result<()> {
    static HELD: Once = Once::new();
    let mut outcome = Ok(());
    HELD.call_once(|| outcome = Cuda::new(number).map(std::mem::forget));
    outcome
}

/// One call, on whichever it is.
macro_rules! forward {
    ($self:expr, $device:ident => $call:expr) => {
        match $self {
            Any::Cuda($device) => $call,
            Any::Sim($device) => $call,
        }
    };
}

impl Device for Any {
    type Recording = <Cuda as Device>::Recording;

    fn describe(&self) -> String {
        forward!(self, device => device.describe())
    }

    fn memory(&self) -> Result<Memory> {
        forward!(self, device => device.memory())
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        forward!(self, device => device.reserve(bytes))
    }

    fn workspace(&self) -> u64 {
        forward!(self, device => device.workspace())
    }

    fn arena(&self) -> Result<&Arena> {
        forward!(self, device => device.arena())
    }

    fn allocate<T: Element>(&mut self, length: usize) -> Result<Buffer<T>> {
        forward!(self, device => device.allocate(length))
    }

    fn upload<T: Element>(&mut self, from: &[T], to: Slice<'_, T>) -> Result<()> {
        forward!(self, device => device.upload(from, to))
    }

    fn download<T: Element>(&mut self, from: Slice<'_, T>, to: &mut [T]) -> Result<()> {
        forward!(self, device => device.download(from, to))
    }

    fn copy<T: Element>(&mut self, from: Slice<'_, T>, to: Slice<'_, T>) -> Result<()> {
        forward!(self, device => device.copy(from, to))
    }

    fn clear<T: Element>(&mut self, what: Slice<'_, T>) -> Result<()> {
        forward!(self, device => device.clear(what))
    }

    fn launch(&mut self, kernel: &'static Kernel, shape: Shape, arguments: &[Argument<'_>]) -> Result<()> {
        forward!(self, device => device.launch(kernel, shape, arguments))
    }

    fn gemm(&mut self, gemm: &Gemm<'_>) -> Result<()> {
        forward!(self, device => device.gemm(gemm))
    }

    fn synchronize(&mut self) -> Result<()> {
        forward!(self, device => device.synchronize())
    }

    fn begin_recording(&mut self) -> Result<bool> {
        forward!(self, device => device.begin_recording())
    }

    fn end_recording(&mut self) -> Result<Self::Recording> {
        match self {
            Any::Cuda(device) => device.end_recording(),
            Any::Sim(device) => device.end_recording().map(|never| match never {}),
        }
    }

    fn repeat(&mut self, recording: &Self::Recording) -> Result<()> {
        match self {
            Any::Cuda(device) => device.repeat(recording),
            Any::Sim(_) => Err(Failure::work("a recording of another device")),
        }
    }
}
