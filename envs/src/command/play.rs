//! `envs play`.
use record::failure::Result;

/// Plays an environment.
#[derive(clap::Args)]
pub struct Play {}

impl Play {
    pub fn run(&self) -> Result<()> {
        Ok(())
    }
}
