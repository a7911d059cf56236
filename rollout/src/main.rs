//! `rollout`: tasks in, samples out.

fn main() {
    record::stage::run_and_exit("rollout", rollout::stage::main)
}
