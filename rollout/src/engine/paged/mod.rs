//! Inference on a device: groups of branches over one cache of keys and values in blocks.
//!
//! The cache is a pool of blocks with counted holders ([`pool`]); a [`sequence`] is a list of blocks, branches share
//! those of their prompt, and whole blocks of earlier prompts are remembered for later ones ([`cache`]). The
//! [`scheduler`] lays the rows of a run out ([`batch`]) and a runner computes them.
//!
//! Left out: throwing sequences out when memory runs short. A group is let in only when all that it may come to need
//! is there.

pub mod batch;
pub mod cache;
pub mod group;
pub mod pool;
mod reference;
pub mod runner;
pub mod scheduler;
pub mod sequence;
pub mod session;
#[cfg(test)]
mod tests;
