//! The CUDA kernels of `kernels/*.cu`, as the build script declares them.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
