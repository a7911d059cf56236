//! One call of `update`: its settings, its policies, and the processes that share it.

use policy::ownership::Ownership;

use crate::ranks::PolicyRanks;
use crate::settings::Settings;

/// Shared by every part of the input and every policy.
#[derive(Clone, Copy)]
pub struct UpdateContext<'a> {
    pub settings: &'a Settings,
    /// The policies to train, and the agents of each.
    pub ownership: &'a Ownership,
    /// The reference policies of `--kl`.
    pub references: &'a Ownership,
    pub processes: &'a PolicyRanks<'a>,
}
