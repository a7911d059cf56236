//! A program that talks to an OpenAI endpoint, as an environment: its roles' calls become the turns of an episode.
//!
//! [`call`] reads calls and writes answers, [`process`] starts programs ([`preload`] faster) and serves them, [`episode`] holds what is copied and replayed,
//! [`outcome`] reads how a program ended, and [`protocol`] answers `rollout`. [`tasks`] and [`mod@check`] are the command's other words.
//! Left out: streams of `/responses`, stored responses, images, and a fence: the program runs as its user would run it.

mod call;
mod check;
mod episode;
mod outcome;
mod preload;
mod process;
mod protocol;
mod roles;
mod tasks;

pub use check::check;
pub use process::Launcher;
pub use protocol::run;
pub use roles::{Crash, Role, Scorer, Settings};
pub use tasks::{Tail, Word, question, read, write};
