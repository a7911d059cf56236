//! Engines opened at the same moment. A separate test program, because only the first sessions of a process
//! can race.

#[path = "suite/common/runtime.rs"]
mod runtime;

use std::sync::Barrier;

use policy::initial::{Preset, from_preset};
use rollout::engine::{Engine, Options};
use runtime::fetch_runtime;

#[test]
fn engines_may_be_opened_at_the_same_moment() {
    // SAFETY: the only test of this program, before anything else runs.
    unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
    fetch_runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let policy = from_preset(&folder.path().join("policy"), Preset::Tiny, 1).expect("a policy");
    let barrier = Barrier::new(16);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                barrier.wait();
                Engine::load(&policy, &Options { threads: 1, ..Options::default() }).expect("an engine");
            });
        }
    });
}
