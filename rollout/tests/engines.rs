//! Engines that a process opens at the same moment. A file of its own, for the first sessions of a process are what matters.

use std::path::Path;
use std::process::Command;
use std::sync::Barrier;

use policy::initial::{Preset, from_preset};
use rollout::engine::{Engine, Options};

#[test]
fn engines_may_be_opened_at_the_same_moment() {
    // SAFETY: the only test of this program, before anything else runs.
    unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let fetched = Command::new(root.join("fetch-runtime.sh")).output().expect("fetch-runtime.sh runs");
    assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
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
