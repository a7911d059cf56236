//! The device runner on the simulator, beside the CPU's.

mod adapters;
mod graphs;
mod sampling;
mod simulator;
