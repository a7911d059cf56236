//! `envs check`.
use record::failure::Result;

/// Checks an environment's contract.
#[derive(clap::Args)]
pub struct Check {}

impl Check {
    pub fn run(&self, _quiet: bool) -> Result<()> {
        Ok(())
    }
}
