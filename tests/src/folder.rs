//! A test's folder, which its commands call `D`.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::program;

/// A new folder, removed with its content when it is dropped.
pub struct TestFolder(TempDir);

impl TestFolder {
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> TestFolder {
        TestFolder(tempfile::tempdir().expect("a folder"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A shell command, with this folder in place of `D/`.
    pub fn at(&self, command: &str) -> String {
        command.replace("D/", &format!("{}/", self.path().display()))
    }

    /// Runs such a command, which must succeed, and returns its standard output.
    pub fn must(&self, command: &str) -> String {
        crate::must(&self.at(command))
    }

    pub fn lines(&self, file: &str) -> Vec<Value> {
        program::lines(&std::fs::read_to_string(self.path().join(file)).expect("a stream"))
    }
}
