//! Memory-mapped files, and the error message if one is truncated while it is read.
//!
//! Reading a page beyond the end of a mapped file raises SIGBUS, which would end the program without a message. A handler names
//! the file and ends the program like a read error, also for files that ONNX Runtime has mapped. Left out: going on without the
//! file, and its name on systems without /proc.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering};

use memmap2::{Mmap, UncheckedAdvice};
use record::failure::IO;
use record::stage;

const HINT: &str = "another program wrote to it or cut it: copy or download it again, and change it only by renaming a new file over it";

/// A file in memory, read-only.
#[derive(Debug)]
pub(crate) struct Mapping(Mmap);

impl Mapping {
    /// Maps a file.
    pub(crate) fn of(file: &File) -> io::Result<Mapping> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(install);
        // SAFETY: the mapping is read-only, and its bytes are only read as plain integers and floats. No program of this workspace
        // writes to a file that may be mapped: it is replaced by rename. Where another one cuts it, the handler ends this program.
        unsafe { Mmap::map(file) }.map(Mapping)
    }

    /// Gives back the memory of the pages read so far; the file is read again on the next access.
    pub(crate) fn release(&self) {
        // SAFETY: the mapping is of a file and never written to, so that its pages are the same when they come back. Where
        // the system declines, they stay.
        let _ = unsafe { self.0.unchecked_advise(UncheckedAdvice::DontNeed) };
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
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
    let length = name_of(address);
    // SAFETY: the bytes were written by `name_of`, and the process ends before anything else writes there.
    let name = unsafe { std::slice::from_raw_parts(NAME.as_ptr().cast(), length) };
    let name = if name.is_empty() { &b"a file"[..] } else { name };
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
    match length {
        // Faulty memory, or a system without /proc.
        // SAFETY: the default action, when the instruction is repeated.
        0 => unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) },
        // SAFETY: ends the process at once.
        _ => unsafe { libc::_exit(IO.into()) },
    };
}

/// A file's name as a handler of signals finds it, on a stack that may be small.
static NAME: [AtomicU8; libc::PATH_MAX as usize] = [const { AtomicU8::new(0) }; libc::PATH_MAX as usize];

/// Where a line of /proc/self/maps is read: `START-END MODE OFFSET DEVICE INODE   /NAME`.
enum Place {
    Start,
    End,
    /// The wanted mapping.
    Before,
    Name,
    Other,
}

/// Puts the name of the file that is mapped at `address` into [`NAME`]; its length, 0 where there is none. Calls what a handler of
/// signals may: open and read.
fn name_of(address: usize) -> usize {
    let mut buffer = [0_u8; 128];
    let (mut place, mut range, mut length): (Place, Range<usize>, usize) = (Place::Start, 0..0, 0);
    // SAFETY: a text that ends with NUL. The descriptor stays open: the process is about to end.
    let maps = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY) };
    loop {
        // SAFETY: the buffer is valid for its length.
        let read = unsafe { libc::read(maps, buffer.as_mut_ptr().cast(), buffer.len()) };
        let Some(bytes) = usize::try_from(read).ok().filter(|read| *read > 0) else { return length };
        for &byte in &buffer[..bytes] {
            let digit = || (byte as char).to_digit(16).unwrap_or(0) as usize;
            place = match (place, byte) {
                (Place::Name, b'\n') => return length,
                (_, b'\n') => {
                    range = 0..0;
                    Place::Start
                }
                (Place::Start, b'-') => Place::End,
                (Place::Start, _) => {
                    range.start = range.start << 4 | digit();
                    Place::Start
                }
                (Place::End, b' ') if range.contains(&address) => Place::Before,
                (Place::End, b' ') => Place::Other,
                (Place::End, _) => {
                    range.end = range.end << 4 | digit();
                    Place::End
                }
                (Place::Before, b'/') | (Place::Name, _) => {
                    if let Some(slot) = NAME.get(length) {
                        let shown = if byte.is_ascii_control() { b'?' } else { byte };
                        slot.store(shown, Ordering::Relaxed);
                        length += 1;
                    }
                    Place::Name
                }
                (other, _) => other,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;

    /// In a child, which dies of it: what reads the bytes of a file of 1 MiB that is cut, and how it ends.
    fn cut(read: impl FnOnce(&File) -> u64) -> (String, String, libc::c_int) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model of mine.safetensors");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let (mut told, stderr) = pipe().unwrap();
        // SAFETY: the child computes, writes to its pipe and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: both descriptors are open.
            unsafe { libc::dup2(stderr.as_raw_fd(), libc::STDERR_FILENO) };
            let sum = read(&file);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(sum > 0)) };
        }
        drop(stderr);
        let (mut text, mut status) = (String::new(), 0);
        told.read_to_string(&mut text).unwrap();
        // SAFETY: `status` is valid, and the child was not waited for.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        (text, format!("troupe: {}: it became shorter while it was read\nhint: ", path.display()), status)
    }

    fn sum(bytes: &[u8]) -> u64 {
        bytes.iter().map(|byte| u64::from(*byte)).sum()
    }

    #[test]
    fn a_file_that_is_cut_is_named_whoever_has_mapped_it() {
        let own = |file: &File| {
            let map = Mapping::of(file).unwrap();
            let _ = file.set_len(100);
            sum(&map)
        };
        let of_a_library = |file: &File| {
            install();
            // SAFETY: the bytes are read, and the file is cut on purpose.
            let map = unsafe { Mmap::map(file) }.unwrap();
            let _ = file.set_len(100);
            // A thread of a library has no stack of its own for signals.
            // SAFETY: takes the stack away that Rust's runtime has set up.
            unsafe {
                let mut none: libc::stack_t = std::mem::zeroed();
                none.ss_flags = libc::SS_DISABLE;
                libc::sigaltstack(&raw const none, ptr::null_mut());
            }
            sum(&map[1 << 19..])
        };
        for (text, expected, status) in [cut(own), cut(of_a_library)] {
            assert!(libc::WIFEXITED(status), "{status}: {text}");
            assert_eq!(libc::WEXITSTATUS(status), i32::from(IO), "{text}");
            assert!(text.starts_with(&expected), "{text}");
        }
    }

    #[test]
    fn memory_without_a_file_has_no_name() {
        let value = 3_u8;
        assert_eq!(name_of(&raw const value as usize), 0);
        assert_eq!(name_of(8), 0);
        assert!(name_of(name_of as *const () as usize) > 0, "this program is a file");
    }
}
