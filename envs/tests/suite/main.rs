//! Tests of the environments through the public interface and the program.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod code;
mod code_judge;
mod code_tasks;
mod command_line;
mod completion_limits;
mod contract;
mod coop_code;
mod drawn;
mod external;
mod external_turns;
mod math;
mod math_answers;
mod no_sandbox;
mod plan_path;
mod protocol;
mod sokoban;
mod sudoku;
#[path = "../../../crates/sandbox/tests/suite/support/mod.rs"]
mod support;
mod tasks;
mod thoughts;
mod workflow_file;
mod writing;
