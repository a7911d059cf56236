//! The policy that `--kl` keeps another close to.

use policy::config::Config;
use policy::directory::Policy;
use policy::ownership::{Owner, Ownership};
use record::failure::{Failure, Result};

use crate::samples::Samples;

/// The reference policy of an owner: the one named for an agent of its, else the one named for all.
///
/// # Errors
/// None for one of its agents, or several for them (2); one that cannot be opened, or of another vocabulary (65).
pub fn open(owned: &Owner, references: &Ownership, samples: &Samples, config: &Config) -> Result<Policy> {
    let mut found: Vec<usize> = Vec::new();
    for agent in &samples.agents {
        match references.of(agent) {
            Some(index) if !found.contains(&index) => found.push(index),
            Some(_) => {}
            None => {
                return Err(Failure::usage(format!("--kl: no --reference for agent {agent}"))
                    .hint(format!("add --reference {agent}=DIR, or one without AGENT= for all")));
            }
        }
    }
    let [index] = found[..] else {
        return Err(Failure::usage(format!("{}: its agents have different references", owned.name))
            .hint("a policy is kept close to one reference"));
    };
    let reference = Policy::open(&references.owners()[index].directory)?;
    if Config::load(reference.model())?.vocab_size != config.vocab_size {
        return Err(Failure::data(format!(
            "{}: its vocabulary is not that of {}",
            reference.root.display(),
            owned.name
        ))
        .hint("a reference needs the policy's own tokenizer"));
    }
    Ok(reference)
}
