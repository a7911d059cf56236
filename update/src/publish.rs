//! Publishes a learner's weights as the next version of its policy, read from the learner a piece at a time.
//!
//! Writing a version atomically is in [`policy::publish`].

use std::cell::RefCell;
use std::collections::BTreeMap;

use policy::directory::{Policy, Version};
use policy::publish::{Data, NewTensor, NewVersion, PIECE, Read, publish, publish_same};
use policy::retention::Retention;
use policy::training_state::save_state;
use policy::weights::ElementType;
use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use crate::checkpoint::TrainerState;
use crate::learner::Learner;
use crate::model::{Entry, Layout};
use crate::optimizer::shares::RankShare;
use crate::optimizer::{self, Method, Moment, StateKind};
use crate::ranks::{Checksum, Communicator};
use crate::weights::{OptimizerTensors, TensorFormats, completion, lower_half, published};

/// How a tensor's content is read.
enum Content<'a> {
    Values(Box<Read<'a, f32>>),
    Bits(Box<Read<'a, u16>>),
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
            Content::Bits(read) => Data::Bits(read.as_ref()),
            Content::Halves(read) => Data::LowerHalves(read.as_ref()),
        };
        NewTensor { name: &self.name, shape: &self.entry.shape, data }
    }
}

/// Reads one kind of state of a tensor, by its number in the layout, from a value on.
pub type ReadState<'a> = dyn Fn(StateKind, usize, usize, &mut [f32]) -> Result<()> + 'a;

/// Reads the bits of a tensor's rounded weights, by its number in the layout, from a value on.
pub type ReadBits<'a> = dyn Fn(usize, usize, &mut [u16]) -> Result<()> + 'a;

/// The kinds of state of which a rank has its share only.
const KINDS: [StateKind; 3] =
    [StateKind::MasterWeight, StateKind::Moment(Moment::First), StateKind::Moment(Moment::Second)];

/// A learner's complete state, read a piece at a time.
#[derive(Clone, Copy)]
pub struct LearnerState<'a> {
    pub read: &'a ReadState<'a>,
    /// The optimizer whose moments it has.
    pub method: Method,
    /// The weights as bf16 files have them, which every rank has.
    pub bf16: Option<&'a ReadBits<'a>>,
}

/// Runs `write` on rank 0 with the complete state of the learner. Every rank has the state of its share only; the other ranks
/// send theirs and return `None`.
///
/// # Errors
/// Those of `write`, or an interruption.
pub fn gather_state_on_rank0<T>(
    ranks: &dyn Communicator,
    layout: &Layout,
    learner: &mut dyn Learner,
    method: Method,
    write: impl FnOnce(&LearnerState) -> Result<T>,
) -> Result<Option<T>> {
    let shares: Vec<RankShare> = {
        let shares = learner.shares(ranks.count());
        (0..ranks.count()).map(|rank| shares.of_rank(rank)).collect()
    };
    let learner = RefCell::new(learner);
    // A piece of state: its kind (0 for none); tensor, first value, values.
    let ask = |wanted: [u64; 4]| {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(bytemuck::cast_slice(&wanted));
        ranks.broadcast(0, &mut bytes)?;
        Ok::<[u64; 4], Failure>(bytemuck::cast(bytes))
    };
    let hand_out = |kind: StateKind, tensor: usize, from: usize, all: &mut [f32], length: usize| {
        let start = layout.entries[tensor].range.start;
        let wanted = start + from..start + from + length;
        // A tensor is in one region, whose ranges are in the order of ranks.
        let of =
            |share: &RankShare| share.within(&wanted).first().map_or(start..start, |(own, _)| own.clone());
        let own = of(&shares[ranks.rank()]);
        let mut values = vec![0.0f32; own.len()];
        if !own.is_empty() {
            learner.borrow_mut().read(kind, tensor, own.start - start, &mut values)?;
        }
        let lengths: Vec<usize> = shares.iter().map(|share| of(share).len() * size_of::<f32>()).collect();
        ranks.gather_on_first(bytemuck::cast_slice(&values), &lengths, bytemuck::cast_slice_mut(all));
        Ok::<(), Failure>(())
    };
    if ranks.rank() > 0 {
        loop {
            let [kind, tensor, from, length] = ask([0; 4])?.map(|word| word as usize);
            match kind {
                0 => return Ok(None),
                kind => hand_out(KINDS[kind - 1], tensor, from, &mut [], length)?,
            }
        }
    }
    let read = |kind: StateKind, tensor: usize, from: usize, values: &mut [f32]| {
        let number = KINDS.iter().position(|other| *other == kind).filter(|_| ranks.count() > 1);
        let Some(number) = number else {
            return learner.borrow_mut().read(kind, tensor, from, values);
        };
        let length = values.len();
        ask([number as u64 + 1, tensor as u64, from as u64, length as u64])?;
        hand_out(kind, tensor, from, values, length)
    };
    let bits =
        |tensor: usize, from: usize, bits: &mut [u16]| learner.borrow_mut().read_bf16(tensor, from, bits);
    let bf16 = learner.borrow().has_bf16().then_some(&bits as &ReadBits);
    let written = write(&LearnerState { read: &read, method, bf16 })?;
    ask([0; 4])?;
    Ok(Some(written))
}

/// The content of a version that is new after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Weights and the optimizer's state.
    All,
    /// The optimizer's state: it is fresh, or has another loss scale. No step was taken.
    State,
    /// Nothing: no step was taken.
    Nothing,
}

/// A version to publish.
pub struct NextVersion<'a> {
    /// The trained tensors.
    pub formats: &'a TensorFormats,
    pub state: &'a LearnerState<'a>,
    /// Digest of the input that made it.
    pub input: &'a str,
    pub change: Change,
    /// Saved with the optimizer's state; without it neither is.
    pub trainer: Option<&'a TrainerState>,
}

/// Publishes the version after `from`. Unchanged files are not written again.
pub fn publish_next(from: &Policy, next: &NextVersion, retention: &Retention) -> Result<Version> {
    let NextVersion { formats, state, input, change, trainer } = *next;
    let (TensorFormats { layout, types }, read) = (formats, state.read);
    let weights: Vec<Tensor> = layout
        .entries
        .iter()
        .zip(types)
        .enumerate()
        .map(|(tensor, (entry, &kind))| {
            let name = entry.name.clone();
            if let Some(read) = state.bf16.filter(|_| kind == ElementType::BF16) {
                let bits = move |from: usize, bits: &mut [u16]| read(tensor, from, bits);
                return Tensor { name, entry, content: Content::Bits(Box::new(bits)) };
            }
            let rounded = move |from: usize, values: &mut [f32]| {
                read(StateKind::MasterWeight, tensor, from, values)?;
                if kind != ElementType::F32 {
                    values.iter_mut().for_each(|value| *value = published(*value, kind));
                }
                Ok(())
            };
            Tensor { name, entry, content: Content::Values(Box::new(rounded)) }
        })
        .collect();
    let optimizer = match trainer {
        Some(_) if change != Change::Nothing => optimizer_tensors(formats, state),
        _ => Vec::new(),
    };
    let notes = trainer.map(notes).transpose()?;
    let weights = if change == Change::All { weights } else { Vec::new() };
    let (tensors, optimizer): (Vec<NewTensor>, Vec<NewTensor>) =
        (weights.iter().map(Tensor::view).collect(), optimizer.iter().map(Tensor::view).collect());
    let next = NewVersion { input, tensors: &tensors, optimizer: &optimizer, trainer_state: notes.as_ref() };
    if change == Change::All { publish(from, &next, retention) } else { publish_same(from, &next, retention) }
}

/// Saves a learner's optimizer state with its weights, which were published without it.
pub fn save(
    policy: &Policy,
    formats: &TensorFormats,
    state: &LearnerState,
    trainer: &TrainerState,
) -> Result<()> {
    let optimizer = optimizer_tensors(formats, state);
    save_state(policy, &optimizer.iter().map(Tensor::view).collect::<Vec<_>>(), &notes(trainer)?)
}

/// A learner's optimizer state in memory, in place of [`save`]; `None` without a state.
pub fn in_memory(formats: &TensorFormats, state: &LearnerState) -> Result<Option<OptimizerTensors>> {
    let (mut values, mut halves) = (BTreeMap::new(), BTreeMap::new());
    for Tensor { name, entry, content } in optimizer_tensors(formats, state) {
        match content {
            Content::Values(read) => values.insert(name, pieces(entry, &*read)?).map(drop),
            Content::Bits(read) | Content::Halves(read) => {
                halves.insert(name, pieces(entry, &*read)?).map(drop)
            }
        };
    }
    let is_empty = values.is_empty() && halves.is_empty();
    Ok((!is_empty).then_some(OptimizerTensors::InMemory { values, halves }))
}

/// A whole tensor, read piece by piece.
fn pieces<T: Clone + Default>(entry: &Entry, read: &Read<T>) -> Result<Vec<T>> {
    let mut all = vec![T::default(); entry.range.len()];
    for (piece, values) in all.chunks_mut(PIECE).enumerate() {
        read(piece * PIECE, values)?;
    }
    Ok(all)
}

/// The optimizer's moments, and what completes the published values to the master weights.
fn optimizer_tensors<'a>(formats: &'a TensorFormats, state: &LearnerState<'a>) -> Vec<Tensor<'a>> {
    let LearnerState { read, method, .. } = *state;
    let (layout, types): (&Layout, &[ElementType]) = (&formats.layout, &formats.types);
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

/// Digest of a learner's weights, and of what else ranks must agree on. Other state is on one rank only.
pub fn digest(layout: &Layout, learner: &mut dyn Learner, input: &str) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(input.as_bytes());
    hasher.update(&weight_checksum(layout, learner)?.to_le_bytes());
    Ok(hasher.finalize())
}

/// A checksum of a learner's weights, by which ranks on the same kind of hardware compare them.
pub fn weight_checksum(layout: &Layout, learner: &mut dyn Learner) -> Result<u64> {
    if let Some(sum) = learner.device_checksum()? {
        return Ok(sum);
    }
    let mut checksum = Checksum::default();
    let mut values = vec![0.0f32; PIECE];
    for (tensor, entry) in layout.entries.iter().enumerate() {
        let length = entry.range.len();
        for from in (0..length).step_by(PIECE) {
            let piece = &mut values[..PIECE.min(length - from)];
            learner.read(StateKind::Weight, tensor, from, piece)?;
            checksum.add(piece);
        }
    }
    Ok(checksum.sum)
}

fn notes(state: &TrainerState) -> Result<Map<String, Value>> {
    match serde_json::to_value(state) {
        Ok(Value::Object(notes)) => Ok(notes),
        _ => Err(Failure::work("the trainer's state has no JSON form")),
    }
}
