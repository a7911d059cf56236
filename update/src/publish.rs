//! Publishes a learner's weights as the next version of its policy, read from the learner a piece at a time.
//!
//! Writing a version atomically is in [`policy::publish`].

use std::cell::RefCell;

use policy::directory::{Policy, Version};
use policy::publish::{
    Data, NewTensor, NewVersion, PIECE, Read, Retention, publish, publish_same, save_state,
};
use policy::weights::ElementType;
use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use crate::checkpoint::{Checkpoint, TrainerState};
use crate::learner::{Learner, StateKind};
use crate::model::{Entry, Layout, Source};
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

/// Reads a learner's state of a tensor from a value on.
type ReadState<'a> = dyn Fn(StateKind, usize, usize, &mut [f32]) -> Result<()> + 'a;

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

/// Publishes a learner's weights, and its optimizer state if there is a trainer state, as the version after `from`, from
/// which it started as `checkpoint`. What has not changed is not written again.
///
/// # Errors
/// The device's, or the disk's.
pub fn next_version(
    (from, checkpoint): (&Policy, &Checkpoint),
    (input, change): (&str, Change),
    (learner, method): (&mut dyn Learner, Method),
    state: Option<&TrainerState>,
    retention: &Retention,
) -> Result<Version> {
    let learner = RefCell::new(learner);
    let read: &ReadState =
        &|kind, tensor, from, values| learner.borrow_mut().read(kind, tensor, from, values);
    let (layout, types) = (checkpoint.trained.layout(), checkpoint.trained.types());
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
    let optimizer = match state {
        Some(_) if change != Change::Nothing => optimizer_tensors(read, layout, types, method),
        _ => Vec::new(),
    };
    let notes = state.map(notes).transpose()?;
    let weights = if change == Change::All { weights } else { Vec::new() };
    let (tensors, optimizer): (Vec<NewTensor>, Vec<NewTensor>) =
        (weights.iter().map(Tensor::view).collect(), optimizer.iter().map(Tensor::view).collect());
    let next = NewVersion { input, tensors: &tensors, optimizer: &optimizer, trainer_state: notes.as_ref() };
    if change == Change::All { publish(from, &next, retention) } else { publish_same(from, &next, retention) }
}

/// Saves a learner's optimizer state beside its weights, which were published without.
///
/// # Errors
/// The disk's.
pub fn save(
    policy: &Policy,
    (layout, types): (&Layout, &[ElementType]),
    (learner, method): (&mut dyn Learner, Method),
    state: &TrainerState,
) -> Result<()> {
    let learner = RefCell::new(learner);
    let read: &ReadState =
        &|kind, tensor, from, values| learner.borrow_mut().read(kind, tensor, from, values);
    let optimizer = optimizer_tensors(read, layout, types, method);
    save_state(policy, &optimizer.iter().map(Tensor::view).collect::<Vec<_>>(), &notes(state)?)
}

/// The optimizer's moments, and what completes the published values to the master weights.
fn optimizer_tensors<'a>(
    read: &'a ReadState<'a>,
    layout: &'a Layout,
    types: &[ElementType],
    method: Method,
) -> Vec<Tensor<'a>> {
    let whole = |name: String, tensor: usize, kind: StateKind| Tensor {
        name,
        entry: &layout.entries[tensor],
        content: Content::Values(Box::new(move |from, values| read(kind, tensor, from, values))),
    };
    let mut tensors: Vec<Tensor> = optimizer::tensors(method, layout)
        .into_iter()
        .map(|kept| whole(kept.name, kept.tensor, StateKind::Moment(kept.moment)))
        .collect();
    for (tensor, (entry, &kind)) in layout.entries.iter().zip(types).enumerate() {
        let Some((name, kind)) = completion(&entry.name, kind) else { continue };
        let halves = move |from: usize, halves: &mut [u16]| {
            let mut values = vec![0.0; halves.len()];
            read(StateKind::MasterWeight, tensor, from, &mut values)?;
            halves.iter_mut().zip(values).for_each(|(half, value)| *half = lower_half(value));
            Ok(())
        };
        tensors.push(match kind {
            ElementType::F32 => whole(name, tensor, StateKind::MasterWeight),
            _ => Tensor { name, entry, content: Content::Halves(Box::new(halves)) },
        });
    }
    tensors
}

/// Digest of a learner's master weights and moments.
///
/// # Errors
/// The device's.
pub fn digest(layout: &Layout, learner: &mut dyn Learner, method: Method) -> Result<blake3::Hash> {
    let weights = (0..layout.entries.len()).map(|tensor| (StateKind::MasterWeight, tensor));
    let moments = optimizer::tensors(method, layout);
    let moments = moments.iter().map(|kept| (StateKind::Moment(kept.moment), kept.tensor));
    let mut hasher = blake3::Hasher::new();
    let mut values = vec![0.0f32; PIECE];
    for (kind, tensor) in weights.chain(moments) {
        let length = layout.entries[tensor].range.len();
        for from in (0..length).step_by(PIECE) {
            let piece = &mut values[..PIECE.min(length - from)];
            learner.read(kind, tensor, from, piece)?;
            hasher.update(bytemuck::cast_slice(piece));
        }
    }
    Ok(hasher.finalize())
}

fn notes(state: &TrainerState) -> Result<Map<String, Value>> {
    match serde_json::to_value(state) {
        Ok(Value::Object(notes)) => Ok(notes),
        _ => Err(Failure::work("the trainer's state has no JSON form")),
    }
}
