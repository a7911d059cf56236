//! Hands a version's weights from the process that publishes it to one that plays it, in a device's memory that both open.
//!
//! The files stay the record: a reader that finds no offer, or weights with another [`WeightChecksum`], reads them. An offer is an
//! abstract Unix socket named after the version's files and the device. It exists as long as its process does, and only on
//! this machine (in this network namespace). It is for one reader: the memory is freed when that is done or gone, asks for
//! nothing, or does not come within [`PATIENCE`]. Every wait has a limit. Left out: adapters, which are small; systems other
//! than Linux, which never find an offer.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
pub use self::linux::{Delivery, Offer, ask, decline, offer};

/// How long an offer waits for its reader. Until then others cannot use the memory.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long either side waits for the other's next message, while the weights are copied and checked.
const ANSWER: Duration = Duration::from_secs(30);

/// Weights in shared memory of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfferedWeights {
    /// Opens the memory.
    pub handle: String,
    /// The type of all values: `bfloat16` or `float16`.
    pub dtype: String,
    /// The tensors by name.
    pub tensors: BTreeMap<String, OfferedTensor>,
    /// The checksum of the published values in this type.
    pub checksum: WeightChecksum,
}

/// A tensor among [`OfferedWeights`], row-major.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfferedTensor {
    /// Its number in the checksum.
    pub number: usize,
    /// Its first byte in the memory.
    pub start: u64,
    /// Number of values.
    pub length: usize,
}

/// A checksum of 16-bit tensors: with `w[i]` the words of four values (the last of a tensor filled up with zeros) and `p[i]`
/// their place, the sums of `w[i]` and `p[i] w[i]` modulo 2^64. Any order of pieces gives the same. One word that differs always
/// changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightChecksum {
    pub words: u64,
    pub placed: u64,
    /// Number of values.
    pub values: u64,
}

impl WeightChecksum {
    /// Values of a word.
    pub const WORD: usize = 4;

    /// The place of a tensor's first word.
    pub fn place(tensor: usize) -> u64 {
        ((tensor as u64) << 40) + 1
    }

    /// Adds a piece of the tensor of this number: the bits of its values from number `from` on, a multiple of [`WeightChecksum::WORD`].
    pub fn add(&mut self, tensor: usize, from: usize, bits: &[u16]) {
        let first = WeightChecksum::place(tensor) + (from / WeightChecksum::WORD) as u64;
        for (place, values) in (first..).zip(bits.chunks(WeightChecksum::WORD)) {
            let word = values.iter().rev().fold(0, |word, &bits| (word << 16) | u64::from(bits));
            self.words = self.words.wrapping_add(word);
            self.placed = self.placed.wrapping_add(place.wrapping_mul(word));
        }
        self.values += bits.len() as u64;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::Shutdown;
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::thread::{Builder, JoinHandle};

    use record::failure::{Failure, Result};

    use super::{ANSWER, OfferedWeights, PATIENCE};
    use crate::directory::Policy;
    use crate::files::io_failure;
    use crate::layout::VERSION_FILE;

    /// A reader's first byte: it wants the weights.
    const TAKE: u8 = b't';
    /// A reader's first byte: nobody needs them.
    const DECLINE: u8 = b'd';
    /// The longest description of weights, bytes.
    const LONGEST: u64 = 64 << 20;

    /// The socket of a version's weights on a device.
    fn address(policy: &Policy, device: &str) -> Result<SocketAddr> {
        let file = policy.files.join(VERSION_FILE);
        let metadata = fs::metadata(&file).map_err(|error| io_failure(&file, &error))?;
        let text = format!("{} {} {} {device}", metadata.dev(), metadata.ino(), policy.digest);
        let name = format!("troupe-{}", &blake3::hash(text.as_bytes()).to_hex().as_str()[..32]);
        SocketAddr::from_abstract_name(name).map_err(Failure::io)
    }

    /// Weights that wait for their reader, in a thread. When dropped, they are withdrawn.
    pub struct Offer {
        address: SocketAddr,
        thread: Option<JoinHandle<()>>,
    }

    /// Offers a version's weights, which lie in `memory`, to a process on the same device.
    ///
    /// # Errors
    /// The system makes no socket or thread (74); the version's files cannot be read.
    pub fn offer(
        policy: &Policy,
        device: &str,
        weights: &OfferedWeights,
        memory: impl Send + 'static,
    ) -> Result<Offer> {
        let address = address(policy, device)?;
        let failed = |error| Failure::io(format!("offering weights: {error}"));
        let mut text = serde_json::to_string(weights).map_err(Failure::work)?;
        text.push('\n');
        let listener = UnixListener::bind_addr(&address).map_err(failed)?;
        set_accept_timeout(&listener).map_err(failed)?;
        let serve = move || {
            if let Some(mut reader) = accept(&listener) {
                serve(&mut reader, &text);
                drop(memory);
                // The end of the stream says that the memory is free.
                let _ = reader.shutdown(Shutdown::Both);
            }
        };
        let thread = Builder::new().name("offer".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Offer { address, thread: Some(thread) })
    }

    impl Drop for Offer {
        fn drop(&mut self) {
            if let Ok(mut stream) = UnixStream::connect_addr(&self.address) {
                let _ = stream.write_all(&[DECLINE]);
            }
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }

    /// The first reader of the same user; `None` if none comes in time.
    fn accept(listener: &UnixListener) -> Option<UnixStream> {
        loop {
            let (stream, _) = listener.accept().ok()?;
            if is_own(&stream) {
                return Some(stream);
            }
        }
    }

    /// Answers a reader, and waits until it is done or gone.
    fn serve(reader: &mut UnixStream, text: &str) {
        let _ = reader.set_read_timeout(Some(ANSWER)).and_then(|()| reader.set_write_timeout(Some(ANSWER)));
        let mut byte = [0];
        if reader.read(&mut byte).is_ok_and(|count| count == 1) && byte[0] == TAKE {
            let _ = reader.write_all(text.as_bytes()).and_then(|()| reader.read(&mut byte));
        }
    }

    /// An offer that was accepted.
    pub struct Delivery {
        pub weights: OfferedWeights,
        stream: UnixStream,
    }

    impl Delivery {
        /// Waits until the memory is free. Everything that was opened by its handle must be closed.
        pub fn finish(self) {
            wait(self.stream);
        }
    }

    /// Asks for a version's weights on a device; `None` if nobody offers them.
    pub fn ask(policy: &Policy, device: &str) -> Option<Delivery> {
        let stream = request(policy, device, TAKE)?;
        let mut line = String::new();
        BufReader::new((&stream).take(LONGEST)).read_line(&mut line).ok()?;
        Some(Delivery { weights: serde_json::from_str(&line).ok()?, stream })
    }

    /// Lets whoever offers a version's weights on a device free that memory, and waits for it.
    pub fn decline(policy: &Policy, device: &str) {
        if let Some(stream) = request(policy, device, DECLINE) {
            wait(stream);
        }
    }

    fn request(policy: &Policy, device: &str, request: u8) -> Option<UnixStream> {
        let mut stream = UnixStream::connect_addr(&address(policy, device).ok()?).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        (is_own(&stream) && stream.write_all(&[request]).is_ok()).then_some(stream)
    }

    /// Ends the reader's part and waits for the end of the other's.
    fn wait(mut stream: UnixStream) {
        let _ = stream.shutdown(Shutdown::Write);
        while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
    }

    /// Lets `accept` fail after [`PATIENCE`].
    fn set_accept_timeout(listener: &UnixListener) -> std::io::Result<()> {
        let limit = libc::timeval { tv_sec: PATIENCE.as_secs() as libc::time_t, tv_usec: 0 };
        let size = size_of::<libc::timeval>() as libc::socklen_t;
        let place = std::ptr::from_ref(&limit).cast();
        let socket = listener.as_raw_fd();
        // SAFETY: the socket is open; the option's value is read during the call.
        match unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, place, size) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Returns true if a process of the same user is at the other end: anybody may connect to an abstract socket, or make one.
    fn is_own(stream: &UnixStream) -> bool {
        // SAFETY: no arguments and no effect.
        peer(stream.as_raw_fd()).is_some_and(|user| user == unsafe { libc::geteuid() })
    }

    fn peer(socket: RawFd) -> Option<libc::uid_t> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut size = size_of::<libc::ucred>() as libc::socklen_t;
        let place = std::ptr::from_mut(&mut found).cast();
        // SAFETY: the socket is open; the value and its size are written during the call.
        let failed =
            unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut size) };
        (failed == 0).then_some(found.uid)
    }
}

#[cfg(not(target_os = "linux"))]
pub use self::unsupported::{Delivery, Offer, ask, decline, offer};

#[cfg(not(target_os = "linux"))]
mod unsupported {
    use record::failure::{Failure, Result};

    use super::OfferedWeights;
    use crate::directory::Policy;

    pub struct Offer;

    pub fn offer(_: &Policy, _: &str, _: &OfferedWeights, _: impl Send + 'static) -> Result<Offer> {
        Err(Failure::unavailable("weights are offered on Linux only"))
    }

    pub struct Delivery {
        pub weights: OfferedWeights,
    }

    impl Delivery {
        pub fn finish(self) {}
    }

    pub fn ask(_: &Policy, _: &str) -> Option<Delivery> {
        None
    }

    pub fn decline(_: &Policy, _: &str) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
