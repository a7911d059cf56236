//! Policies x environments -> samples.
//!
//! Reads `task` lines, plays each task with a team of policies and writes a `sample` line for every scored candidate, an
//! `episode` line for every episode and an `error` line for every one that could not be scored. The defaults are
//! AT-GRPO's tree sampling (arXiv 2510.11062).
//!
//! From the outside in: [`arguments`], [`settings`] and [`stage`] are the program; [`reader`], [`queue`], [`worker`] and [`writer`] are
//! its threads; [`task_run`] is a task in progress and [`episode`] the algorithm; [`engine`] runs the model.

pub mod absent;
pub mod arguments;
pub mod by_agent;
pub mod engine;
pub mod episode;
pub mod fill;
pub mod generator;
pub mod inference;
pub mod kernels;
pub mod lines;
pub mod opponents;
pub mod placement;
pub mod policies;
pub mod prompts;
pub mod queue;
pub mod reader;
pub mod runtime;
pub mod sampling;
pub mod serve;
pub mod server;
pub mod settings;
pub mod stage;
pub mod stats;
pub mod streams;
pub mod task_run;
pub mod version;
pub mod worker;
pub mod writer;
