//! Compiles the kernels for the simulator and declares them; with the feature `mpi`, also the MPI functions.

fn main() {
    compile_kernels::declare("kernels");
    #[cfg(feature = "mpi")]
    mpi();
}

/// Compiles `mpi.c` with `$MPICC` (`mpicc`), and links what that program would link.
#[cfg(feature = "mpi")]
fn mpi() {
    println!("cargo::rerun-if-changed=src/ranks/mpi.c");
    println!("cargo::rerun-if-env-changed=MPICC");
    let compiler = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    // Open MPI, MPICH and their relatives answer with the command that they would run.
    let shown = std::process::Command::new(&compiler).arg("-show").output();
    let Some(shown) = shown.ok().filter(|shown| shown.status.success()) else {
        println!(
            "cargo::error=the feature `mpi` needs an MPI compiler, and {compiler} does not run: install one \
             (libopenmpi-dev, mpich), load its module, or name it in $MPICC"
        );
        return;
    };
    cc::Build::new().compiler(&compiler).file("src/ranks/mpi.c").compile("troupe_ranks");
    for word in String::from_utf8_lossy(&shown.stdout).split_whitespace() {
        if let Some(folder) = word.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={folder}");
        } else if let Some(library) = word.strip_prefix("-l") {
            println!("cargo::rustc-link-lib={library}");
        } else if word.starts_with("-Wl,") {
            println!("cargo::rustc-link-arg={word}");
        }
    }
}
