//! Devices and the simulator through the public interface.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod device;
mod nccl;
mod sim;
