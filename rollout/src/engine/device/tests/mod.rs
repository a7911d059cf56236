//! The device runner on the simulator, compared with the CPU's.

mod adapters;
mod graphs;
mod sampling;
mod simulator;
