//! The device runner on the simulator, compared with the CPU's.

mod adapters;
mod float16;
mod graphs;
mod sampling;
mod simulator;
