//! The record: what a line is, and how a stage reads, decorates, writes and fails. docs/stream-format.md is the contract.
//!
//! [`decorate`] is the chassis of a stage that adds keys to samples; `examples/judge.rs` is the shortest stage on it.
//! Left out: machine learning and policies.

pub mod address;
mod check;
pub mod child;
mod command_line;
pub mod compressed;
pub mod decorate;
pub mod failure;
pub mod file;
mod finite;
pub mod gather;
mod installation;
pub mod line;
pub mod manual;
mod message;
mod output;
pub mod philox;
pub mod progress;
pub mod read;
pub mod sample;
mod signal;
pub mod splice;
pub mod stage;
pub mod stream;
pub mod tag;
pub mod text;
pub mod thoughts;
mod usage;
pub mod write;
