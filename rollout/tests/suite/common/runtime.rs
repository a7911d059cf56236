//! ONNX Runtime for tests that load it.

use std::path::Path;
use std::process::{Command, Stdio};

/// Fetches the library with the project's script if it is missing.
pub fn fetch_runtime() {
    if rollout::runtime::find(rollout::runtime::Build::Cpu).is_err() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/fetch-runtime.sh");
        let status =
            Command::new(script).stdout(Stdio::null()).status().expect("scripts/fetch-runtime.sh runs");
        assert!(status.success(), "scripts/fetch-runtime.sh failed");
    }
}
