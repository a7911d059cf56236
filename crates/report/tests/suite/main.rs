//! Tests of the program.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod browser;
mod cut;
mod files;
mod fixture;
mod fuzz;
mod made;
mod pages;
mod run;
mod seeds;
mod transcripts;
