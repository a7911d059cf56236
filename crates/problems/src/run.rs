//! Model-written programs, run in the sandbox and remembered.
//!
//! A run is remembered by everything that went in, so that a candidate is executed with the result that it was scored
//! with, whatever clocks or random numbers it asks for, and tests that repeat turn after turn cost nothing.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use record::failure::Result;
use sandbox::{Execution, Program, Sandbox};

/// Bytes of output that are remembered, and runs.
const MOST_BYTES: usize = 64 << 20;
const MOST_RUNS: usize = 1 << 16;

#[derive(Default)]
struct Memory {
    runs: HashMap<[u8; 32], Arc<Execution>>,
    bytes: usize,
}

/// What `program` does.
///
/// # Errors
/// There is no sandbox: unavailable. Whatever the program does is an [`Execution`].
pub fn run(program: &Program<'_>) -> Result<Arc<Execution>> {
    static MEMORY: LazyLock<Mutex<Memory>> = LazyLock::new(Mutex::default);
    let memory = || MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let mut hasher = blake3::Hasher::new();
    for part in [program.source, program.stdin, &format!("{:?} {:?}", program.entry, program.limits)] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let digest = *hasher.finalize().as_bytes();
    if let Some(execution) = memory().runs.get(&digest) {
        return Ok(Arc::clone(execution));
    }
    let execution = Arc::new(Sandbox::shared()?.run(program)?);
    let mut memory = memory();
    if memory.runs.len() >= MOST_RUNS || memory.bytes >= MOST_BYTES {
        *memory = Memory::default();
    }
    memory.bytes += execution.stdout.len() + execution.result.as_ref().map_or(0, String::len);
    // Two threads may have run it at the same time: the first result stays.
    Ok(Arc::clone(memory.runs.entry(digest).or_insert(execution)))
}
