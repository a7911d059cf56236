//! Tests of the engine that need to look inside: other instruction sets, the oracle, poisoned memory, blocks without a model.

pub mod adapters;
mod blocks;
mod golden;
mod invariance;
mod load;
mod oracle;
mod parity;
pub mod sampling;
mod schedule;
mod service;
pub mod support;
