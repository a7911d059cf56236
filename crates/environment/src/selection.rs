//! The choice of tasks to draw.

use record::failure::Result;
use record::line::Task;

use crate::settings::Settings;

/// The train or the test split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Split {
    /// Tasks to learn from.
    Train,
    /// Held-out tasks: no seed changes which they are.
    Test,
}

impl Split {
    /// The name used in task lines and identifiers: `train` or `test`.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Test => "test",
        }
    }
}

/// Selects the tasks to draw.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Train or test.
    pub split: Split,
    /// Names the stream of tasks; of no influence on which tasks the test split holds.
    pub seed: u64,
    /// Values given with `--set`.
    pub settings: Settings,
}

/// An endless stream of tasks.
pub type Tasks<'a> = Box<dyn Iterator<Item = Result<Task>> + Send + 'a>;
