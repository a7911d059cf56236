//! SIGINT and SIGTERM: each sets a flag and wakes a blocked read of the input, so a stage stops between two lines and its output
//! ends in a complete line. A second signal ends the process at once. SIGXFSZ is caught, so that a file at its size limit
//! (`ulimit -f`) is an error of the write, like a full disk.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

static INTERRUPT: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
static TERMINATE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// Becomes readable when a signal arrives.
static WAKE: OnceLock<UnixStream> = OnceLock::new();

/// Installs the handlers.
pub(crate) fn watch() -> io::Result<()> {
    let (reader, writer) = UnixStream::pair()?;
    for (signal, flag) in [(SIGINT, &*INTERRUPT), (SIGTERM, &*TERMINATE)] {
        // The order matters: the second signal finds the flag set by the first.
        signal_hook::flag::register_conditional_shutdown(signal, exit_code(signal).into(), Arc::clone(flag))?;
        signal_hook::flag::register(signal, Arc::clone(flag))?;
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    // A handler that does nothing, not SIG_IGN: programs that this one starts do not inherit it.
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default())?;
    // A second call in one process keeps the first pipe, which works as well.
    let _ = WAKE.set(reader);
    Ok(())
}

/// Returns true if SIGINT or SIGTERM arrived. Poll it in long loops and return
/// [`Failure::interrupted`](crate::failure::Failure::interrupted).
pub fn interrupted() -> bool {
    received().is_some()
}

/// The exit code for the signal that arrived.
pub(crate) fn received() -> Option<u8> {
    let set =
        |(signal, flag): (i32, &Arc<AtomicBool>)| flag.load(Ordering::Relaxed).then(|| exit_code(signal));
    [(SIGTERM, &*TERMINATE), (SIGINT, &*INTERRUPT)].into_iter().find_map(set)
}

/// 128 + the number of the signal, as shells have it.
const fn exit_code(signal: i32) -> u8 {
    128 + signal as u8
}

/// Stdin; a read that waits ends with [`io::ErrorKind::Interrupted`] when a signal arrives.
#[derive(Debug, Clone, Copy)]
pub struct Stdin;

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if WAKE.get().is_some() {
            wait(libc::STDIN_FILENO, None)?;
        }
        // Reads larger than the buffer of `Stdin` go straight to the file descriptor.
        io::stdin().lock().read(buffer)
    }
}

/// A file opened without blocking, such as a FIFO. Reads wait for bytes and are interrupted by signals, like
/// [`Stdin`].
#[derive(Debug)]
pub struct InputFile(pub(crate) File);

impl Read for InputFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            wait(self.0.as_raw_fd(), None)?;
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// Waits at most so long until stdin is readable or closed; whether it is.
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] when a signal arrived.
pub fn stdin_within(most: Duration) -> io::Result<bool> {
    wait(libc::STDIN_FILENO, Some(most))
}

/// Waits until a file descriptor is readable or closed, at most so long; whether it is. [`io::ErrorKind::Interrupted`] when a
/// signal arrived.
fn wait(descriptor: i32, most: Option<Duration>) -> io::Result<bool> {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // A negative one is passed over.
    let mut entries = [entry(descriptor), entry(WAKE.get().map_or(-1, AsRawFd::as_raw_fd))];
    let milliseconds = most.map_or(-1, |most| most.as_millis().min(1 << 30) as libc::c_int);
    // SAFETY: the pointer and the count describe `entries`, which outlives the call.
    let outcome = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, milliseconds) };
    match outcome {
        ..0 => Err(io::Error::last_os_error()),
        _ if interrupted() => Err(io::ErrorKind::Interrupted.into()),
        ready => Ok(ready > 0),
    }
}
