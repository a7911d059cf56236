//! The kernels of this crate: only what tests of devices need.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
