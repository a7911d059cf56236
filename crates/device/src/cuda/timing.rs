//! Times work in a stream with two events.

use cudarc::cublaslt::sys::cudaStream_t;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream, CUstreamCaptureStatus};
use cudarc::driver::{DriverError, result};

pub(super) struct Stopwatch {
    stream: CUstream,
    events: [CUevent; 2],
}

impl Stopwatch {
    pub fn new(stream: cudaStream_t) -> Result<Self, DriverError> {
        let event = || result::event::create(CUevent_flags::CU_EVENT_DEFAULT);
        let first = event()?;
        let second = event().inspect_err(|_| destroy(first))?;
        Ok(Stopwatch { stream: stream.cast(), events: [first, second] })
    }

    /// Zeroes a range of device memory, which evicts other data from the cache.
    pub fn clear(&self, (address, bytes): (u64, usize)) -> Result<(), DriverError> {
        // SAFETY: the caller's workspace, which nobody reads.
        unsafe { result::memset_d8_async(address, 0, bytes, self.stream) }
    }

    pub fn start(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive and belongs to this context; also below.
        unsafe { result::event::record(self.events[0], self.stream) }
    }

    /// Waits for the work; returns milliseconds since the start.
    pub fn stop(&self) -> Result<f32, DriverError> {
        // SAFETY: as above; both events have passed once the stream is synchronized.
        unsafe {
            result::event::record(self.events[1], self.stream)?;
            result::stream::synchronize(self.stream)?;
            result::event::elapsed(self.events[0], self.events[1])
        }
    }
}

fn destroy(event: CUevent) {
    // SAFETY: made by `new`, destroyed once; a failure leaves nothing to do.
    let _ = unsafe { result::event::destroy(event) };
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.events.into_iter().for_each(destroy);
    }
}

/// Returns true if the stream is being captured into a graph.
pub(super) fn is_capturing(stream: cudaStream_t) -> bool {
    // SAFETY: the stream is alive.
    let status = unsafe { result::stream::is_capturing(stream.cast()) };
    status.is_ok_and(|status| status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}
