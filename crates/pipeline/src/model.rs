//! The model that a run begins with: where it is on this machine, and the defaults that follow from its size.

use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::frozen_settings;
use crate::kind::PolicyKind;
use crate::programs::Programs;
use crate::settings::Settings;
use crate::values::{Number, PolicyChoice, is_server};

/// Adapters of models with fewer parameters take larger steps.
const SMALL: u64 = 300_000_000;

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its Hugging Face or policy directory.
    pub directory: String,
    /// How many parameters it has, without adapters.
    pub parameters: u64,
}

impl Model {
    /// Fetches a model and converts it, where that is necessary.
    ///
    /// # Errors
    /// `policy fetch` failed, and has printed the reason.
    pub fn fetch(programs: &Programs, model: &str) -> Result<Model> {
        let told = programs.printed("policy", &["fetch", model, "--format", "json"])?;
        let told: Value = serde_json::from_str(&told)
            .map_err(|error| Failure::work(format!("policy fetch {model}: {error}")))?;
        let directory = told["directory"].as_str().unwrap_or_default().to_owned();
        Ok(Model { directory, parameters: told["parameters"].as_u64().unwrap_or_default() })
    }
}

/// Fetches the models of a new run and chooses the default learning rate by the first one's size. A run that has begun keeps that
/// default and does not need the models again.
pub fn settle(programs: &Programs, settings: &mut Settings, run: &Path) -> Result<()> {
    let is_handed_in = matches!(settings.policies, PolicyChoice::Named(_));
    let is_own = settings.kind == PolicyKind::Tiny || settings.model == "bench";
    let mut sources: Vec<&str> = match &settings.policies {
        PolicyChoice::Named(pairs) => pairs.iter().map(|pair| pair.value.as_str()).collect(),
        _ if is_own => Vec::new(),
        _ => vec![&settings.model],
    };
    sources.retain(|what| !is_server(what));
    let is_begun = run.join("policies/done").is_file();
    let fetch = |source: &&str| Model::fetch(programs, source); // refuses what cannot be played
    let models: Vec<Model> =
        if is_begun { Vec::new() } else { sources.iter().map(fetch).collect::<Result<_>>()? };
    if is_own {
        return Ok(());
    }
    match models.into_iter().next() {
        Some(model) => {
            settings.rate = Some(learning_rate(settings.kind, model.parameters));
            settings.local_model = Some(model).filter(|_| !is_handed_in);
        }
        None => settings.rate = begun_with(run),
    }
    settings.set_default_rate();
    Ok(())
}

/// The peak learning rate for so many parameters. docs/real-models.md has the runs behind it.
fn learning_rate(kind: PolicyKind, parameters: u64) -> Number {
    let is_small = parameters < SMALL;
    Number(match kind {
        PolicyKind::Tiny => 1e-3,
        PolicyKind::Pretrained => 1e-5,
        PolicyKind::Adapters if is_small => 5e-4,
        PolicyKind::Adapters => 1e-4,
    })
}

/// The default learning rate of a run that has begun; in an older run, which does not record it, the rate it has.
fn begun_with(run: &Path) -> Option<Number> {
    let values: Value = serde_json::from_slice(&std::fs::read(run.join("run.json")).ok()?).ok()?;
    let rate = values.get(frozen_settings::DEFAULT_RATE).unwrap_or(&values["lr"]);
    rate.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_models_have_smaller_rates() {
        let rate = |kind, millions: u64| learning_rate(kind, millions * 1_000_000).to_string();
        assert_eq!(rate(PolicyKind::Adapters, 135), "5e-4");
        assert_eq!(rate(PolicyKind::Adapters, 494), "1e-4");
        assert_eq!(rate(PolicyKind::Pretrained, 135), "1e-5");
    }

    #[test]
    fn a_run_that_has_begun_keeps_its_default_rate() {
        let folder = tempfile::tempdir().unwrap();
        for (values, rate) in
            [(r#"{"lr": "3e-4"}"#, "3e-4"), (r#"{"lr": "3e-4", "default_lr": "1e-4"}"#, "1e-4")]
        {
            std::fs::write(folder.path().join("run.json"), values).unwrap();
            assert_eq!(begun_with(folder.path()).map(|rate| rate.to_string()).as_deref(), Some(rate));
        }
        assert_eq!(begun_with(&folder.path().join("nowhere")), None);
    }
}
