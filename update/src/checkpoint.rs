//! A published version opened for training: its configuration, its weights on disk, and the training state saved with
//! it. Opening one reads no weights. Writing the next version is in [`crate::publish`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use policy::config::Config;
use policy::directory::Policy;
use policy::training_state::training_state;
use policy::weights::{ElementType, Weights as Tensors};
use record::failure::{Failure, Result};
use record::stage::choice;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::loss_scale::LossScale;
use crate::model::{Layout, LoraAdapter, Model, Parameters, Source};
use crate::optimizer::{self, Method, StateKind};
use crate::weights::{CheckpointTensors, MasterWeights, OptimizerTensors, Weights};

/// Content of `trainer_state.json` in a published version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// The optimizer whose state is in `optimizer.safetensors`.
    pub optimizer: String,
    /// The objective of the steps that made this state.
    pub objective: String,
    /// Optimizer steps taken since the state was initialized.
    pub optimizer_steps: u64,
    /// The loss scale of float16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Every setting that changes the result.
    pub settings: Map<String, Value>,
    /// The metrics of the update as JSON text, which a repeated call prints again digit by digit.
    #[serde(rename = "figures")]
    pub metrics: String,
}

/// The optimizer's tensors, if it keeps any, and the trainer's state.
pub type SavedState = (Option<OptimizerTensors>, TrainerState);

/// The training state saved with a version; `None` if no update made the version.
///
/// # Errors
/// State of other weights, or a trainer's state that cannot be read.
pub fn saved_state(policy: &Policy) -> Result<Option<SavedState>> {
    let Some((tensors, notes)) = training_state(policy)? else { return Ok(None) };
    let state = serde_json::from_value(Value::Object(notes)).map_err(|error| {
        Failure::data(format!("{}: trainer_state.json: {error}", policy.files.display())).hint(
            "written by another build? remove it and optimizer.safetensors to start with a fresh optimizer",
        )
    })?;
    let files = policy.files.clone();
    Ok(Some((tensors.map(|tensors| OptimizerTensors::Saved { tensors, files }), state)))
}

/// A version, opened for training.
pub struct Checkpoint {
    /// The decoder's sizes and variants.
    pub config: Config,
    /// The trained tensors: the decoder's weights, or an adapter's.
    pub trained: CheckpointTensors,
    base: Option<Base>,
    saved: Option<SavedState>,
}

/// The frozen base of an adapter.
struct Base {
    adapter: LoraAdapter,
    weights: CheckpointTensors,
    files: PathBuf,
}

/// The optimizer's state saved with a version.
pub struct OptimizerState<'a> {
    /// Its tensors; `None` for SGD.
    tensors: Option<&'a OptimizerTensors>,
    /// The steps it had taken.
    pub steps: u64,
    /// The loss scale of float16, if they were taken with it.
    pub loss_scale: Option<LossScale>,
}

impl OptimizerState<'_> {
    /// Copies a tensor's values from number `from` on; leaves `values` alone where the optimizer keeps no tensors.
    pub fn read(&self, name: &str, from: usize, values: &mut [f32]) -> Result<()> {
        self.tensors.map_or(Ok(()), |tensors| tensors.read(name, from, values))
    }
}

/// The type of most weights, by the files rather than by the configuration.
pub fn stored_dtype(config: &Config, weights: &Tensors) -> ElementType {
    let narrow = |name: &str| weights.tensor(name).is_ok_and(|view| view.dtype != ElementType::F32);
    match (config.tensors().iter().any(|tensor| narrow(&tensor.name)), config.dtype) {
        (false, _) => ElementType::F32,
        (true, ElementType::F32) => ElementType::BF16,
        (true, said) => said,
    }
}

/// The adapter of a version that is one.
///
/// # Errors
/// An adapter that does not fit its base.
pub fn adapter(policy: &Policy, config: &Config) -> Result<Option<LoraAdapter>> {
    Ok(policy.adapter()?.map(|(adapter, _)| LoraAdapter::new(adapter, config)))
}

impl Checkpoint {
    /// Opens a version's weights and its training state.
    ///
    /// # Errors
    /// Files that are missing, damaged or of another model than the configuration says.
    pub fn open(policy: &Policy, config: &Config) -> Result<Checkpoint> {
        Self::with(policy, config, saved_state(policy)?)
    }

    /// Opens a version's weights with a training state from memory, or without one if a learner has it.
    pub fn with(policy: &Policy, config: &Config, saved: Option<SavedState>) -> Result<Checkpoint> {
        let weights = CheckpointTensors::new(Arc::new(Layout::new(config)), policy.weights()?)?;
        let (trained, base) = match policy.adapter()? {
            None => (weights, None),
            Some((adapter, tensors)) => {
                let adapter = LoraAdapter::new(adapter, config);
                let trained = CheckpointTensors::new(adapter.layout().clone(), tensors)?;
                (trained, Some(Base { adapter, weights, files: policy.model().to_owned() }))
            }
        };
        let checkpoint = Checkpoint { config: config.clone(), trained, base, saved };
        checkpoint.masters()?;
        Ok(checkpoint)
    }

    /// The adapter that is trained and its frozen base, if so.
    pub fn adapter(&self) -> Option<(&LoraAdapter, &CheckpointTensors)> {
        self.base.as_ref().map(|base| (&base.adapter, &base.weights))
    }

    /// The f32 master weights that the optimizer moves.
    pub fn masters(&self) -> Result<MasterWeights<'_>> {
        let tensors = self.saved.as_ref().and_then(|(tensors, _)| tensors.as_ref());
        MasterWeights::new(&self.trained, tensors)
    }

    /// The optimizer's state, if the saved one is of this method and objective.
    pub fn state(&self, method: Method, objective: &str) -> Result<Option<OptimizerState<'_>>> {
        let alike =
            |(_, state): &&SavedState| state.optimizer == choice(&method) && state.objective == objective;
        let Some((tensors, state)) = self.saved.as_ref().filter(alike) else { return Ok(None) };
        let keeps = !optimizer::tensors(method, self.trained.layout()).is_empty();
        match tensors {
            Some(tensors) => tensors.check_moments(method, self.trained.layout())?,
            None if keeps => {
                return Err(Failure::data("optimizer.safetensors is missing beside trainer_state.json")
                    .hint("remove trainer_state.json to start with a fresh optimizer"));
            }
            None => {}
        }
        let (steps, loss_scale) = (state.optimizer_steps, state.loss_scale);
        Ok(Some(OptimizerState { tensors: tensors.as_ref(), steps, loss_scale }))
    }

    /// Forgets the training state, now that a learner has it.
    pub fn forget_state(&mut self) {
        self.saved = None;
    }

    /// Copies state of the layout's tensor number `tensor` to `values`, from its value `from` on.
    pub fn read(
        &self,
        method: Method,
        kind: StateKind,
        tensor: usize,
        from: usize,
        values: &mut [f32],
    ) -> Result<()> {
        let layout = self.trained.layout();
        let StateKind::Moment(moment) = kind else {
            return self.masters()?.read(&layout.entries[tensor], from, values);
        };
        let kept = optimizer::tensors(method, layout);
        let kept = kept.into_iter().find(|kept| (kept.tensor, kept.moment) == (tensor, moment));
        let saved = self.saved.as_ref().and_then(|(tensors, _)| tensors.as_ref());
        match saved.zip(kept) {
            Some((saved, kept)) => saved.read(&kept.name, from, values),
            None => Err(Failure::work("no such state of the optimizer is there")),
        }
    }

    /// The whole checkpoint in memory, for training or scoring on the CPU.
    pub fn on_host(&self) -> Result<(Model, Weights)> {
        let mut model = Model::new(self.config.clone());
        if let Some(base) = &self.base {
            model = model.adapted(base.adapter.clone(), base.on_host()?);
        }
        Ok((model, self.weights()?))
    }

    /// The trained weights in memory.
    pub fn weights(&self) -> Result<Weights> {
        Weights::load(&self.trained, &self.masters()?)
    }
}

impl Base {
    /// The frozen weights, read once for all adapters of one base.
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
