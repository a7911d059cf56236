//! Environments whose task is a problem, generated or read from a file, and answered in turns by agents who see the last
//! messages.
//!
//! `math` and `code` implement [`Problem`] and [`Playable`]; [`problem`] has tasks, episodes, state JSON and demonstrations.
//! [`mod@file`] reads problems from files; [`fences`] finds programs in answers, [`functions`] functions; [`run`] runs them.
//! [`joint`] is for environments that score the texts of all agents in a turn as one; [`gates`] are the conditions of such
//! a score.
//!
//! Left out: games on boards.

mod answers;
pub mod code;
pub mod coop_code;
pub mod fences;
pub mod file;
pub mod functions;
pub mod gates;
pub mod joint;
pub mod math;
pub mod problem;
pub mod reasoning;
pub mod run;
pub mod workflow_file;
pub mod writing;

pub use answers::{outcome, shorten, show, spell};
pub use problem::{Episode, Playable, Problem};
pub use reasoning::Reasoning;
