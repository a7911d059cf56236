//! The next version of a policy, out of a learner: asked for piece by piece as it is written, wherever it lies.
//!
//! How a version gets onto the disk whole is [`policy::publish`]'s business.

use std::cell::RefCell;

use policy::directory::{Policy, Version};
use policy::publish::{Data, NewTensor, NewVersion, Read, Retention, publish};
use policy::weights::ElementType;
use record::failure::{Failure, Result};
use serde_json::Value;

use crate::checkpoint::{Checkpoint, TrainerState};
use crate::learner::{Held, Learner};
use crate::model::{Entry, Source};
use crate::optimizer::{self, Method};
use crate::stored::{LOWER, MASTER};
use crate::weights::{lower_half, published};

/// How a tensor is asked for.
enum Asked<'a> {
    Values(Box<Read<'a, f32>>),
    Halves(Box<Read<'a, u16>>),
}

/// A tensor to write, and how it is asked for.
struct Tensor<'a> {
    name: String,
    entry: &'a Entry,
    asked: Asked<'a>,
}

impl Tensor<'_> {
    fn view(&self) -> NewTensor<'_> {
        let data = match &self.asked {
            Asked::Values(read) => Data::Pieces(read.as_ref()),
            Asked::Halves(read) => Data::LowerHalves(read.as_ref()),
        };
        NewTensor { name: &self.name, shape: &self.entry.shape, data }
    }
}

/// Publishes a learner's weights and the state of its optimiser as the version after `from`, which it began as
/// `checkpoint`.
///
/// # Errors
/// The device's, or the disk's.
pub fn next_version(
    (from, checkpoint): (&Policy, &Checkpoint),
    input: &str,
    (learner, method): (&mut dyn Learner, Method),
    state: &TrainerState,
    keep: usize,
) -> Result<Version> {
    let learner = RefCell::new(learner);
    let read = |held: Held, tensor: usize, from: usize, values: &mut [f32]| {
        learner.borrow_mut().read(held, tensor, from, values)
    };
    let read = &read;
    let (layout, types) = (checkpoint.trained.layout(), checkpoint.trained.types());
    let whole = |name: String, tensor: usize, held: Held| Tensor {
        name,
        entry: &layout.entries[tensor],
        asked: Asked::Values(Box::new(move |from, values| read(held, tensor, from, values))),
    };

    let weights: Vec<Tensor> = layout
        .entries
        .iter()
        .zip(types)
        .enumerate()
        .map(|(tensor, (entry, &kind))| {
            let rounded = move |from: usize, values: &mut [f32]| {
                read(Held::Master, tensor, from, values)?;
                if kind != ElementType::F32 {
                    values.iter_mut().for_each(|value| *value = published(*value, kind));
                }
                Ok(())
            };
            Tensor { name: entry.name.clone(), entry, asked: Asked::Values(Box::new(rounded)) }
        })
        .collect();
    let mut beside: Vec<Tensor> = optimizer::tensors(method, layout)
        .into_iter()
        .map(|kept| whole(kept.name, kept.tensor, Held::Moment(kept.moment)))
        .collect();
    // What has to be kept of the masters so that they can be had again.
    for (tensor, (entry, kind)) in layout.entries.iter().zip(types).enumerate() {
        match kind {
            ElementType::BF16 => {
                let halves = move |from: usize, halves: &mut [u16]| {
                    let mut values = vec![0.0; halves.len()];
                    read(Held::Master, tensor, from, &mut values)?;
                    halves.iter_mut().zip(values).for_each(|(half, value)| *half = lower_half(value));
                    Ok(())
                };
                let name = format!("{LOWER}.{}", entry.name);
                beside.push(Tensor { name, entry, asked: Asked::Halves(Box::new(halves)) });
            }
            ElementType::F16 => beside.push(whole(format!("{MASTER}.{}", entry.name), tensor, Held::Master)),
            _ => {}
        }
    }

    let Ok(Value::Object(notes)) = serde_json::to_value(state) else {
        return Err(Failure::work("the trainer's state cannot be written as JSON"));
    };
    let (tensors, optimizer): (Vec<NewTensor>, Vec<NewTensor>) =
        (weights.iter().map(Tensor::view).collect(), beside.iter().map(Tensor::view).collect());
    let next = NewVersion { input, tensors: &tensors, optimizer: &optimizer, trainer_state: &notes };
    // The version that a resumed run would start from, until the run has taken note of the new one.
    let pinned = [from.version.clone()];
    publish(from, &next, &Retention { keep, pinned: &pinned })
}
