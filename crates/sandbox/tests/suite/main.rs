//! Tests of the sandbox through its public interface.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod hostile;
mod programs;
mod support;
