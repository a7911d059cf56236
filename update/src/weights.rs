//! Weights in training: what the forward pass uses, the f32 master weights that the optimizer moves, and how both are
//! read from disk.
//!
//! For 16-bit checkpoints the two differ. The forward pass must see exactly the published values that were sampled from,
//! or every ratio is off from the start; the optimizer must see f32, or small steps are rounded away. The master weights
//! are saved with the optimizer's state: of bf16 weights the lower halves, which with the published upper halves are the
//! masters to the bit; of f16 weights whole. Tensors are mapped and read a piece at a time, so that a large checkpoint
//! reaches a device without ever being in host memory as a whole.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use policy::weights::{ElementType, Weights as Tensors};
use record::failure::{Failure, Result};

use crate::model::{Entry, Layout, Parameters, Source};
use crate::optimizer::{self, Method};

/// Half of a bf16 rounding step, in the bits of an f32: the one lower half that does not say which way it was rounded.
const TIE: u32 = 0x8000;

/// Weights of one policy in memory.
#[derive(Clone, Debug)]
pub struct Weights {
    forward: Parameters,
    master: MasterParts,
    /// Element type of each tensor on disk, in the layout's order.
    types: Vec<ElementType>,
}

/// What completes the published weights to the f32 master weights.
#[derive(Clone, Debug)]
enum MasterParts {
    /// Nothing: they are the same.
    Same,
    /// The lower halves, where the published values are bf16; unused where they are f32.
    Lower(Vec<u16>),
    /// All of them, where some are f16.
    Whole(Parameters),
}

impl Weights {
    /// The published values of a checkpoint, and its masters.
    pub fn load(published: &CheckpointTensors, masters: &MasterWeights<'_>) -> Result<Weights> {
        let (types, forward) = (published.formats.types.clone(), Parameters::of(published)?);
        let master = if types.contains(&ElementType::F16) {
            MasterParts::Whole(Parameters::of(masters)?)
        } else if types.contains(&ElementType::BF16) {
            let mut lower = vec![0; forward.values.len()];
            let mut values = Vec::new();
            for entry in &published.layout().entries {
                values.resize(entry.range.len(), 0.0);
                masters.read(entry, 0, &mut values)?;
                masters.release();
                let halves = lower[entry.range.clone()].iter_mut().zip(&values);
                halves.for_each(|(half, &value)| *half = lower_half(value));
            }
            MasterParts::Lower(lower)
        } else {
            MasterParts::Same
        };
        Ok(Weights { forward, master, types })
    }

    /// The published values, which the forward pass uses.
    pub fn forward(&self) -> &Parameters {
        &self.forward
    }

    /// Copies master weights of the layout's tensor number `tensor`, from its value `from` on.
    pub fn masters(&self, tensor: usize, from: usize, values: &mut [f32]) {
        let range = self.forward.layout().entries[tensor].range.start + from..;
        let range = range.start..range.start + values.len();
        match &self.master {
            MasterParts::Whole(master) => values.copy_from_slice(&master.values[range]),
            MasterParts::Lower(lower) if self.types[tensor] == ElementType::BF16 => {
                let halves = self.forward.values[range.clone()].iter().zip(&lower[range]);
                values
                    .iter_mut()
                    .zip(halves)
                    .for_each(|(value, (&upper, &lower))| *value = join(upper, lower));
            }
            _ => values.copy_from_slice(&self.forward.values[range]),
        }
    }

    /// Applies `change` to the master weights, then rounds them to the published values.
    pub fn step<T>(&mut self, change: impl FnOnce(&mut Parameters) -> T) -> T {
        let Weights { forward, master, types } = self;
        let layout = forward.layout().clone();
        let tensors = || layout.entries.iter().zip(types.iter());
        match master {
            MasterParts::Same => change(forward),
            MasterParts::Whole(master) => {
                let outcome = change(master);
                for (entry, &kind) in tensors() {
                    let rounded = forward.values[entry.range.clone()].iter_mut();
                    for (rounded, exact) in rounded.zip(&mut master.values[entry.range.clone()]) {
                        *rounded = round(exact, kind);
                    }
                }
                outcome
            }
            // In place: for the time of the step the published values are the masters.
            MasterParts::Lower(lower) => {
                let narrow =
                    || tensors().filter(|&(_, &kind)| kind == ElementType::BF16).map(|(entry, _)| entry);
                for entry in narrow() {
                    let halves = &lower[entry.range.clone()];
                    let values = forward.values[entry.range.clone()].iter_mut();
                    values.zip(halves).for_each(|(value, &half)| *value = join(*value, half));
                }
                let outcome = change(forward);
                for entry in narrow() {
                    let halves = lower[entry.range.clone()].iter_mut();
                    for (value, half) in forward.values[entry.range.clone()].iter_mut().zip(halves) {
                        *half = lower_half(*value);
                        *value = published(*value, ElementType::BF16);
                    }
                }
                outcome
            }
        }
    }
}

/// The nearest value of a type. A master half way between two bf16 values is first moved by one unit in the last place,
/// so that [`join`] can undo the rounding.
fn round(exact: &mut f32, kind: ElementType) -> f32 {
    match kind {
        ElementType::BF16 => {
            if exact.to_bits() & 0xffff == TIE {
                *exact = f32::from_bits(exact.to_bits() + 1);
            }
            half::bf16::from_f32(*exact).to_f32()
        }
        ElementType::F16 => half::f16::from_f32(*exact).to_f32(),
        _ => *exact,
    }
}

/// The published value of a master weight.
pub fn published(mut master: f32, kind: ElementType) -> f32 {
    round(&mut master, kind)
}

/// The lower half of a master weight, saved to complete its published bf16.
pub fn lower_half(mut master: f32) -> u16 {
    round(&mut master, ElementType::BF16);
    master.to_bits() as u16
}

/// The master of a published bf16 value and its lower half.
pub fn join(published: f32, lower: u16) -> f32 {
    let upper = published.to_bits() & 0xffff_0000;
    let upper = if u32::from(lower) > TIE { upper.wrapping_sub(0x1_0000) } else { upper };
    f32::from_bits(upper | u32::from(lower))
}

/// Name and type of the tensor in the optimizer's file that completes a published one to its master weights:
/// the lower halves of bf16, all of f16; `None` for f32.
pub fn completion(published: &str, kind: ElementType) -> Option<(String, ElementType)> {
    match kind {
        ElementType::BF16 => Some((format!("lower.{published}"), ElementType::U16)),
        ElementType::F16 => Some((format!("master.{published}"), ElementType::F32)),
        _ => None,
    }
}

/// The names, shapes and places of tensors, and the type of each on disk, in the layout's order.
#[derive(Clone, Debug)]
pub struct TensorFormats {
    pub layout: Arc<Layout>,
    pub types: Vec<ElementType>,
}

/// The trained tensors of a checkpoint on disk.
pub struct CheckpointTensors {
    formats: TensorFormats,
    tensors: Arc<Tensors>,
}

impl CheckpointTensors {
    /// Selects the tensors of a layout from a checkpoint's.
    pub fn new(layout: Arc<Layout>, tensors: Arc<Tensors>) -> Result<CheckpointTensors> {
        let types: Result<Vec<ElementType>> =
            layout.entries.iter().map(|entry| Ok(tensors.tensor(&entry.name)?.dtype)).collect();
        Ok(CheckpointTensors { formats: TensorFormats { layout, types: types? }, tensors })
    }

    /// The form of the tensors on disk.
    pub fn formats(&self) -> &TensorFormats {
        &self.formats
    }

    /// Returns true if every tensor is f32.
    pub fn is_f32(&self) -> bool {
        self.formats.types.iter().all(|&kind| kind == ElementType::F32)
    }
}

impl Source for CheckpointTensors {
    fn layout(&self) -> &Arc<Layout> {
        &self.formats.layout
    }

    fn read(&self, entry: &Entry, from: usize, values: &mut [f32]) -> Result<()> {
        self.tensors.tensor(&entry.name)?.read(from, values)
    }

    fn is_bf16(&self, entry: &Entry) -> bool {
        self.tensors.tensor(&entry.name).is_ok_and(|view| view.dtype == ElementType::BF16)
    }

    fn release(&self) {
        self.tensors.release();
    }
}

/// The f32 master weights of a checkpoint: the published values, completed by the saved halves of 16-bit
/// ones.
pub struct MasterWeights<'a> {
    published: &'a CheckpointTensors,
    saved: Option<&'a OptimizerTensors>,
}

impl<'a> MasterWeights<'a> {
    /// The master weights of `published`, with the optimizer's tensors of the same version if there are any.
    pub fn new(
        published: &'a CheckpointTensors,
        saved: Option<&'a OptimizerTensors>,
    ) -> Result<MasterWeights<'a>> {
        if let Some(saved) = saved {
            let TensorFormats { layout, types } = &published.formats;
            for (entry, &kind) in layout.entries.iter().zip(types) {
                if let Some((name, kind)) = completion(&entry.name, kind) {
                    saved.check(&name, entry, kind)?;
                }
            }
        }
        Ok(MasterWeights { published, saved })
    }
}

impl Source for MasterWeights<'_> {
    fn layout(&self) -> &Arc<Layout> {
        &self.published.formats.layout
    }

    fn read(&self, entry: &Entry, from: usize, values: &mut [f32]) -> Result<()> {
        let view = self.published.tensors.tensor(&entry.name)?;
        let completion = self.saved.zip(completion(&entry.name, view.dtype));
        match completion {
            Some((saved, (name, ElementType::F32))) => saved.read(&name, from, values),
            Some((saved, (name, _))) => {
                view.read(from, values)?;
                saved.complete(&name, from, values)
            }
            None => view.read(from, values),
        }
    }

    fn is_bf16(&self, entry: &Entry) -> bool {
        self.published.is_bf16(entry)
    }

    fn release(&self) {
        self.published.release();
        self.saved.inspect(|saved| saved.release());
    }
}

/// The tensors of a version's optimizer.
pub enum OptimizerTensors {
    /// In `optimizer.safetensors` of the version.
    Saved {
        /// The mapped file.
        tensors: Tensors,
        /// Where it lies.
        files: PathBuf,
    },
    /// In memory, by name.
    InMemory {
        /// Moments, and master weights of f16 values.
        values: BTreeMap<String, Vec<f32>>,
        /// Lower halves of master weights.
        halves: BTreeMap<String, Vec<u16>>,
    },
}

impl OptimizerTensors {
    /// Checks that all state of an optimizer of this method is there.
    ///
    /// # Errors
    /// A tensor is missing or has another size.
    pub fn check_moments(&self, method: Method, layout: &Layout) -> Result<()> {
        optimizer::tensors(method, layout)
            .iter()
            .try_for_each(|kept| self.check(&kept.name, &layout.entries[kept.tensor], ElementType::F32))
    }

    /// A tensor's values, from number `from` on.
    pub fn read(&self, name: &str, from: usize, values: &mut [f32]) -> Result<()> {
        match self {
            OptimizerTensors::Saved { tensors, .. } => tensors.tensor(name)?.read(from, values)?,
            OptimizerTensors::InMemory { values: all, .. } => {
                values.copy_from_slice(&all.get(name).ok_or_else(|| missing(name))?[from..][..values.len()]);
            }
        }
        self.release();
        Ok(())
    }

    /// Makes master weights of published bf16 values, from number `from` on, and their lower halves.
    fn complete(&self, name: &str, from: usize, values: &mut [f32]) -> Result<()> {
        match self {
            OptimizerTensors::Saved { tensors, .. } => {
                let halves = tensors.tensor(name)?.bytes.as_chunks::<2>().0;
                join_all(values, halves[from..].iter().map(|&half| u16::from_le_bytes(half)));
            }
            OptimizerTensors::InMemory { halves, .. } => {
                let halves = halves.get(name).ok_or_else(|| missing(name))?;
                join_all(values, halves[from..].iter().copied());
            }
        }
        Ok(())
    }

    fn release(&self) {
        if let OptimizerTensors::Saved { tensors, .. } = self {
            tensors.release();
        }
    }

    fn check(&self, name: &str, entry: &Entry, kind: ElementType) -> Result<()> {
        // A state in memory was made for these entries.
        let OptimizerTensors::Saved { tensors, files } = self else { return Ok(()) };
        let found = tensors.tensor(name).ok();
        if found.is_some_and(|view| view.dtype == kind && view.shape == entry.shape) {
            return Ok(());
        }
        Err(Failure::data(format!(
            "{}: optimizer.safetensors: no tensor {name:?} of the right size",
            files.display()
        ))
        .hint("remove it and trainer_state.json to start with a fresh optimizer"))
    }
}

fn join_all(values: &mut [f32], halves: impl Iterator<Item = u16>) {
    values.iter_mut().zip(halves).for_each(|(value, half)| *value = join(*value, half));
}

fn missing(name: &str) -> Failure {
    Failure::work(format!("the optimizer's state in memory has no tensor {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_survives_being_split() {
        let mut bits = 0x3f80_0000u32;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            for candidate in [bits, bits & 0xffff_0000, bits & 0xffff_0000 | TIE, bits | 0xffff] {
                let mut exact = f32::from_bits(candidate);
                if !exact.is_finite() || exact.abs() > 1e30 {
                    continue;
                }
                let published = round(&mut exact, ElementType::BF16);
                assert_eq!(published.to_bits() & 0xffff, 0);
                let joined = join(published, lower_half(exact));
                assert_eq!(joined.to_bits(), exact.to_bits(), "{candidate:#x}");
            }
        }
    }
}
