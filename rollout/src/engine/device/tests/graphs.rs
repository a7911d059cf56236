//! Captures whose replay is not what was run: they are detected, and everything goes on without graphs.

use super::simulator::{on, scheduler};
use crate::engine::scheduler::{Runner, Scheduler};
use crate::engine::tests::support::{TINY, drain, request};
use crate::engine::{Completion, SamplingParams};
use device::{Arena, Argument, Buffer, Device, Element, Gemm, Kernel, Memory, Shape, Sim, Slice};
use record::failure::{Failure, Result};

/// How a device fails to capture.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The work is done during the capture, and the replay does nothing.
    Empty,
    /// It does not begin.
    Refused,
    /// It does not end well.
    Broken,
}

/// A simulator with a fault.
struct Faulty {
    sim: Sim,
    fault: Fault,
    /// Captures begun.
    begun: usize,
}

impl Device for Faulty {
    type Graph = ();

    fn describe(&self) -> String {
        self.sim.describe()
    }

    /// Work of libraries is never captured by the simulator.
    fn beside(&self) -> Result<Faulty> {
        Ok(Faulty { sim: self.sim.beside()?, fault: self.fault, begun: 0 })
    }

    fn memory(&self) -> Result<Memory> {
        self.sim.memory()
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.sim.reserve(bytes)
    }

    fn suspend(&mut self) -> Result<()> {
        self.sim.suspend()
    }

    fn resume(&mut self) -> Result<bool> {
        self.sim.resume()
    }

    fn workspace(&self) -> u64 {
        self.sim.workspace()
    }

    fn arena(&self) -> Result<&Arena> {
        self.sim.arena()
    }

    fn allocate<T: Element>(&mut self, length: usize) -> Result<Buffer<T>> {
        self.sim.allocate(length)
    }

    fn upload<T: Element>(&mut self, from: &[T], to: Slice<'_, T>) -> Result<()> {
        self.sim.upload(from, to)
    }

    fn download<T: Element>(&mut self, from: Slice<'_, T>, to: &mut [T]) -> Result<()> {
        self.sim.download(from, to)
    }

    fn copy<T: Element>(&mut self, from: Slice<'_, T>, to: Slice<'_, T>) -> Result<()> {
        self.sim.copy(from, to)
    }

    fn clear<T: Element>(&mut self, what: Slice<'_, T>) -> Result<()> {
        self.sim.clear(what)
    }

    fn launch(&mut self, kernel: &'static Kernel, shape: Shape, arguments: &[Argument<'_>]) -> Result<()> {
        self.sim.launch(kernel, shape, arguments)
    }

    fn gemm(&mut self, gemm: &Gemm<'_>) -> Result<()> {
        self.sim.gemm(gemm)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.sim.synchronize()
    }

    fn begin_capture(&mut self) -> Result<bool> {
        self.begun += 1;
        if self.fault == Fault::Refused { Err(Failure::work("refused")) } else { Ok(true) }
    }

    fn end_capture(&mut self) -> Result<()> {
        if self.fault == Fault::Broken { Err(Failure::work("broken")) } else { Ok(()) }
    }

    fn replay(&mut self, (): &()) -> Result<()> {
        Ok(())
    }
}

/// Groups whose branches end at different times.
fn completions(scheduler: &mut Scheduler<impl Runner>) -> Vec<(u64, Vec<Completion>)> {
    for id in 0..4 {
        let sampling = SamplingParams { temperature: 0.9, ..SamplingParams::PLAIN };
        let request = request(id, 10 + 7 * id as usize, 1 + id as usize, 12 + 4 * id as usize);
        scheduler.submit(None, crate::engine::Request { sampling, ..request }).expect("accepted");
    }
    drain(scheduler)
}

#[test]
fn captures_that_do_not_replay_what_was_run_change_nothing() {
    let made = TINY.policy();
    let policies = std::slice::from_ref(&made.policy);
    let wanted = completions(&mut scheduler(policies, 64, 16, 16));
    for fault in [Fault::Empty, Fault::Refused, Fault::Broken] {
        let device = Faulty { sim: Sim::new(1, 0).expect("a simulator"), fault, begun: 0 };
        let mut faulty = on(device, policies, 64, 16, 16);
        // By the fifth time every shape has been run once and tried three times.
        for _ in 0..5 {
            assert_eq!(completions(&mut faulty), wanted, "{fault:?}");
        }
        let begun = faulty.runner().device().begun;
        assert!(begun > 1, "{fault:?}: only one shape was tried");
        assert_eq!(completions(&mut faulty), wanted, "{fault:?}");
        assert_eq!(faulty.runner().device().begun, begun, "{fault:?}: a shape was captured again");
    }
}
