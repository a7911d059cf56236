//! The environment contract: tasks, states that are values, and outcomes of actions.
//!
//! Everything here is a pure function of its arguments. A state can be cloned, written to JSON and read back, so a tree of
//! candidate actions is a tree of values: to score a candidate, clone the state, apply the text to the clone and read the
//! [`Outcome`]; to continue from the chosen candidate, keep its clone.
//!
//! An environment never counts turns. The caller stops after [`State::turn_limit`] of them (or at a limit of
//! its choice), and running out of turns is never a success: only an [`Outcome`] says `success`.
//!
//! Left out: policies, sampling, groups and advantages.
//!
//! [`Environment`] needs two functions and [`State`] six; all others have defaults.

pub mod demonstration;
mod environment;
mod outcome;
mod selection;
pub mod settings;
pub mod spec;
mod state;
pub mod streams;
pub mod workflow;

pub use demonstration::Demonstration;
pub use environment::{Demonstrator, Environment, ExtractionCase, Metadata};
pub use outcome::{Generation, Outcome};
pub use selection::{Selection, Split, Tasks};
pub use settings::{Setting, Settings};
pub use state::{State, apply_in_order};
pub use workflow::Workflow;
