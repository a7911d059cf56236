//! NCCL, which moves values between the GPUs of several processes. Left out: its sums, because their order depends on
//! algorithm and topology.
//!
//! The library is loaded at run time. A [`NcclCommunicator`] never blocks: a call begins work, and [`NcclCommunicator::is_ready`] says
//! whether NCCL has handed it to the GPU, or has failed. So whoever waits can give up.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
use record::failure::{Failure, Result};

use super::library::{self, Library};
use crate::arena::AnySlice;

/// Bytes of the id that the ranks of a communicator share.
pub const ID_BYTES: usize = 128;
/// An id that rank 0 makes, and all ranks pass to [`NcclCommunicator::join`].
pub type Id = [u8; ID_BYTES];

/// `ncclSuccess`, `ncclInProgress` and `ncclInt8` of nccl.h.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
const BYTES: c_int = 0;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; ID_BYTES]);

/// `ncclConfig_t` of NCCL 2.14; later versions take it as it is.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    const NON_BLOCKING: Config =
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 };
}

macro_rules! functions {
    ($($name:ident = $symbol:literal($($argument:ty),*) -> $result:ty;)*) => {
        /// The library's functions.
        pub struct Nccl {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
            version: c_int,
        }

        impl Nccl {
            fn of(library: &Handle, place: &str) -> Result<Nccl> {
                let missing = |symbol: &str| {
                    Failure::unavailable(format!("{place} has no {symbol}: NCCL 2.14 is the oldest that will do"))
                };
                // SAFETY: these are the types of NCCL's header since 2.14.
                $(let $name = unsafe { library.get($symbol.as_bytes()) }.map_err(|_| missing($symbol))?;)*
                Ok(Nccl { $($name: *$name,)* version: 0 })
            }
        }
    };
}

functions! {
    get_version = "ncclGetVersion"(*mut c_int) -> c_int;
    unique_id = "ncclGetUniqueId"(*mut UniqueId) -> c_int;
    init = "ncclCommInitRankConfig"(*mut *mut c_void, c_int, UniqueId, c_int, *mut Config) -> c_int;
    async_error = "ncclCommGetAsyncError"(*mut c_void, *mut c_int) -> c_int;
    abort = "ncclCommAbort"(*mut c_void) -> c_int;
    group_start = "ncclGroupStart"() -> c_int;
    group_end = "ncclGroupEnd"() -> c_int;
    send = "ncclSend"(*const c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
    receive = "ncclRecv"(*mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
    broadcast = "ncclBroadcast"(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
    error_string = "ncclGetErrorString"(c_int) -> *const c_char;
    last_error = "ncclGetLastError"(*mut c_void) -> *const c_char;
}

impl Nccl {
    /// Loads the library from where [`super::open_library`] finds it.
    pub fn open() -> Result<Nccl> {
        library::open(Library::Nccl)?;
        Nccl::at(Path::new(&Library::Nccl.file()))
    }

    /// Loads the library from a file, for the rest of the process.
    ///
    /// # Errors
    /// 69: it cannot be loaded, or is too old.
    pub fn at(file: &Path) -> Result<Nccl> {
        let place = file.display().to_string();
        let refused = |cause: &str| Failure::unavailable(format!("{place}: {cause}"));
        // SAFETY: the initializers of NVIDIA's libraries are benign.
        let library = unsafe { Handle::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| refused(&error.to_string()))?;
        let mut nccl = Nccl::of(&library, &place)?;
        // Its threads outlive all that we know of.
        std::mem::forget(library);
        let mut version = 0;
        // SAFETY: it writes the number.
        let code = unsafe { (nccl.get_version)(&raw mut version) };
        nccl.version = version;
        if code == SUCCESS { Ok(nccl) } else { Err(refused(&nccl.words(code, ptr::null_mut()))) }
    }

    /// The version: 10,000 × major + 100 × minor + patch.
    pub fn version(&self) -> u32 {
        self.version.unsigned_abs()
    }

    /// An id for a new communicator.
    pub fn id(&self) -> Result<Id> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: it writes the id.
        match unsafe { (self.unique_id)(&raw mut id) } {
            SUCCESS => Ok(id.0),
            code => Err(Failure::work(format!("ncclGetUniqueId: {}", self.words(code, ptr::null_mut())))),
        }
    }

    /// NCCL's text for an error, with its last message.
    fn words(&self, code: c_int, communicator: *mut c_void) -> String {
        // SAFETY: both return static text, or null.
        let (name, last) = unsafe { ((self.error_string)(code), (self.last_error)(communicator)) };
        let text = |text: *const c_char| {
            // SAFETY: NCCL ends its texts with a zero byte.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned())
        };
        let parts = [text(name), text(last)].into_iter().flatten().filter(|text| !text.is_empty());
        parts.collect::<Vec<_>>().join(": ")
    }
}

/// The way between the GPUs of several processes, with one rank for each. Work is enqueued in the stream it was made with.
///
/// # Errors
/// Every method fails with 1 if NCCL does; the message names the call.
pub struct NcclCommunicator {
    nccl: Arc<Nccl>,
    handle: *mut c_void,
    stream: *mut c_void,
}

// SAFETY: NCCL's communicators may be used from any thread, one at a time.
unsafe impl Send for NcclCommunicator {}

impl NcclCommunicator {
    /// Begins to join the other ranks, all with the same id. It is joined when [`NcclCommunicator::is_ready`] says so. The GPU's
    /// context is current in this thread, here and in later calls.
    pub fn join(
        nccl: Arc<Nccl>,
        id: &Id,
        rank: usize,
        count: usize,
        stream: *mut c_void,
    ) -> Result<NcclCommunicator> {
        let mut handle = ptr::null_mut();
        let (mut config, id) = (Config::NON_BLOCKING, UniqueId(*id));
        // SAFETY: it writes the handle, and copies id and configuration.
        let code =
            unsafe { (nccl.init)(&raw mut handle, count as c_int, id, rank as c_int, &raw mut config) };
        let communicator = NcclCommunicator { nccl, handle, stream };
        communicator.check("ncclCommInitRankConfig", code)?;
        Ok(communicator)
    }

    /// Returns true once all that was begun is in the stream; fails if it cannot be done.
    pub fn is_ready(&self) -> Result<bool> {
        let mut state = SUCCESS;
        // SAFETY: the handle is open, and it writes the state.
        self.check("ncclCommGetAsyncError", unsafe { (self.nccl.async_error)(self.handle, &raw mut state) })?;
        self.check("communication", state)?;
        Ok(state == SUCCESS)
    }

    /// Sends the r-th of `sent` to rank r and receives the r-th of `received` from it. A rank may send to itself.
    pub fn all_to_all(&mut self, sent: &[AnySlice<'_>], received: &[AnySlice<'_>]) -> Result<()> {
        let (nccl, to) = (&self.nccl, (self.handle, self.stream));
        self.in_group(|| {
            for (peer, (sent, received)) in sent.iter().zip(received).enumerate() {
                let peer = peer as c_int;
                if !sent.is_empty() {
                    let (at, bytes) = (sent.address as *const c_void, sent.bytes());
                    // SAFETY: the slice is memory of the communicator's GPU, used in stream order.
                    self.check("ncclSend", unsafe { (nccl.send)(at, bytes, BYTES, peer, to.0, to.1) })?;
                }
                if !received.is_empty() {
                    let (at, bytes) = (received.address as *mut c_void, received.bytes());
                    // SAFETY: as above.
                    self.check("ncclRecv", unsafe { (nccl.receive)(at, bytes, BYTES, peer, to.0, to.1) })?;
                }
            }
            Ok(())
        })
    }

    /// Broadcasts the r-th of the slices from rank r, in place.
    pub fn broadcast(&mut self, slices: &[AnySlice<'_>]) -> Result<()> {
        self.in_group(|| {
            for (root, slice) in slices.iter().enumerate() {
                if !slice.is_empty() {
                    let (at, bytes, root) = (slice.address as *mut c_void, slice.bytes(), root as c_int);
                    // SAFETY: the slice is memory of the communicator's GPU, used in stream order.
                    let code = unsafe {
                        (self.nccl.broadcast)(at, at, bytes, BYTES, root, self.handle, self.stream)
                    };
                    self.check("ncclBroadcast", code)?;
                }
            }
            Ok(())
        })
    }

    /// Runs `calls` as one group, which no order of calls among ranks can block.
    fn in_group(&self, calls: impl FnOnce() -> Result<()>) -> Result<()> {
        // SAFETY: each start has its end.
        self.check("ncclGroupStart", unsafe { (self.nccl.group_start)() })?;
        let called = calls();
        // SAFETY: a group was started.
        let ended = self.check("ncclGroupEnd", unsafe { (self.nccl.group_end)() });
        called.and(ended)
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        match code {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(Failure::work(format!("NCCL: {call}: {}", self.nccl.words(code, self.handle)))),
        }
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is closed once. Unlike `ncclCommDestroy`, which may wait for ranks that have failed, this
            // waits for none; whoever has waited for its work has nothing to lose.
            unsafe { (self.nccl.abort)(self.handle) };
        }
    }
}
