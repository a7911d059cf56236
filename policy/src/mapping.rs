//! Memory-mapped files, and the error message if one is truncated while it is read.
//!
//! Reading past the end of a mapped file raises SIGBUS, which would kill the program silently. A handler
//! names the file and exits as after a read error. Left out: continuing without the file.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use memmap2::{Mmap, UncheckedAdvice};
use record::failure::IO;
use record::stage;

use crate::json::show;

/// Files that are told by name at the same time.
const MOST: usize = 512;
const HINT: &str = "another program wrote to it or cut it: copy or download it again, and change it only by renaming a new file over it";

/// A file in memory, read-only.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: Mmap,
    slot: Option<&'static Slot>,
}

/// Address and name of a mapped file. A signal handler may only read atomics, so all fields are atomic.
#[derive(Debug)]
struct Slot {
    /// Address of the first byte; 0: free, 1: about to be filled.
    start: AtomicUsize,
    bytes: AtomicUsize,
    /// A leaked text that ends with NUL.
    name: AtomicPtr<libc::c_char>,
}

static SLOTS: [Slot; MOST] = [const {
    Slot { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0), name: AtomicPtr::new(ptr::null_mut()) }
}; MOST];

impl Mapping {
    /// Maps a file that is at `path`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn of(file: &File, path: &Path) -> io::Result<Mapping> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(install);
        // SAFETY: the mapping is read-only, and its bytes are only read as plain integers and floats. No program of this workspace
        // writes to a file that may be mapped: it is replaced by rename. Where another one cuts it, the handler ends this program.
        let map = unsafe { Mmap::map(file) }?;
        let free =
            |slot: &&Slot| slot.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let slot = SLOTS.iter().find(free).inspect(|slot| {
            let name = CString::new(show(path)).unwrap_or_default();
            slot.name.store(name.into_raw(), Ordering::Relaxed);
            slot.bytes.store(map.len(), Ordering::Relaxed);
            slot.start.store(map.as_ptr() as usize, Ordering::Release);
        });
        Ok(Mapping { map, slot })
    }

    /// Gives back the memory of the pages read so far; the file is read again on the next access.
    pub(crate) fn release(&self) {
        // SAFETY: the mapping is of a file and never written to, so that its pages are the same when they come back. Where
        // the system declines, they stay.
        let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        slot.start.store(1, Ordering::Release);
        let name = slot.name.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the pointer comes from `into_raw` and is no longer in the slot.
        drop(unsafe { CString::from_raw(name) });
        slot.start.store(0, Ordering::Release);
    }
}

/// Installs the handler. Where that fails, a cut file ends the program as it would without it.
fn install() {
    // SAFETY: all fields of the action are set, and the handler only does what one may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = told as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

/// Says which file was cut, and ends the program; any other SIGBUS is told and ends it as by default.
extern "C" fn told(_: libc::c_int, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system hands over a valid structure, and a SIGBUS carries an address.
    let address = unsafe { (*information).si_addr() } as usize;
    let holds = |slot: &&Slot| {
        let start = slot.start.load(Ordering::Acquire);
        // To whole pages, as far as the system maps.
        start > 1 && (start..start + slot.bytes.load(Ordering::Relaxed) + (1 << 16)).contains(&address)
    };
    let slot = SLOTS.iter().find(holds);
    let name = slot.map_or(ptr::null_mut(), |slot| slot.name.load(Ordering::Relaxed));
    // SAFETY: a text that ends with NUL, as long as its file is mapped.
    let name = if name.is_null() { &b"a file"[..] } else { unsafe { CStr::from_ptr(name) }.to_bytes() };
    let parts: [&[u8]; 6] = [
        stage::name().as_bytes(),
        b": ",
        name,
        b": it became shorter while it was read\nhint: ",
        HINT.as_bytes(),
        b"\n",
    ];
    for part in parts {
        // SAFETY: the bytes are valid for their length. A closed stderr leaves nobody to tell.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    match slot {
        // SAFETY: ends the process at once.
        Some(_) => unsafe { libc::_exit(IO.into()) },
        // One that a library has mapped, such as ONNX Runtime, or faulty memory.
        // SAFETY: the default action, when the instruction is repeated.
        None => unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) },
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;

    /// In a child, which dies of it.
    #[test]
    fn a_file_that_is_cut_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let (mut told, stderr) = pipe().unwrap();
        // SAFETY: the child computes, writes to its pipe and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: both descriptors are open.
            unsafe { libc::dup2(stderr.as_raw_fd(), libc::STDERR_FILENO) };
            let map = Mapping::of(&file, &path);
            let _ = file.set_len(100);
            let sum: u64 = map.iter().flat_map(|map| map.iter()).map(|byte| u64::from(*byte)).sum();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(sum > 0)) };
        }
        drop(stderr);
        let (mut text, mut status) = (String::new(), 0);
        told.read_to_string(&mut text).unwrap();
        // SAFETY: `status` is valid, and the child was not waited for.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), i32::from(IO));
        let expected = format!("troupe: {}: it became shorter while it was read\nhint: ", path.display());
        assert!(text.starts_with(&expected), "{text}");
        // A file that is closed leaves its place to another one.
        for _ in 0..2 * MOST {
            assert!(Mapping::of(&file, &path).unwrap().slot.is_some());
        }
    }
}
