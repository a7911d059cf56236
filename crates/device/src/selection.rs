//! The value of `--device`, and a device whose kind is known only at run time.

use std::ffi::c_void;
use std::fmt;
use std::str::FromStr;
use std::sync::Once;
use std::time::Instant;

use record::failure::{Failure, Result};

use crate::arena::{Arena, Buffer, Slice};
use crate::cuda::Cuda;
use crate::element::Element;
use crate::gemm::Gemm;
use crate::kernel::{Argument, Kernel, Shape, Source};
use crate::sim::Sim;
use crate::{Device, Memory, times};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DeviceKind {
    /// The CPU, which has its own implementation.
    #[default]
    Cpu,
    /// The NVIDIA GPU with this number.
    Cuda(u32),
    /// The simulator: the CUDA kernels on the CPU. Numbers tell several apart.
    Sim(u32),
}

impl DeviceKind {
    /// Parses a flag's value.
    ///
    /// # Errors
    /// Usage (exit 2) for unknown devices.
    pub fn parse(flag: &str, text: &str) -> Result<Self> {
        text.parse().map_err(|()| {
            Failure::usage(format!("{flag} {text}: not a device"))
                .hint("devices are cpu, cuda, cuda:N and sim")
        })
    }
}

impl FromStr for DeviceKind {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "cpu" => Ok(DeviceKind::Cpu),
            "sim" => Ok(DeviceKind::Sim(0)),
            "cuda" => Ok(DeviceKind::Cuda(0)),
            _ => match text.split_once(':').map(|(kind, number)| (kind, number.parse())) {
                Some(("cuda", Ok(number))) => Ok(DeviceKind::Cuda(number)),
                Some(("sim", Ok(number))) => Ok(DeviceKind::Sim(number)),
                _ => Err(()),
            },
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceKind::Cpu => formatter.write_str("cpu"),
            DeviceKind::Cuda(number) => write!(formatter, "cuda:{number}"),
            DeviceKind::Sim(0) => formatter.write_str("sim"),
            DeviceKind::Sim(number) => write!(formatter, "sim:{number}"),
        }
    }
}

/// The environment variable that selects the device of tests; by default the simulator.
pub const TEST_DEVICE: &str = "TROUPE_TEST_DEVICE";

/// A GPU or the simulator.
pub enum Any {
    /// A GPU.
    Cuda(Box<Cuda>),
    /// The simulator.
    Sim(Sim),
}

/// Forwards a call to the actual device.
macro_rules! forward {
    ($self:expr, $device:ident => $call:expr) => {
        match $self {
            Any::Cuda($device) => $call,
            Any::Sim($device) => $call,
        }
    };
}

impl Any {
    /// Opens a device. The simulator uses `threads` threads.
    ///
    /// # Errors
    /// 69 where it is not available; 1 for the CPU, which does not implement [`Device`].
    pub fn open(kind: DeviceKind, threads: usize) -> Result<Self> {
        match kind {
            DeviceKind::Cpu => Err(Failure::work("the CPU is not a Device")),
            DeviceKind::Cuda(number) => Ok(Any::Cuda(Box::new(Cuda::new(number)?))),
            DeviceKind::Sim(_) => Ok(Any::Sim(Sim::new(threads, 0)?)),
        }
    }

    /// The device for tests: the one that [`TEST_DEVICE`] names, or the simulator with schedule `seed`.
    pub fn for_tests(seed: u64) -> Result<Self> {
        let kind = std::env::var(TEST_DEVICE)
            .map_or(Ok(DeviceKind::Sim(0)), |name| DeviceKind::parse(TEST_DEVICE, &name))?;
        if let DeviceKind::Cuda(number) = kind {
            keep_context(number)?;
        }
        let mut device = Self::open(kind, 2)?;
        if let Any::Sim(sim) = &mut device {
            sim.set_seed(seed);
        }
        Ok(device)
    }

    /// Runs the portable kernels instead of those written for the device's architecture.
    pub fn without_architecture_kernels(&mut self) {
        forward!(self, device => device.without_architecture_kernels());
    }

    /// Seeds for tests: four schedules in the simulator; two on a GPU, to compare the bits of two runs.
    pub fn test_seeds() -> std::ops::Range<u64> {
        let kind = std::env::var(TEST_DEVICE).ok().and_then(|name| name.parse().ok());
        if matches!(kind, Some(DeviceKind::Cuda(_))) { 0..2 } else { 0..4 }
    }
}

/// Keeps the GPU's context until the process ends, since creating one for each of a few
/// hundred tests takes minutes.
fn keep_context(number: u32) -> Result<()> {
    static HELD: Once = Once::new();
    let mut outcome = Ok(());
    HELD.call_once(|| outcome = Cuda::new(number).map(std::mem::forget));
    outcome
}

impl Any {
    /// Runs `work`, and times it if kernel times were requested.
    fn timed(
        &mut self,
        name: impl FnOnce() -> String,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let Some(times) = times::asked() else { return work(self) };
        forward!(self, device => device.synchronize())?;
        let started = Instant::now();
        work(self)?;
        forward!(self, device => device.synchronize())?;
        times.add(name(), started.elapsed());
        Ok(())
    }
}

impl Device for Any {
    type Graph = <Cuda as Device>::Graph;

    fn describe(&self) -> String {
        forward!(self, device => device.describe())
    }

    fn beside(&self) -> Result<Self> {
        Ok(match self {
            Any::Cuda(device) => Any::Cuda(Box::new(device.beside()?)),
            Any::Sim(device) => Any::Sim(device.beside()?),
        })
    }

    fn memory(&self) -> Result<Memory> {
        forward!(self, device => device.memory())
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        forward!(self, device => device.reserve(bytes))
    }

    fn suspend(&mut self) -> Result<()> {
        forward!(self, device => device.suspend())
    }

    fn resume(&mut self) -> Result<bool> {
        forward!(self, device => device.resume())
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

    fn runs(&self, source: &Source) -> bool {
        forward!(self, device => device.runs(source))
    }

    fn multiprocessors(&self) -> u32 {
        forward!(self, device => device.multiprocessors())
    }

    fn choice(&self, name: &str) -> Option<u64> {
        forward!(self, device => device.choice(name))
    }

    fn keep_choice(&mut self, name: &str, choice: u64) {
        forward!(self, device => device.keep_choice(name, choice));
    }

    fn launch(&mut self, kernel: &'static Kernel, shape: Shape, arguments: &[Argument<'_>]) -> Result<()> {
        let launch = |any: &mut Self| forward!(any, device => device.launch(kernel, shape, arguments));
        self.timed(|| kernel.of(arguments).name().to_owned(), launch)
    }

    fn gemm(&mut self, gemm: &Gemm<'_>) -> Result<()> {
        let name = || format!("gemm {} x {} x {}", gemm.rows, gemm.columns, gemm.depth);
        self.timed(name, |any| forward!(any, device => device.gemm(gemm)))
    }

    fn synchronize(&mut self) -> Result<()> {
        forward!(self, device => device.synchronize())?;
        times::asked().map_or(Ok(()), times::Times::write)
    }

    fn is_idle(&mut self) -> Result<bool> {
        forward!(self, device => device.is_idle())
    }

    fn library_stream(&self) -> Option<*mut c_void> {
        forward!(self, device => device.library_stream())
    }

    fn begin_capture(&mut self) -> Result<bool> {
        forward!(self, device => device.begin_capture())
    }

    fn end_capture(&mut self) -> Result<Self::Graph> {
        match self {
            Any::Cuda(device) => device.end_capture(),
            Any::Sim(device) => device.end_capture().map(|never| match never {}),
        }
    }

    fn replay(&mut self, graph: &Self::Graph) -> Result<()> {
        match self {
            Any::Cuda(device) => device.replay(graph),
            Any::Sim(_) => Err(Failure::work("a CUDA graph of another device")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_and_nothing_else() {
        for (text, kind) in [
            ("cpu", DeviceKind::Cpu),
            ("cuda", DeviceKind::Cuda(0)),
            ("cuda:3", DeviceKind::Cuda(3)),
            ("sim", DeviceKind::Sim(0)),
        ] {
            assert_eq!(DeviceKind::parse("--device", text), Ok(kind));
        }
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "cuda0"] {
            let failure = DeviceKind::parse("--device", text).unwrap_err();
            assert_eq!(failure.code, record::failure::USAGE, "{text}");
        }
    }
}
