//! Tests of rollouts through the public interface and the program.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod cli;
mod command;
mod common;
mod episode;
mod fill;
mod fuzz;
mod joint;
mod libraries;
mod opponents;
mod program;
#[path = "common/runtime.rs"]
mod runtime;
mod stage;
mod streams;
mod together;
