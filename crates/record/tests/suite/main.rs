//! Tests of the line contract.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod contract;
mod draws;
mod fuzz;
mod properties;
mod streams;
