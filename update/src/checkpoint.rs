//! A policy's version as training needs it: the decoder, where its weights lie, the optimiser's state and what the last
//! update said of itself.
//!
//! Opening one reads no weights. The next version is [`crate::publish`]'s business.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use policy::config::{Config, DataType};
use policy::directory::Policy;
use policy::publish::training_state;
use policy::weights::{ElementType, Weights as Tensors};
use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::{Layout, LowRank, Model, Parameters, Shape, Source};
use crate::optimizer::{self, Method};
use crate::stored::{Masters, Saved, Stored};
use crate::weights::Weights;

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
type Beside = (Option<Saved>, TrainerState);

/// What lies beside a version; none where no update made it.
///
/// # Errors
/// State of other weights, or notes that cannot be read.
pub fn beside(policy: &Policy) -> Result<Option<Beside>> {
    let Some((tensors, notes)) = training_state(policy)? else { return Ok(None) };
    let state = serde_json::from_value(Value::Object(notes)).map_err(|error| {
        Failure::data(format!("{}: trainer_state.json: {error}", policy.files.display())).hint(
            "written by another build? remove it and optimizer.safetensors to start with a fresh optimiser",
        )
    })?;
    Ok(Some((tensors.map(|tensors| Saved::new(tensors, policy.files.clone())), state)))
}

/// A version, opened for training.
pub struct Checkpoint {
    /// The decoder's sizes and variants.
    pub shape: Shape,
    /// What is trained: the decoder's weights, or an adapter's.
    pub trained: Stored,
    base: Option<Base>,
    beside: Option<Beside>,
}

/// What lies under an adapter.
struct Base {
    adapter: LowRank,
    weights: Stored,
    files: PathBuf,
}

/// The optimiser's state saved beside a version.
pub struct State<'a> {
    /// Its tensors; nothing where the method keeps none.
    pub saved: Option<&'a Saved>,
    /// The steps it had taken.
    pub steps: u64,
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

/// The type of most weights. The files are believed, whatever the configuration says of them.
pub fn stored(config: &Config, weights: &Tensors) -> DataType {
    let narrow = |name: &str| weights.tensor(name).is_ok_and(|view| view.dtype != ElementType::F32);
    match (config.tensors().iter().any(|tensor| narrow(&tensor.name)), config.dtype) {
        (false, _) => DataType::F32,
        (true, DataType::F32) => DataType::BF16,
        (true, said) => said,
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
    /// Opens a version's weights and what lies beside them.
    ///
    /// # Errors
    /// Files that are missing, damaged or of another model than the configuration says.
    pub fn open(policy: &Policy, config: &Config) -> Result<Checkpoint> {
        let shape = shape(config);
        let weights = Tensors::open(policy.model())?;
        weights.check(config)?;
        let weights = Stored::new(Arc::new(Layout::new(&shape)), weights)?;
        let (trained, base) = match policy.adapter(config)? {
            None => (weights, None),
            Some((adapter, tensors)) => {
                let adapter = LowRank::new(&adapter, &shape);
                let trained = Stored::new(adapter.layout().clone(), tensors)?;
                (trained, Some(Base { adapter, weights, files: policy.model().to_owned() }))
            }
        };
        let checkpoint = Checkpoint { shape, trained, base, beside: beside(policy)? };
        checkpoint.masters()?;
        Ok(checkpoint)
    }

    /// Where an adapter is trained: it, and the frozen weights under it.
    pub fn adapter(&self) -> Option<(&LowRank, &Stored)> {
        self.base.as_ref().map(|base| (&base.adapter, &base.weights))
    }

    /// What the optimiser moves, in f32.
    ///
    /// # Errors
    /// Not all that is needed lies beside the version.
    pub fn masters(&self) -> Result<Masters<'_>> {
        let saved = self.beside.as_ref().and_then(|(saved, _)| saved.as_ref());
        Masters::new(&self.trained, saved)
    }

    /// The optimiser's state, if what lies beside the version is of this method and objective.
    ///
    /// # Errors
    /// A state that is damaged.
    pub fn state(&self, method: Method, objective: &str) -> Result<Option<State<'_>>> {
        let alike = |(_, state): &&Beside| state.optimizer == method.name() && state.objective == objective;
        let Some((saved, state)) = self.beside.as_ref().filter(alike) else { return Ok(None) };
        let keeps = !optimizer::tensors(method, self.trained.layout()).is_empty();
        match saved {
            Some(saved) => saved.check_moments(method, self.trained.layout())?,
            None if keeps => {
                return Err(Failure::data("optimizer.safetensors: not beside trainer_state.json")
                    .hint("remove trainer_state.json to start with a fresh optimiser"));
            }
            None => {}
        }
        Ok(Some(State { saved: saved.as_ref(), steps: state.optimizer_steps }))
    }

    /// All of it in memory, for training or scoring on the processor.
    ///
    /// # Errors
    /// The files'.
    pub fn on_host(&self) -> Result<(Model, Weights)> {
        let mut model = Model::new(self.shape.clone());
        if let Some(base) = &self.base {
            model = model.adapted(base.adapter.clone(), base.on_host()?);
        }
        Ok((model, self.weights()?))
    }

    /// What is trained, in memory.
    ///
    /// # Errors
    /// The files'.
    pub fn weights(&self) -> Result<Weights> {
        let masters = if self.trained.is_single() { None } else { Some(Parameters::of(&self.masters()?)?) };
        Ok(Weights::new(Parameters::of(&self.trained)?, masters, self.trained.types().to_vec()))
    }
}

impl Base {
    /// The frozen weights, read once however many policies are adapters of them.
    fn on_host(&self) -> Result<Arc<Parameters>> {
        static READ: Mutex<BTreeMap<PathBuf, Arc<Parameters>>> = Mutex::new(BTreeMap::new());
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = read.get(&self.files) {
            return Ok(base.clone());
        }
        let base = Arc::new(Parameters::of(&self.weights)?);
        Ok(read.entry(self.files.clone()).or_insert(base).clone())
    }
}
