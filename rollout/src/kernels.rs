//! The CUDA kernels of `rollout`; their sources are in `kernels/`.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
