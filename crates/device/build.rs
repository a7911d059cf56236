//! Compiles the simulator, and the kernels of this crate.

fn main() {
    compile_kernels::simulator();
    compile_kernels::declare("kernels");
}
