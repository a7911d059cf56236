//! Shared code of environments whose task is a problem: drawn without end or read from a file, and answered
//! in turns by agents who see the last messages.
//!
//! `math` and `code` implement [`Problem`]; [`problem`] has workflows, tasks, episodes, state JSON and demonstrations.
//! [`mod@file`] reads problems from files, [`fences`] finds programs in answers, [`functions`] functions, [`run`] runs them; [`joint`] is for
//! environments that score what all agents said in a turn as one, [`gates`] what such a score asks for.
//!
//! Left out: games on boards.

pub mod class_eval;
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
pub mod strbuild;
pub mod workflow_file;
pub mod writing;

pub use problem::{Episode, Play, Problem, outcome, spell};
pub use reasoning::Reasoning;
