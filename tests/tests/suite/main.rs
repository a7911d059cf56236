//! End-to-end tests: programs, pipes and run directories as a user sees them.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod absent;
mod adapters;
mod agreement;
mod architecture;
mod baseline;
mod border;
mod cluster;
mod compressed;
mod configuration;
mod conversations;
mod credit;
mod credit_stages;
mod documents;
mod early;
mod environments;
mod injected;
mod kernels;
mod magrpo;
mod mistakes;
mod parts;
mod pipeline;
mod pipeline_arguments;
mod pipeline_endings;
mod planted_bugs;
mod python;
mod queue;
mod ranks;
mod recipes;
mod replay;
mod resume;
mod run_folders;
mod self_play;
mod served;
mod shards;
mod side_by_side;
mod stand_in;
mod stand_in_cards;
mod stand_in_choices;
mod stand_in_nccl;
mod tables;
mod team;
mod words;
