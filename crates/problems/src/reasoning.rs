//! `--set reasoning`: how much an answer in prose thinks aloud.

use environment::settings::{Encoding, Setting, Settings, choice};
use record::failure::Result;
use serde::{Deserialize, Serialize};

/// `reasoning` of environments whose tasks are problems.
pub const REASONING: Setting = Setting::new(
    "reasoning",
    "brief; steps with data",
    "what full prompts ask for: brief (the answer alone, for small models) or steps (step by step, with room)",
);

/// How much an answer in prose thinks aloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reasoning {
    /// Step by step, with room.
    #[default]
    Steps,
    /// The answer and nothing else, for small models.
    Brief,
}

impl Reasoning {
    /// The value of `--set reasoning`: brief for generated problems.
    pub fn from_settings(settings: &Settings, encoding: Encoding) -> Result<Reasoning> {
        match settings.text("reasoning") {
            None if encoding == Encoding::Full && settings.text("data").is_none() => Ok(Reasoning::Brief),
            None | Some("steps") => Ok(Reasoning::Steps),
            Some("brief") => Ok(Reasoning::Brief),
            Some(other) => Err(choice("reasoning", other, "brief or steps")),
        }
    }

    /// Returns true if a `spec` leaves it out.
    pub fn is_default(&self) -> bool {
        *self == Reasoning::default()
    }
}
