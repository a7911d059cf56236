//! A policy between two updates of a resident call (`--resident`), as a state machine:
//!
//! ```text
//! Unloaded ── train ──> Published ── synchronize ──> Durable ── save ──> Saved
//!     ^                                                 │                  │
//!     └──────────── take, when the next update begins ──┴──────────────────┘
//! ```
//!
//! A device's memory belongs to the next rollout, so there only the optimizer's state stays, in host memory.

use std::path::PathBuf;
use std::time::Instant;

use policy::directory::{Policy, Version};
use policy::publish::synchronize;
use policy::retention::{Retention, retire};
use record::failure::Result;

use crate::checkpoint::{Checkpoint, TrainerState};
use crate::learner::Learner;
use crate::optimizer::Method;
use crate::overlap::Overlap;
use crate::publish::{self, LearnerState, gather_state_on_rank0};
use crate::ranks::Communicator;
use crate::samples::Samples;
use crate::settings::TrainingConfig;
use crate::weights::TensorFormats;

/// A policy of a resident call.
#[derive(Default)]
pub enum ResidentPolicy {
    /// Not in memory: an update reads the version that its samples name.
    #[default]
    Unloaded,
    /// Its version has been written; the disk may not have it yet, and older versions are still there.
    Published {
        loaded: LoadedPolicy,
        /// On rank 0, which publishes.
        superseded: Option<SupersededVersions>,
        pending: PendingSave,
    },
    /// Its version is on disk, without the training state.
    Durable { loaded: LoadedPolicy, pending: PendingSave },
    /// Its version is on disk with the training state.
    Saved { loaded: LoadedPolicy },
}

/// Weights and moments in memory.
pub struct LoadedPolicy {
    /// The version that the weights are.
    pub version: Version,
    pub state: LoadedState,
    /// The newest version that is on disk with its training state.
    pub last_saved: Version,
    /// Size of the model's vocabulary.
    pub vocabulary: usize,
    /// The part of the next update that is done already.
    pub overlap: Overlap,
}

/// Where the weights and moments of a loaded policy are.
pub enum LoadedState {
    Learner(Box<dyn Learner>),
    /// The weights in the version's files, the optimizer's state in host memory.
    Checkpoint(Box<Checkpoint>),
}

/// Older versions, to be pruned once the new one is on disk.
pub struct SupersededVersions {
    /// The policy's directory.
    pub root: PathBuf,
    /// The step of the version before.
    pub from: u64,
    /// Versions that stay by number.
    pub keep: usize,
    /// Versions that stay whatever their number.
    pub pinned: [Version; 2],
}

impl SupersededVersions {
    /// Removes the versions that do not stay, now that `newest` is on disk.
    pub fn retire(self, newest: &Version) -> Result<()> {
        retire(&self.root, self.from, newest, &Retention { keep: self.keep, pinned: &self.pinned })
    }
}

/// A training state that is to be saved with its version.
pub struct PendingSave {
    /// The policy's directory.
    pub directory: PathBuf,
    /// The trained tensors.
    pub formats: TensorFormats,
    pub method: Method,
    pub trainer: TrainerState,
}

impl ResidentPolicy {
    fn loaded_mut(&mut self) -> Option<&mut LoadedPolicy> {
        match self {
            Self::Unloaded => None,
            Self::Published { loaded, .. } | Self::Durable { loaded, .. } | Self::Saved { loaded } => {
                Some(loaded)
            }
        }
    }

    /// The version in memory.
    pub fn version(&self) -> Option<&Version> {
        match self {
            Self::Unloaded => None,
            Self::Published { loaded, .. } | Self::Durable { loaded, .. } | Self::Saved { loaded } => {
                Some(&loaded.version)
            }
        }
    }

    /// Hands out the weights and moments if they are of `version`; another version is dropped.
    pub fn take(&mut self, version: &Version) -> Option<LoadedPolicy> {
        let loaded = match std::mem::take(self) {
            Self::Unloaded => return None,
            Self::Published { loaded, .. } | Self::Durable { loaded, .. } | Self::Saved { loaded } => loaded,
        };
        Some(loaded).filter(|loaded| loaded.version == *version)
    }

    /// Begins the next update with the samples so far, if this version made them.
    pub fn begin(&mut self, training: &TrainingConfig, samples: &Samples) -> Result<()> {
        let Some(LoadedPolicy { version, state: LoadedState::Learner(learner), vocabulary, overlap, .. }) =
            self.loaded_mut()
        else {
            return Ok(());
        };
        let is_own = |(sampled, _): &(String, String)| *sampled == version.to_string();
        if samples.version.as_ref().is_some_and(is_own) && (samples.largest_id as usize) < *vocabulary {
            overlap.advance(training, samples, learner.as_mut())?;
        }
        Ok(())
    }

    /// The last sample arrived `at` this time: work after it overlaps with nothing.
    pub fn end_overlap(&mut self, at: Instant) {
        if let Some(loaded) = self.loaded_mut() {
            loaded.overlap.end(at);
        }
    }

    /// Waits until a published version is on disk, then removes the versions that it supersedes.
    pub fn synchronize(&mut self) -> Result<()> {
        *self = match std::mem::take(self) {
            Self::Published { loaded, superseded, pending } => {
                if let Some(superseded) = superseded {
                    synchronize(&superseded.root, &loaded.version)?;
                    superseded.retire(&loaded.version)?;
                }
                Self::Durable { loaded, pending }
            }
            settled => settled,
        };
        Ok(())
    }

    /// Saves the training state of a version that is on disk without it.
    pub fn save(&mut self, ranks: &dyn Communicator) -> Result<()> {
        self.synchronize()?;
        *self = match std::mem::take(self) {
            Self::Durable { mut loaded, pending } => {
                pending.save(ranks, &mut loaded)?;
                loaded.last_saved = loaded.version.clone();
                Self::Saved { loaded }
            }
            settled => settled,
        };
        Ok(())
    }
}

impl PendingSave {
    fn save(self, ranks: &dyn Communicator, loaded: &mut LoadedPolicy) -> Result<()> {
        let PendingSave { directory, formats, method, trainer } = self;
        let version = loaded.version.to_string();
        let save = |state: &LearnerState| {
            let policy = Policy::open_version(&directory, &version)?;
            publish::save(&policy, &formats, state, &trainer)
        };
        match &mut loaded.state {
            LoadedState::Learner(learner) => {
                gather_state_on_rank0(ranks, &formats.layout, learner.as_mut(), method, save).map(drop)
            }
            LoadedState::Checkpoint(checkpoint) => {
                let read = |kind, tensor, from, values: &mut [f32]| {
                    checkpoint.read(method, kind, tensor, from, values)
                };
                save(&LearnerState { read: &read, method, bf16: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::saved_state;
    use crate::ranks::SingleProcess;
    use policy::config::Config;
    use policy::initial;
    use serde_json::json;
    use std::fs;

    /// A policy that has just been published, and its version.
    fn published(folder: &std::path::Path) -> (Policy, ResidentPolicy) {
        let config = json!({
            "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 600,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "hidden_act": "silu",
            "attention_bias": false, "tie_word_embeddings": true, "torch_dtype": "float32",
        });
        let file = folder.join("config.json");
        fs::write(&file, config.to_string()).unwrap();
        let policy = initial::from_config(&folder.join("p"), &file, 1).unwrap();
        let config = Config::load(policy.model()).unwrap();
        let checkpoint = Checkpoint::with(&policy, &config, None).unwrap();
        let formats = checkpoint.trained.formats().clone();
        let trainer = TrainerState {
            optimizer: "sgd".to_owned(),
            objective: "clip".to_owned(),
            optimizer_steps: 3,
            loss_scale: None,
            settings: serde_json::Map::new(),
            metrics: "{}".to_owned(),
        };
        let loaded = LoadedPolicy {
            version: policy.version.clone(),
            state: LoadedState::Checkpoint(Box::new(checkpoint)),
            last_saved: "7:01234567".parse().unwrap(),
            vocabulary: config.vocab_size,
            overlap: Overlap::default(),
        };
        let pending = PendingSave { directory: policy.root.clone(), formats, method: Method::Sgd, trainer };
        (policy, ResidentPolicy::Published { loaded, superseded: None, pending })
    }

    #[test]
    fn a_version_is_published_then_durable_then_saved_and_then_trained_on() {
        let folder = tempfile::tempdir().unwrap();
        let (policy, mut resident) = published(folder.path());
        let steps = || saved_state(&policy).unwrap().map(|(_, state)| state.optimizer_steps);
        resident.synchronize().unwrap();
        assert!(matches!(&resident, ResidentPolicy::Durable { loaded, .. } if loaded.last_saved.step == 7));
        assert_eq!(steps(), None);
        resident.save(&SingleProcess).unwrap();
        assert!(matches!(&resident, ResidentPolicy::Saved { loaded } if loaded.last_saved == policy.version));
        assert_eq!(steps(), Some(3));
        // A step without samples changes nothing.
        resident.synchronize().unwrap();
        resident.save(&SingleProcess).unwrap();
        assert_eq!(resident.version(), Some(&policy.version));
        assert!(resident.take(&policy.version).is_some());
        assert!(matches!(resident, ResidentPolicy::Unloaded) && resident.take(&policy.version).is_none());
    }

    #[test]
    fn a_version_is_on_disk_before_its_state_is_saved_and_another_is_not_trained_on() {
        let folder = tempfile::tempdir().unwrap();
        let (policy, mut resident) = published(folder.path());
        let root = policy.root.clone();
        let ResidentPolicy::Published { superseded, .. } = &mut resident else { unreachable!() };
        let pinned = [policy.version.clone(), policy.version.clone()];
        *superseded = Some(SupersededVersions { root: root.join("absent"), from: 0, keep: 1, pinned });
        // The version cannot be synchronized, so nothing is saved either.
        assert!(resident.save(&SingleProcess).is_err());
        assert!(saved_state(&policy).unwrap().is_none());

        let other = tempfile::tempdir().unwrap();
        let (_, mut resident) = published(other.path());
        assert!(resident.take(&"1:89abcdef".parse().unwrap()).is_none());
        assert!(matches!(resident, ResidentPolicy::Unloaded));
    }
}
