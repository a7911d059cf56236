//! Tests of the engine that need to look inside: other instruction sets, the oracle, poisoned memory.

pub mod adapters;
mod arena;
mod device_sampling;
mod golden;
mod invariance;
mod oracle;
mod parity;
mod sampling;
pub mod support;
