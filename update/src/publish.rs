//! Publishes a learner's weights as the next version of its policy, read from the learner a piece at a time.
//!
//! Writing a version atomically is in [`policy::publish`].

use std::cell::RefCell;

use policy::directory::{Policy, Version};
use policy::publish::{Data, NewTensor, NewVersion, Read, Retention, publish, publish_same};
use policy::weights::ElementType;
use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use crate::checkpoint::{Checkpoint, TrainerState};
use crate::learner::{Learner, StateKind};
use crate::model::{Entry, Source};
use crate::optimizer::{self, Method};
use crate::weights::{completion, lower_half, published};

/// How a tensor's content is read.
enum Content<'a> {
    Values(Box<Read<'a, f32>>),
    Halves(Box<Read<'a, u16>>),
}

/// A tensor to write.
struct Tensor<'a> {
    name: String,
    entry: &'a Entry,
    content: Content<'a>,
}

impl Tensor<'_> {
    fn view(&self) -> NewTensor<'_> {
        let data = match &self.content {
            Content::Values(read) => Data::Pieces(read.as_ref()),
            Content::Halves(read) => Data::LowerHalves(read.as_ref()),
        };
        NewTensor { name: &self.name, shape: &self.entry.shape, data }
    }
}

fn notes(state: &TrainerState) -> Result<Map<String, Value>> {
    match serde_json::to_value(state) {
        Ok(Value::Object(notes)) => Ok(notes),
        _ => Err(Failure::work("the trainer's state has no JSON form")),
    }
}

/// What of a version's content is new after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Weights and the optimizer's state.
    All,
    /// The optimizer's state, which started fresh: no step was taken.
    State,
    /// Nothing: no step was taken.
    Nothing,
}

/// Publishes a learner's weights and optimizer state as the version after `from`, from which it started as `checkpoint`. What
/// has not changed is not written again.
///
/// # Errors
/// The device's, or the disk's.
pub fn next_version(
    (from, checkpoint): (&Policy, &Checkpoint),
    (input, change): (&str, Change),
    (learner, method): (&mut dyn Learner, Method),
    state: &TrainerState,
    keep: usize,
) -> Result<Version> {
    let notes = notes(state)?;
    let learner = RefCell::new(learner);
    let read = |kind: StateKind, tensor: usize, from: usize, values: &mut [f32]| {
        learner.borrow_mut().read(kind, tensor, from, values)
    };
    let read = &read;
    let (layout, types) = (checkpoint.trained.layout(), checkpoint.trained.types());
    let whole = |name: String, tensor: usize, kind: StateKind| Tensor {
        name,
        entry: &layout.entries[tensor],
        content: Content::Values(Box::new(move |from, values| read(kind, tensor, from, values))),
    };

    let weights: Vec<Tensor> = layout
        .entries
        .iter()
        .zip(types)
        .enumerate()
        .map(|(tensor, (entry, &kind))| {
            let rounded = move |from: usize, values: &mut [f32]| {
                read(StateKind::MasterWeight, tensor, from, values)?;
                if kind != ElementType::F32 {
                    values.iter_mut().for_each(|value| *value = published(*value, kind));
                }
                Ok(())
            };
            Tensor { name: entry.name.clone(), entry, content: Content::Values(Box::new(rounded)) }
        })
        .collect();
    let mut optimizer: Vec<Tensor> = optimizer::tensors(method, layout)
        .into_iter()
        .map(|kept| whole(kept.name, kept.tensor, StateKind::Moment(kept.moment)))
        .collect();
    // What completes the published values to the master weights.
    for (tensor, (entry, &kind)) in layout.entries.iter().zip(types).enumerate() {
        let Some((name, kind)) = completion(&entry.name, kind) else { continue };
        let halves = move |from: usize, halves: &mut [u16]| {
            let mut values = vec![0.0; halves.len()];
            read(StateKind::MasterWeight, tensor, from, &mut values)?;
            halves.iter_mut().zip(values).for_each(|(half, value)| *half = lower_half(value));
            Ok(())
        };
        optimizer.push(match kind {
            ElementType::F32 => whole(name, tensor, StateKind::MasterWeight),
            _ => Tensor { name, entry, content: Content::Halves(Box::new(halves)) },
        });
    }

    let tensors = if change == Change::All { weights.iter().map(Tensor::view).collect() } else { Vec::new() };
    let optimizer =
        if change == Change::Nothing { Vec::new() } else { optimizer.iter().map(Tensor::view).collect() };
    let next = NewVersion { input, tensors: &tensors, optimizer: &optimizer, trainer_state: &notes };
    // A resumed run would start from this version until the run has recorded the new one.
    let pinned = [from.version.clone()];
    let retention = Retention { keep, pinned: &pinned };
    if change == Change::All {
        publish(from, &next, &retention)
    } else {
        publish_same(from, &next, &retention)
    }
}
