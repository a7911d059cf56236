//! The cache and the scheduler without a model: a runner that only remembers which token lies where.

mod adapters;
mod blocks;
mod device;
mod recordings;
mod schedule;
