//! Declares the CUDA kernels of `rollout` and compiles them for the simulator.

fn main() {
    compile_kernels::declare("kernels");
}
