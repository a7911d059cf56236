//! Policies x environments -> samples.
//!
//! Reads `task` lines, plays each task with a team of policies and writes a `sample` line for every candidate
//! that was scored, an `episode` line for every episode begun and an `error` line for every one that could not
//! be scored. The defaults are AT-GRPO's tree sampling (arXiv 2510.11062).
//!
//! From the outside in: [`arguments`] and [`run`] are the command; [`stage`], [`feed`], [`queue`], [`worker`] and
//! [`order`] keep the processors busy and the output in order; [`trial`] is a task under way and [`episode`] the
//! algorithm itself; [`engine`] runs the model.

pub mod account;
pub mod arguments;
pub mod engine;
pub mod episode;
pub mod feed;
pub mod generator;
pub mod kernels;
pub mod lines;
pub mod models;
pub mod order;
pub mod prompts;
pub mod queue;
pub mod run;
pub mod runtime;
pub mod stage;
pub mod streams;
pub mod team;
pub mod trial;
pub mod version;
pub mod worker;
