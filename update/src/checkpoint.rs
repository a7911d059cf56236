//! A policy's version as training needs it: the decoder, the weights, the optimiser's state and what the last
//! update said of itself. Writing is [`policy::publish`]'s.

use std::collections::BTreeMap;
use std::path::Path;

use policy::config::Config;
use policy::directory::Policy;
use policy::weights::{ElementType, Weights as Tensors};
use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::{Model, Parameters, Shape};
use crate::optimizer::{Optimizer, Settings};
use crate::weights::Weights;

/// The optimiser's tensors beside the newest version.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// What an update said of itself, beside the version it made.
pub const STATE_FILE: &str = "trainer_state.json";
/// Prefix of the f32 masters of 16-bit weights among the optimiser's tensors.
const MASTER: &str = "master";

/// What an update says of itself beside the version that it published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// The version it started from.
    pub from: String,
    /// Digest of the samples and of every setting that decides the outcome.
    pub input_digest: String,
    /// The optimisation method whose state lies beside it.
    pub optimizer: String,
    /// The objective that this state was made under.
    pub objective: String,
    /// Optimiser steps taken since the state was made.
    pub optimizer_steps: u64,
    /// Those settings.
    pub settings: Map<String, Value>,
    /// The figures of the update, as its metrics line had them.
    pub metrics: Map<String, Value>,
}

impl TrainerState {
    /// The state in a version's directory; none beside a version that no update made.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn load(files: &Path) -> Result<Option<TrainerState>> {
        let path = files.join(STATE_FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::io(format!("{}: {error}", path.display()))),
        };
        let state = serde_json::from_str(&text).map_err(|error| {
            Failure::data(format!("{}: {error}", path.display()))
                .hint("written by another build? remove the file to start with a fresh optimiser")
        })?;
        Ok(Some(state))
    }
}

/// A version, opened for training.
pub struct Checkpoint {
    /// The decoder.
    pub model: Model,
    /// Its weights.
    pub weights: Weights,
    /// Whether every tensor on disk is f32.
    pub single: bool,
}

/// The decoder's shape out of a configuration.
pub fn shape(config: &Config) -> Shape {
    Shape {
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        layers: config.num_layers,
        heads: config.num_heads,
        kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        vocabulary: config.vocab_size,
        epsilon: config.rms_norm_eps,
        inverse_frequencies: config.inverse_frequencies(),
        qk_norm: config.qk_norm,
        attention_bias: config.attention_bias,
        tied: config.tie_word_embeddings,
    }
}

impl Checkpoint {
    /// Reads a version's weights.
    ///
    /// # Errors
    /// Files that are missing, damaged or of another model than the configuration says.
    pub fn load(policy: &Policy, config: &Config) -> Result<Checkpoint> {
        let tensors = Tensors::open(&policy.files)?;
        tensors.check(config)?;
        let model = Model::new(shape(config));
        let mut types = Vec::new();
        let published = model.parameters(|entry, values| {
            let view = tensors.tensor(&entry.name)?;
            types.push(view.dtype);
            match view.as_f32() {
                Some(found) => values.copy_from_slice(found),
                None => values.copy_from_slice(&view.to_f32()?),
            }
            Ok::<(), Failure>(())
        })?;
        let single = types.iter().all(|&kind| kind == ElementType::F32);
        let masters = if single { None } else { masters(policy, &published)? };
        Ok(Checkpoint { model, weights: Weights::new(published, masters, types), single })
    }

    /// The optimiser, with the state saved beside the version if that is of the same method and objective; the second
    /// value says whether it was.
    ///
    /// # Errors
    /// A state that should be there and is not, or is damaged.
    pub fn optimizer(&self, policy: &Policy, settings: Settings, objective: &str) -> Result<(Optimizer, bool)> {
        let mut optimizer = Optimizer::new(settings, self.weights.forward().layout());
        let Some(state) = TrainerState::load(&policy.files)? else { return Ok((optimizer, false)) };
        if state.optimizer != settings.method.name() || state.objective != objective {
            return Ok((optimizer, false));
        }
        let saved = match optimizer.state().is_empty() {
            true => BTreeMap::new(),
            false => saved_tensors(policy)?,
        };
        optimizer.restore(saved, state.optimizer_steps).map_err(|name| {
            Failure::data(format!("{}: tensor {name:?} is missing", policy.files.join(OPTIMIZER_FILE).display()))
                .hint(format!("remove {} to start with a fresh optimiser", policy.files.join(STATE_FILE).display()))
        })?;
        Ok((optimizer, true))
    }
}

/// Every tensor of the optimiser's file.
fn saved_tensors(policy: &Policy) -> Result<BTreeMap<String, Vec<f32>>> {
    let path = policy.files.join(OPTIMIZER_FILE);
    let tensors = Tensors::open_file(&path).map_err(|failure| {
        failure.hint(format!(
            "the optimiser's state of version {} is gone; remove {} to go on with a fresh one",
            policy.version,
            policy.files.join(STATE_FILE).display()
        ))
    })?;
    tensors.names().map(|name| Ok((name.to_owned(), tensors.to_f32(name)?))).collect()
}

/// The f32 masters beside a version of 16-bit weights; none where no update made that version.
fn masters(policy: &Policy, published: &Parameters) -> Result<Option<Parameters>> {
    if TrainerState::load(&policy.files)?.is_none() {
        return Ok(None);
    }
    let tensors = Tensors::open_file(&policy.files.join(OPTIMIZER_FILE))?;
    let mut masters = published.clone();
    for entry in &published.layout().entries {
        let values = tensors.to_f32(&format!("{MASTER}.{}", entry.name))?;
        masters.values[entry.range.clone()].copy_from_slice(&values);
    }
    Ok(Some(masters))
}
