//! What a joint reward asks for: work, or what the published rules take for it.
//!
//! The published rewards of MAGRPO (arXiv 2508.04652) read texts: a method counts if it has a `def`, a helper if its name stands
//! there, a summary if its length fits. Such points can be had without the work. `--set gates=earned`, the default, pays for
//! what a text does or says; each environment says how. Left out: a judgment of style, which takes a judge.

use record::failure::Result;
use serde::{Deserialize, Serialize};

use environment::settings::{Setting, Settings, choice};

/// The rules of a reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gates {
    /// Rules that pay for work.
    #[default]
    Earned,
    /// The published ones.
    Published,
}

/// `gates`.
pub const GATES: Setting = Setting::new(
    "gates",
    "earned",
    "earned (points take the work) or published (the paper's rules, which can be gamed)",
);

impl Gates {
    pub fn of(settings: &Settings) -> Result<Gates> {
        match settings.text("gates") {
            None | Some("earned") => Ok(Gates::Earned),
            Some("published") => Ok(Gates::Published),
            Some(other) => Err(choice("gates", other, "earned or published")),
        }
    }

    /// True if points take the work.
    pub fn earned(self) -> bool {
        self == Gates::Earned
    }
}
