//! End-to-end tests with MPI, kills, faults and stand-in devices, tables of commands, documents; others are in `tests/python/`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod architecture;
mod cluster;
mod documents;
mod injected;
mod kernels;
mod planted_bugs;
mod python;
mod ranks;
mod recipes;
mod resume;
mod side_by_side;
mod stand_in;
mod stand_in_cards;
mod stand_in_choices;
mod stand_in_nccl;
mod tables;
mod words;
