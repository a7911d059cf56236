//! The simulator's device memory: pages of this process that come into being when touched.

use record::failure::{Failure, Result};

/// Zeroed pages, unmapped when dropped.
pub(crate) struct HostMemory {
    address: *mut libc::c_void,
    bytes: usize,
}

impl HostMemory {
    pub fn new(bytes: u64) -> Result<Self> {
        let bytes = usize::try_from(bytes.max(1)).map_err(Failure::unavailable)?;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a fresh anonymous mapping.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(Failure::unavailable(format!("sim: no {bytes} bytes of memory: {error}")));
        }
        Ok(HostMemory { address, bytes })
    }

    pub fn address(&self) -> u64 {
        self.address as u64
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of this very size.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}
