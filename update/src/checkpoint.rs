//! A policy's version as training needs it: the decoder, the weights, the optimiser's state and what the last
//! update said of itself; and the next version made of them.
//!
//! How a version gets onto the disk whole is [`policy::publish`]'s business.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use policy::config::Config;
use policy::directory::{Policy, Version};
use policy::publish::{Data, NewTensor, NewVersion, Retention, publish, training_state};
use policy::weights::{ElementType, TensorView, Weights as Tensors};
use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::{Entry, LowRank, Model, Parameters, Shape};
use crate::optimizer::{Optimizer, Settings};
use crate::weights::{Weights, join, lower_half};

/// Prefixes of what the optimiser's file holds of 16-bit weights: lower halves (bf16), or f32 masters (f16).
const LOWER: &str = "lower";
const MASTER: &str = "master";

/// What an update says of itself beside the version that it published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// The optimisation method whose state lies beside it.
    pub optimizer: String,
    /// The objective that this state was made under.
    pub objective: String,
    /// Optimiser steps taken since the state was made.
    pub optimizer_steps: u64,
    /// Every setting that decides the outcome.
    pub settings: Map<String, Value>,
    /// The figures of the update as JSON text, so that a repeated call can say them again to the last digit.
    pub figures: String,
}

/// The optimiser's tensors and the notes beside a version.
type Saved = (Option<Tensors>, TrainerState);

/// What lies beside a version; none where no update made it.
///
/// # Errors
/// State of other weights, or notes that cannot be read.
pub fn saved(policy: &Policy) -> Result<Option<Saved>> {
    let Some((tensors, notes)) = training_state(policy)? else { return Ok(None) };
    let state = serde_json::from_value(Value::Object(notes)).map_err(|error| {
        Failure::data(format!("{}: trainer_state.json: {error}", policy.files.display())).hint(
            "written by another build? remove it and optimizer.safetensors to start with a fresh optimiser",
        )
    })?;
    Ok(Some((tensors, state)))
}

/// A version, opened for training.
pub struct Checkpoint {
    /// The decoder.
    pub model: Model,
    /// Its weights.
    pub weights: Weights,
    /// What lay beside it.
    saved: Option<Saved>,
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

/// What is trained of a version where that is an adapter, and not all its weights.
///
/// # Errors
/// An adapter that does not fit its base.
pub fn adapter(policy: &Policy, config: &Config) -> Result<Option<LowRank>> {
    Ok(policy.adapter(config)?.map(|(adapter, _)| LowRank::new(&adapter, &shape(config))))
}

impl Checkpoint {
    /// Reads a version's weights and what lies beside them.
    ///
    /// # Errors
    /// Files that are missing, damaged or of another model than the configuration says.
    pub fn load(policy: &Policy, config: &Config) -> Result<Checkpoint> {
        let (model, tensors) = match policy.adapter(config)? {
            None => {
                let tensors = Tensors::open(&policy.files)?;
                tensors.check(config)?;
                (Model::new(shape(config)), tensors)
            }
            Some((adapter, tensors)) => {
                let low_rank = LowRank::new(&adapter, &shape(config));
                (Model::new(shape(config)).adapted(low_rank, base(policy.model(), config)?), tensors)
            }
        };
        let mut types = Vec::new();
        let published = model.parameters(|entry, values| {
            let view = tensors.tensor(&entry.name)?;
            types.push(view.dtype);
            fill(&view, values)
        })?;
        let saved = saved(policy)?;
        let masters = match &saved {
            Some((Some(tensors), _)) => masters(tensors, &published, &types)?,
            _ => None,
        };
        Ok(Checkpoint { model, weights: Weights::new(published, masters, types), saved })
    }

    /// Whether every tensor on disk is f32.
    pub fn is_single(&self) -> bool {
        self.weights.types().iter().all(|&kind| kind == ElementType::F32)
    }

    /// The optimiser, with the state saved beside the version if that is of the same method and objective; the second
    /// value says whether it was.
    ///
    /// # Errors
    /// A state that is damaged.
    pub fn optimizer(
        &self,
        policy: &Policy,
        settings: Settings,
        objective: &str,
    ) -> Result<(Optimizer, bool)> {
        let mut optimizer = Optimizer::new(settings, self.weights.forward().layout());
        let Some((tensors, state)) = &self.saved else { return Ok((optimizer, false)) };
        if state.optimizer != settings.method.name() || state.objective != objective {
            return Ok((optimizer, false));
        }
        let own = tensors.iter().flat_map(|tensors| tensors.names().map(move |name| (name, tensors)));
        let own = own.filter(|(name, _)| !name.starts_with(LOWER) && !name.starts_with(MASTER));
        let values: Result<BTreeMap<String, Vec<f32>>> =
            own.map(|(name, tensors)| Ok((name.to_owned(), tensors.to_f32(name)?))).collect();
        optimizer.restore(values?, state.optimizer_steps).map_err(|name| {
            Failure::data(format!(
                "{}: optimizer.safetensors: no tensor {name:?} of the right size",
                policy.files.display()
            ))
            .hint("remove it and trainer_state.json to start with a fresh optimiser")
        })?;
        Ok((optimizer, true))
    }

    /// Publishes the weights and the optimiser's state as the version after `from`.
    ///
    /// # Errors
    /// The disk's.
    pub fn publish(
        &self,
        from: &Policy,
        input: &str,
        optimizer: &Optimizer,
        state: &TrainerState,
        keep: usize,
    ) -> Result<Version> {
        let forward = self.weights.forward();
        let tensors: Vec<NewTensor> =
            forward.tensors().map(|(entry, values)| tensor(&entry.name, entry, Data::F32(values))).collect();
        let moments = optimizer.state();
        let masters = self.saved_masters();
        let mut beside: Vec<NewTensor> =
            moments.iter().map(|(name, entry, values)| tensor(name, entry, Data::F32(values))).collect();
        beside.extend(masters.iter().map(|(name, entry, values)| match values {
            Kept::Lower(halves) => tensor(name, entry, Data::U16(halves)),
            Kept::Whole(values) => tensor(name, entry, Data::F32(values)),
        }));
        let Ok(Value::Object(notes)) = serde_json::to_value(state) else {
            return Err(Failure::work("the trainer's state cannot be written as JSON"));
        };
        let next = NewVersion { input, tensors: &tensors, optimizer: &beside, trainer_state: &notes };
        // The version that a resumed run would start from, until the run has taken note of the new one.
        let pinned = [from.version.clone()];
        publish(from, &next, &Retention { keep, pinned: &pinned })
    }

    /// What has to be kept of the masters so that they can be had again.
    fn saved_masters(&self) -> Vec<(String, &Entry, Kept<'_>)> {
        let Some(masters) = self.weights.masters() else { return Vec::new() };
        let kept =
            masters.tensors().zip(self.weights.types()).filter_map(|((entry, values), kind)| match kind {
                ElementType::BF16 => {
                    let halves = values.iter().map(|&value| lower_half(value)).collect();
                    Some((format!("{LOWER}.{}", entry.name), entry, Kept::Lower(halves)))
                }
                ElementType::F16 => Some((format!("{MASTER}.{}", entry.name), entry, Kept::Whole(values))),
                _ => None,
            });
        kept.collect()
    }
}

/// The frozen weights that adapters are trained over, read once however many policies are adapters of them.
fn base(files: &Path, config: &Config) -> Result<Arc<Parameters>> {
    static READ: Mutex<BTreeMap<PathBuf, Arc<Parameters>>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(base) = read.get(files) {
        return Ok(base.clone());
    }
    let tensors = Tensors::open(files)?;
    tensors.check(config)?;
    let base = Model::new(shape(config))
        .parameters(|entry, values| tensors.tensor(&entry.name).and_then(|view| fill(&view, values)))?;
    Ok(read.entry(files.to_owned()).or_insert(Arc::new(base)).clone())
}

fn fill(view: &TensorView, values: &mut [f32]) -> Result<()> {
    match view.as_f32() {
        Some(found) => values.copy_from_slice(found),
        None => values.copy_from_slice(&view.to_f32()?),
    }
    Ok(())
}

/// What is kept of a master.
enum Kept<'a> {
    Lower(Vec<u16>),
    Whole(&'a [f32]),
}

fn tensor<'a>(name: &'a str, entry: &'a Entry, data: Data<'a>) -> NewTensor<'a> {
    NewTensor { name, shape: &entry.shape, data }
}

/// The f32 masters of 16-bit weights out of what was saved of them; none for f32 weights.
fn masters(tensors: &Tensors, published: &Parameters, types: &[ElementType]) -> Result<Option<Parameters>> {
    if types.iter().all(|&kind| kind == ElementType::F32) {
        return Ok(None);
    }
    let mut masters = published.clone();
    for (entry, kind) in published.layout().entries.iter().zip(types) {
        let values = &mut masters.values[entry.range.clone()];
        match kind {
            ElementType::BF16 => {
                let view = tensors.tensor(&format!("{LOWER}.{}", entry.name))?;
                for (value, &half) in values.iter_mut().zip(view.bytes.as_chunks::<2>().0) {
                    *value = join(*value, u16::from_le_bytes(half));
                }
            }
            ElementType::F16 => values.copy_from_slice(&tensors.to_f32(&format!("{MASTER}.{}", entry.name))?),
            _ => {}
        }
    }
    Ok(Some(masters))
}
