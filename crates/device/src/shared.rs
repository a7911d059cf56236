//! Device memory that one process of a machine shares with another.

use std::fmt;

use record::failure::{Failure, Result};

use crate::arena::Slice;
use crate::element::Element;

/// Memory that other processes may open; freed when dropped.
pub struct SharedMemory {
    handle: String,
    _memory: Box<dyn Send>,
}

impl SharedMemory {
    pub(crate) fn new(handle: String, memory: impl Send + 'static) -> SharedMemory {
        SharedMemory { handle, _memory: Box::new(memory) }
    }

    /// What another process opens it by.
    pub fn handle(&self) -> &str {
        &self.handle
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SharedMemory").field(&self.handle).finish()
    }
}

/// Memory of another process, which is only read. When dropped, waits for work on it and closes it.
pub struct OpenedMemory {
    address: u64,
    bytes: u64,
    /// Closes it.
    _mapping: Box<dyn Send>,
}

impl OpenedMemory {
    /// `bytes` at an address, which stay until `mapping` is dropped.
    pub(crate) fn new(address: u64, bytes: u64, mapping: impl Send + 'static) -> OpenedMemory {
        OpenedMemory { address, bytes, _mapping: Box::new(mapping) }
    }

    /// `length` values from this byte on.
    ///
    /// # Errors
    /// They are not all in this memory, or not aligned.
    pub fn slice<T: Element>(&self, first: u64, length: usize) -> Result<Slice<'_, T>> {
        let end =
            (length as u64).checked_mul(size_of::<T>() as u64).and_then(|bytes| first.checked_add(bytes));
        if end.is_none_or(|end| end > self.bytes) || !first.is_multiple_of(size_of::<T>() as u64) {
            let bytes = self.bytes;
            return Err(Failure::work(format!(
                "{length} values from byte {first} on, of {bytes} bytes shared"
            )));
        }
        // SAFETY: the values lie in this memory, which the slice borrows; only copies read it.
        Ok(unsafe { Slice::foreign(self.address + first, length) })
    }
}

pub(crate) fn unsupported() -> Failure {
    Failure::unavailable("this device shares no memory with other processes")
}
