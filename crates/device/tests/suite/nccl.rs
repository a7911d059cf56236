//! NCCL with one rank, which sends to itself. On a GPU it is the real library; in the simulator one that stands in for it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use device::cuda::nccl::{Nccl, NcclCommunicator};
use device::{Any, AnySlice, Device, GEMM_WORKSPACE};

/// The library for this device; `None` without one.
fn library(device: &Any) -> Option<Nccl> {
    match device {
        Any::Cuda(_) => Nccl::open().map_err(|failure| troupe_tests::skip::not_run(&failure.message)).ok(),
        Any::Sim(_) => {
            let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libnccl.so.2");
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/tests/stand_in/nccl.c");
            if !Path::new(source).is_file() {
                troupe_tests::skip::not_run("the source of NCCL's stand-in is not on this machine");
                return None;
            }
            let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
            let mut compile = Command::new(compiler);
            compile.args(["-std=c11", "-w", "-shared", "-fPIC", "-pthread", "-o"]);
            assert!(compile.arg(&file).arg(source).status().unwrap().success());
            Some(Nccl::at(&file).unwrap())
        }
    }
}

#[test]
fn a_rank_sends_to_itself_and_broadcasts_in_place() {
    let mut device = Any::for_tests(0).unwrap();
    device.reserve(GEMM_WORKSPACE + (16 << 20)).unwrap();
    let Some(nccl) = library(&device) else { return };
    println!("NCCL {}", nccl.version());
    let (id, stream) = (nccl.id().unwrap(), device.library_stream().unwrap_or(std::ptr::null_mut()));
    device.synchronize().unwrap();
    let mut communicator = NcclCommunicator::join(Arc::new(nccl), &id, 0, 1, stream).unwrap();
    let wait = |communicator: &NcclCommunicator, device: &mut Any| {
        while !(communicator.is_ready().unwrap() && device.is_idle().unwrap()) {
            std::thread::yield_now();
        }
    };
    wait(&communicator, &mut device);
    // Lengths from a single value to several of NCCL's pieces, at addresses that are no multiple of 16 bytes.
    for length in [1, 1000, 1_000_003] {
        let values: Vec<f32> = (0..length).map(|at| at as f32).collect();
        let [from, to] = [(); 2].map(|()| device.allocate::<f32>(length + 1).unwrap());
        device.upload(&values, from.slice(1..)).unwrap();
        let (sent, received) = (AnySlice::from(from.slice(1..)), AnySlice::from(to.slice(..length)));
        communicator.all_to_all(&[sent], &[received]).unwrap();
        wait(&communicator, &mut device);
        communicator.broadcast(&[received]).unwrap();
        wait(&communicator, &mut device);
        let mut found = vec![0.0; length];
        device.download(to.slice(..length), &mut found).unwrap();
        assert!(found == values, "{length} values");
    }
}
