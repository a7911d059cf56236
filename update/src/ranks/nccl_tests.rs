//! The calls of NCCL, with a library that stands in for it (`tests/stand_in/nccl.c`) and simulated devices.

use std::process::Command;
use std::sync::Arc;

use device::Sim;
use device::cuda::nccl::Nccl as Library;

use super::device_tests::{Kept, THROUGH_HOST, Way, assert_as_one, parts, train};
use super::nccl::{Nccl, agreed};
use super::tests::each;
use super::*;
use crate::backend::Half;

/// The stand-in, compiled with a flag and loaded from a file of its own.
fn stand_in(flag: &str) -> Arc<Library> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnccl.so.2");
    let source = troupe_tests::root().join("tests/tests/stand_in/nccl.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut compile = Command::new(compiler);
    compile.args(["-std=c11", "-O1", "-w", "-shared", "-fPIC", "-pthread", flag, "-o"]);
    assert!(compile.arg(&file).arg(source).status().unwrap().success());
    Arc::new(Library::at(&file).unwrap())
}

fn join(ranks: &dyn Communicator, sim: &mut Sim, library: &Arc<Library>) -> Result<Box<dyn Transport<Sim>>> {
    let nccl = Nccl::join(ranks, sim, library.clone(), std::ptr::null_mut(), "cuda:0")?;
    Ok(Box::new(nccl))
}

#[test]
fn ranks_connected_by_nccl_train_to_the_bits_of_one() {
    let library = stand_in("-DPLAIN");
    let transport = |ranks: &dyn Communicator, sim: &mut Sim| join(ranks, sim, &library);
    for (half, kept, tied, counts, at_once) in [
        (Half::BFloat16, Kept::Leaves, false, &[2, 4, 8][..], 1 << 24),
        (Half::BFloat16, Kept::OnHost, true, &[2], 8192),
        (Half::Float16, Kept::Whole, true, &[4], 1 << 24),
    ] {
        let way = Way { transport: &transport, at_once, ..THROUGH_HOST };
        assert_as_one(half, kept, tied, counts, &way);
    }
}

#[test]
fn a_failure_of_nccl_names_rank_machine_and_device() {
    let library = stand_in("-DFAILING_GROUP=5");
    let transport = |ranks: &dyn Communicator, sim: &mut Sim| join(ranks, sim, &library);
    let way = Way { transport: &transport, ..THROUGH_HOST };
    let outcomes = each(2, |ranks| train(ranks, Half::BFloat16, false, &parts(), Kept::Leaves, &way));
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let failure = outcome.unwrap_err();
        let wanted = format!(
            "rank {rank} on {}, cuda:0: NCCL: communication: remote process exited or there was a network error; nothing \
             was published",
            host()
        );
        assert_eq!((failure.code, failure.message), (1, wanted));
        assert!(failure.hint.unwrap().contains("TROUPE_NCCL=off"));
    }
}

#[test]
fn a_file_that_is_no_nccl_is_refused() {
    for (name, cause) in [("absent.so", "absent.so: "), ("libm.so.6", "has no ncclGetVersion")] {
        let failure = Library::at(name.as_ref()).err().unwrap();
        assert!(failure.code == 69 && failure.message.contains(cause), "{failure}");
    }
}

#[test]
fn nccl_is_used_if_all_ranks_have_the_same() {
    let outcome = |versions: [u32; 3]| {
        let found = each(3, |ranks| agreed(ranks, versions[ranks.rank()]));
        assert!(found.iter().all(|outcome| *outcome == found[0]));
        found[0].clone().map_err(|cause| cause.replace(&host(), "HOST"))
    };
    assert_eq!(outcome([22_809; 3]), Ok(true));
    assert_eq!(outcome([22_809, u32::MAX, 0]), Ok(false));
    assert_eq!(outcome([22_809, 22_809, 0]), Err("rank 2 on HOST has no NCCL (libnccl.so.2)".to_owned()));
    let other = "rank 0 on HOST has NCCL 2.28.9 and rank 1 on HOST 2.27.7".to_owned();
    assert_eq!(outcome([22_809, 22_707, 22_809]), Err(other));
}
