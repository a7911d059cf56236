//! Transcripts and damaged runs; other tests of the program are in `tests/python/test_report.py` and `test_pages.py`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod fixture;
mod fuzz;
mod transcripts;
