//! `rollout`: tasks in, samples out.

fn main() {
    // SAFETY: the first statement of main, so no other thread exists.
    unsafe { rollout::runtime::set_variables() };
    record::stage::run_and_exit("rollout", rollout::stage::main)
}
