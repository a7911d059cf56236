//! Compiles the kernels for the simulator and declares them.

fn main() {
    compile_kernels::declare("kernels");
}
