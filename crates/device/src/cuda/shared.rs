//! CUDA IPC: memory of `cuMemAlloc` that another process of the machine opens.
//!
//! A handle names a whole allocation. Its process must keep the memory until all others have closed it.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUipcMem_flags, CUipcMemHandle};
use record::failure::{Failure, Result};

use super::{Cuda, words};
use crate::Device;
use crate::shared::{OpenedMemory, SharedMemory, unsupported};

/// Shares the arena's memory. The handle is CUDA's in hexadecimal, then the number of bytes.
pub(super) fn share(mut cuda: Cuda) -> Result<SharedMemory> {
    cuda.synchronize()?;
    let bytes = cuda.arena()?.total();
    let Some(memory) = cuda.memory.take() else { return Err(unsupported()) };
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the beginning of our allocation, in the current context; one out-parameter.
    unsafe { sys::cuIpcGetMemHandle(&mut handle, memory.address) }
        .result()
        .map_err(|error| cuda.failed("sharing memory", error))?;
    let hexadecimal: String = handle.reserved.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    Ok(SharedMemory::new(format!("{hexadecimal}:{bytes}"), memory))
}

/// Memory of another process that is mapped here.
struct Mapping {
    address: u64,
    stream: Arc<CudaStream>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, closed once; copies from it are in this stream, and done by then.
        unsafe {
            let _ = self.stream.context().bind_to_thread().and_then(|()| self.stream.synchronize());
            let _ = sys::cuIpcCloseMemHandle(self.address);
        }
    }
}

pub(super) fn open(cuda: &Cuda, handle: &str) -> Result<OpenedMemory> {
    let Some((handle, bytes)) = parse(handle) else {
        return Err(Failure::work(format!("cuda:{}: {handle:?} is no handle of memory", cuda.number)));
    };
    cuda.bind()?;
    let mut address = 0;
    let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    // SAFETY: one out-parameter; the driver checks the handle.
    unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) }
        .result()
        .map_err(|error| Failure::unavailable(format!("cuda:{}: {}", cuda.number, words(error))))?;
    Ok(OpenedMemory::new(address, bytes, Mapping { address, stream: cuda.stream.clone() }))
}

fn parse(text: &str) -> Option<(CUipcMemHandle, u64)> {
    let (hexadecimal, bytes) = text.split_once(':')?;
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let (digits, rest) = hexadecimal.as_bytes().as_chunks::<2>();
    if digits.len() != handle.reserved.len() || !rest.is_empty() {
        return None;
    }
    for (byte, digits) in handle.reserved.iter_mut().zip(digits) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()? as _;
    }
    Some((handle, bytes.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_64_bytes_and_a_size() {
        let text = format!("{}:4096", "0aff".repeat(32));
        let (handle, bytes) = parse(&text).unwrap();
        let of_handle: Vec<u8> = handle.reserved.iter().map(|byte| *byte as u8).collect();
        assert_eq!((of_handle, bytes), ([10, 255].repeat(32), 4096));
        for text in [
            "",
            "0a:1",
            &"0aff".repeat(32),
            &format!("{}:-1", "0aff".repeat(32)),
            &format!("{}:1", "0axf".repeat(32)),
        ] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
