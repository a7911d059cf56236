//! The subcommands of `policy`.

pub mod check;
pub mod encode;
pub mod graph;
pub mod init;
