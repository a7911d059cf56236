//! Checkpoints where they lie on the disk: mapped, and read a piece at a time.
//!
//! What a large policy is made of passes from here to a device without ever being in memory as a whole; a training on the
//! processor reads all of it at once, through the same.

use std::path::PathBuf;
use std::sync::Arc;

use policy::weights::{ElementType, Weights as Tensors};
use record::failure::{Failure, Result};

use crate::model::{Entry, Layout, Source};
use crate::optimizer::{self, Method};
use crate::weights::join;

/// Prefixes of what the optimiser's file holds of 16-bit weights: lower halves (bf16), or f32 masters (f16).
pub const LOWER: &str = "lower";
/// See [`LOWER`].
pub const MASTER: &str = "master";

/// Published tensors.
pub struct Stored {
    layout: Arc<Layout>,
    tensors: Tensors,
    types: Vec<ElementType>,
}

impl Stored {
    /// The tensors of a layout among those of a checkpoint.
    ///
    /// # Errors
    /// One is missing.
    pub fn new(layout: Arc<Layout>, tensors: Tensors) -> Result<Stored> {
        let types: Result<Vec<ElementType>> =
            layout.entries.iter().map(|entry| Ok(tensors.tensor(&entry.name)?.dtype)).collect();
        Ok(Stored { layout, types: types?, tensors })
    }

    /// Element type of each tensor, in the layout's order.
    pub fn types(&self) -> &[ElementType] {
        &self.types
    }

    /// Whether every tensor is f32.
    pub fn is_single(&self) -> bool {
        self.types.iter().all(|&kind| kind == ElementType::F32)
    }
}

impl Source for Stored {
    fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    fn read(&self, entry: &Entry, from: usize, values: &mut [f32]) -> Result<()> {
        self.tensors.tensor(&entry.name)?.read(from, values)
    }
}

/// The f32 masters of published tensors: these themselves, or with what was saved of 16-bit ones.
pub struct Masters<'a> {
    published: &'a Stored,
    saved: Option<&'a Saved>,
}

impl<'a> Masters<'a> {
    /// Masters of `published`, with what was saved beside it.
    ///
    /// # Errors
    /// There is something, but not all of it.
    pub fn new(published: &'a Stored, saved: Option<&'a Saved>) -> Result<Masters<'a>> {
        if let Some(saved) = saved {
            for (entry, kind) in published.layout.entries.iter().zip(&published.types) {
                match kind {
                    ElementType::BF16 => {
                        saved.check(&format!("{LOWER}.{}", entry.name), entry, ElementType::U16)?
                    }
                    ElementType::F16 => {
                        saved.check(&format!("{MASTER}.{}", entry.name), entry, ElementType::F32)?
                    }
                    _ => {}
                }
            }
        }
        Ok(Masters { published, saved })
    }
}

impl Source for Masters<'_> {
    fn layout(&self) -> &Arc<Layout> {
        &self.published.layout
    }

    fn read(&self, entry: &Entry, from: usize, values: &mut [f32]) -> Result<()> {
        let view = self.published.tensors.tensor(&entry.name)?;
        match (self.saved, view.dtype) {
            (Some(saved), ElementType::F16) => saved.read(&format!("{MASTER}.{}", entry.name), from, values),
            (Some(saved), ElementType::BF16) => {
                view.read(from, values)?;
                let halves =
                    saved.tensors.tensor(&format!("{LOWER}.{}", entry.name))?.bytes.as_chunks::<2>().0;
                for (value, &half) in values.iter_mut().zip(&halves[from..]) {
                    *value = join(*value, u16::from_le_bytes(half));
                }
                Ok(())
            }
            _ => view.read(from, values),
        }
    }
}

/// What an earlier update left in `optimizer.safetensors`.
pub struct Saved {
    tensors: Tensors,
    files: PathBuf,
}

impl Saved {
    /// The tensors beside the version in `files`.
    pub fn new(tensors: Tensors, files: PathBuf) -> Saved {
        Saved { tensors, files }
    }

    /// Whether it has all that an optimiser of this method keeps.
    ///
    /// # Errors
    /// A tensor is missing or has another size.
    pub fn check_moments(&self, method: Method, layout: &Layout) -> Result<()> {
        optimizer::tensors(method, layout)
            .iter()
            .try_for_each(|kept| self.check(&kept.name, &layout.entries[kept.tensor], ElementType::F32))
    }

    /// A tensor's values, from the one of index `from` on.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn read(&self, name: &str, from: usize, values: &mut [f32]) -> Result<()> {
        self.tensors.tensor(name)?.read(from, values)
    }

    fn check(&self, name: &str, entry: &Entry, kind: ElementType) -> Result<()> {
        let found = self.tensors.tensor(name).ok();
        if found.is_some_and(|view| view.dtype == kind && view.shape == entry.shape) {
            return Ok(());
        }
        Err(Failure::data(format!(
            "{}: optimizer.safetensors: no tensor {name:?} of the right size",
            self.files.display()
        ))
        .hint("remove it and trainer_state.json to start with a fresh optimiser"))
    }
}
