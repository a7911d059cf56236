//! Tests of training through the public interface and the program.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod adapter;
#[path = "kernels/attention.rs"]
mod attention;
mod common;
mod device;
mod device_program;
mod float16;
#[path = "numerics/golden.rs"]
mod golden;
mod golden_step;
mod half;
#[path = "kernels/harness.rs"]
mod harness;
mod injected;
mod kernels_operations;
mod memory;
mod numerics;
mod numerics_goldens;
mod numerics_operations;
mod numerics_scores;
mod objectives;
mod parts;
#[path = "numerics/reference.rs"]
mod reference;
mod refusals;
mod signals;
mod skipped;
#[path = "numerics/small.rs"]
mod small;
mod stage;
