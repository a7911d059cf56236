//! Selects the attention kernels that ONNX Runtime's CUDA provider may choose from: the provider's option
//! `sdpa_kernel`.
//!
//! Without cuDNN they are FlashAttention-2 and the memory-efficient kernel. cuDNN from 9.5 on adds one for paged decoding,
//! which ONNX Runtime prefers where it serves. It is faster for large batches, and does not give the same bits each time.
//! `TROUPE_SDPA_KERNEL` compares the two on one machine.

use device::cuda::cudnn_version;
use record::failure::{Failure, Result};

const VARIABLE: &str = "TROUPE_SDPA_KERNEL";
/// The flags of FlashAttention-2 and of the memory-efficient kernel.
const OWN: u32 = 1 + 2;
/// The flag of cuDNN's.
const CUDNN: u32 = 8;
/// All three.
const WITH_CUDNN: u32 = OWN + CUDNN;
/// The cuDNN that the provider's paged attention needs.
const LEAST_CUDNN: usize = 9 * 10_000 + 5 * 100;

/// The value of `sdpa_kernel`: what the variable says, else with cuDNN's kernel where cuDNN opens.
///
/// # Errors
/// 2 for a variable that is neither value, 69 where it asks for a cuDNN that is not there.
pub fn sdpa_kernel() -> Result<u32> {
    let named = std::env::var(VARIABLE).ok().filter(|named| !named.is_empty());
    choose(named.as_deref(), cudnn_version)
}

/// Returns true if attention by the kernels of this `sdpa_kernel` gives the same bits for the same input each time. cuDNN's for paged
/// decoding does not (9.19 on an H100).
pub fn is_reproducible(sdpa_kernel: u32) -> bool {
    sdpa_kernel & CUDNN == 0
}

fn choose(named: Option<&str>, cudnn: impl Fn() -> Option<usize>) -> Result<u32> {
    let usable = || cudnn().is_some_and(|version| version >= LEAST_CUDNN);
    match named {
        None => Ok(if usable() { WITH_CUDNN } else { OWN }),
        Some("3") => Ok(OWN),
        Some("11") if usable() => Ok(WITH_CUDNN),
        Some("11") => Err(Failure::unavailable(format!("{VARIABLE}=11: no cuDNN 9.5 or later is found"))
            .hint("it comes with PyTorch for CUDA 13, or as the package nvidia-cudnn-cu13")),
        Some(other) => Err(Failure::usage(format!("{VARIABLE}={other:?} is no choice of attention"))
            .hint("3 for FlashAttention-2, 11 to add cuDNN's; unset it for the better one that is there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bits_each_time_are_expected_without_cudnn_only() {
        assert!(is_reproducible(3) && !is_reproducible(11));
    }

    #[test]
    fn cudnn_is_used_where_it_is_new_enough() {
        for (named, cudnn, wanted) in [
            (None, None, Some(3)),
            (None, Some(90_499), Some(3)),
            (None, Some(90_500), Some(11)),
            (Some("3"), Some(91_900), Some(3)),
            (Some("11"), Some(91_900), Some(11)),
            (Some("11"), Some(90_100), None),
            (Some("7"), Some(91_900), None),
        ] {
            assert_eq!(choose(named, || cudnn).ok(), wanted, "{named:?} with {cudnn:?}");
        }
    }
}
