//! `update-mpi`: `update` by the processes that `mpirun` or `srun` starts.

use std::process::ExitCode;

fn main() -> ExitCode {
    record::stage::run("update", update::stage::run)
}
