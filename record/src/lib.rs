//! The pipe: what a line is, and how a stage reads, decorates, writes and fails.
//!
//! RECORD.md is the contract in prose. This library knows no machine learning and no policy.

mod check;
pub mod failure;
mod finite;
pub mod gather;
pub mod line;
pub mod philox;
pub mod progress;
pub mod read;
pub mod sample;
pub mod splice;
pub mod stage;
pub mod stream;
pub mod tag;
pub mod write;
