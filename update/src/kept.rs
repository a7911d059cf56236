//! A policy in memory from one update to the next (`--resident`): its learner, and unfinished work on the
//! disk. A device's memory belongs to the next rollout, so there only the optimizer's state stays, in host
//! memory.

use std::path::PathBuf;
use std::sync::Arc;

use policy::directory::{Policy, Version};
use policy::publish::synchronize;
use policy::retention::{Retention, retire};
use policy::weights::ElementType;
use record::failure::Result;

use crate::checkpoint::{Checkpoint, TrainerState};
use crate::learner::Learner;
use crate::model::Layout;
use crate::optimizer::Method;
use crate::overlap::Overlap;
use crate::publish;
use crate::ranks::Ranks;
use crate::samples::Samples;
use crate::settings::Training;

/// A policy's learner that stays in memory.
pub struct Kept {
    /// The version that its weights are.
    pub version: Version,
    /// Weights and moments.
    pub state: KeptState,
    /// The newest version whose training state is on disk.
    pub saved: Version,
    /// Work to save with the learner's state.
    pub unsaved: Option<Unsaved>,
    /// Tokens that the model knows.
    pub vocabulary: usize,
    /// Versions that it made superfluous.
    pub older: Option<Older>,
    /// Its work on the next update.
    pub overlap: Overlap,
}

/// Where the weights and moments of a policy are.
pub enum KeptState {
    Learner(Box<dyn Learner>),
    /// The weights in the version's files, the optimizer's state in host memory.
    Checkpoint(Box<Checkpoint>),
}

/// Versions of a policy that are kept or not, now that there is a newer one.
pub struct Older {
    /// The policy's directory.
    pub root: PathBuf,
    /// The step of the version before.
    pub from: u64,
    /// How many stay.
    pub keep: usize,
    /// Versions that stay whatever their number.
    pub pinned: [Version; 2],
}

impl Older {
    /// Removes those that are not kept, now that `newest` is on disk.
    ///
    /// # Errors
    /// The disk's.
    pub fn retire(self, newest: &Version) -> Result<()> {
        retire(&self.root, self.from, newest, &Retention { keep: self.keep, pinned: &self.pinned })
    }
}

/// What a learner's state is saved with.
pub struct Unsaved {
    /// The policy's directory.
    pub directory: PathBuf,
    /// The trained tensors.
    pub layout: Arc<Layout>,
    /// Their types on disk.
    pub types: Vec<ElementType>,
    /// The optimizer.
    pub method: Method,
    /// The trainer's state to save with it.
    pub state: TrainerState,
}

impl Kept {
    /// Begins the next update with the samples so far, if this version made them.
    ///
    /// # Errors
    /// The device's, or an interruption.
    pub fn begin(&mut self, training: &Training, samples: &Samples) -> Result<()> {
        let is_own = |(version, _): &(String, String)| *version == self.version.to_string();
        match &mut self.state {
            KeptState::Learner(learner)
                if samples.version.as_ref().is_some_and(is_own)
                    && (samples.largest_id as usize) < self.vocabulary =>
            {
                self.overlap.advance(training, samples, learner.as_mut())
            }
            _ => Ok(()),
        }
    }

    /// Waits until the version, published without training state, is on disk; then removes superseded
    /// versions.
    ///
    /// # Errors
    /// The disk's.
    pub fn retire(&mut self) -> Result<()> {
        let Some(older) = self.older.take() else { return Ok(()) };
        synchronize(&older.root, &self.version)?;
        older.retire(&self.version)
    }

    /// Saves the training state of the version, unless it is saved.
    ///
    /// # Errors
    /// The disk's.
    pub fn save(&mut self, ranks: &dyn Ranks) -> Result<()> {
        let Some(Unsaved { directory, layout, types, method, state }) = self.unsaved.take() else {
            return Ok(());
        };
        let version = self.version.to_string();
        let save = |read: &publish::ReadState| {
            let policy = Policy::open_version(&directory, &version)?;
            publish::save(&policy, (&layout, &types), (read, method), &state)
        };
        match &mut self.state {
            KeptState::Learner(learner) => {
                publish::with_state(ranks, &layout, (learner.as_mut(), method), save)?;
            }
            KeptState::Checkpoint(checkpoint) => {
                save(&|kind, tensor, from, values| checkpoint.read(method, (kind, tensor), from, values))?
            }
        }
        self.saved = self.version.clone();
        Ok(())
    }
}
