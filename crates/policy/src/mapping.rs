//! Memory-mapped files, and the error message if one is truncated while it is read.
//!
//! Reading a page beyond the end of a mapped file raises SIGBUS, which would end the program without a message. A handler names
//! the file and ends the program like a read error, also for files that ONNX Runtime has mapped. Left out: going on without the
//! file, and its name on systems without /proc.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr;
use std::sync::Once;

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
    // SAFETY: all fields of the action are set, and the handler says why it may do what it does.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = report_cut_file as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

/// Reports a file that was cut, and ends the program; any other SIGBUS ends it as by default. The signal comes from an
/// instruction that reads a mapped file, so the thread holds no lock of the allocator, and memory may be allocated here.
extern "C" fn report_cut_file(_: libc::c_int, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the structure is valid, and a SIGBUS carries an address.
    let address = unsafe { (*information).si_addr() } as usize;
    let Some(name) = file_at(address) else {
        // Faulty memory, or a system without /proc.
        // SAFETY: the default action, when the instruction is repeated.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        return;
    };
    let text = format!("{}: {name}: it became shorter while it was read\nhint: {HINT}\n", stage::name());
    // SAFETY: the text is valid for its length; then the process ends at once.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        libc::_exit(IO.into());
    }
}

/// The name of the file that is mapped at `address`, from a line `START-END MODE OFFSET DEVICE INODE   /NAME` of
/// /proc/self/maps; `None` without a file.
fn file_at(address: usize) -> Option<String> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let is_there = |line: &&str| {
        let bounds = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        bounds.is_some_and(|(start, end)| {
            number(start).is_some_and(|start| start <= address)
                && number(end).is_some_and(|end| address < end)
        })
    };
    let line = maps.lines().find(is_there)?;
    Some(stage::printable(&line[line.find('/')?..]))
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
        assert_eq!((file_at(&raw const value as usize), file_at(8)), (None, None));
        assert!(file_at(file_at as *const () as usize).is_some(), "this program is a file");
    }
}
