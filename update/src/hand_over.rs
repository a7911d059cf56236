//! Offers a new version's weights, on the device where they were trained, to the `rollout` that plays it next (`--resident`).
//!
//! The offer is made when the version is published and all other memory of the device is free, before the `end` line. It ends
//! before the next policy is trained. See [`policy::hand_over`].

use std::cell::RefCell;
use std::collections::BTreeMap;

use policy::directory::Policy;
use policy::hand_over::{self, Offer, OfferedTensor, OfferedWeights, WeightChecksum};
use policy::weights::ElementType;
use record::failure::Result;

use crate::backend::Half;
use crate::hardware::Hardware;
use crate::learner::Learner;
use crate::model::Layout;
use crate::weights::TensorFormats;

/// The weights that wait for `rollout`: the newest of this process.
#[derive(Default)]
pub struct Offers(RefCell<Option<Offer>>);

impl Offers {
    /// Frees the memory of weights that nobody has taken.
    pub fn withdraw(&self) {
        self.0.take();
    }

    /// Frees the learner's memory, except for weights that can be handed over, which it offers.
    ///
    /// # Errors
    /// The device's, or the system's. The version is published all the same.
    pub fn offer(
        &self,
        learner: Box<dyn Learner>,
        layout: &Layout,
        hardware: &Hardware,
        version: &Policy,
        checksum: WeightChecksum,
    ) -> Result<()> {
        let Some(memory) = learner.share_weights()? else { return Ok(()) };
        let tensor = |(number, entry): (usize, &crate::model::Entry)| {
            let start = (entry.range.start * size_of::<u16>()) as u64;
            (entry.name.clone(), OfferedTensor { number, start, length: entry.range.len() })
        };
        let tensors: BTreeMap<String, OfferedTensor> =
            layout.entries.iter().enumerate().map(tensor).collect();
        let (handle, dtype) = (memory.handle().to_owned(), hardware.dtype.name().to_owned());
        let weights = OfferedWeights { handle, dtype, tensors, checksum };
        let offer = hand_over::offer(version, &hardware.kind.identity()?, &weights, memory)?;
        self.0.replace(Some(offer));
        Ok(())
    }
}

/// The checksum of weights while they are published, in the type that the device has.
pub struct PublishedChecksum {
    half: Half,
    /// Of each tensor, the values that were added.
    added: Vec<usize>,
    sum: WeightChecksum,
    bits: Vec<u16>,
}

impl PublishedChecksum {
    /// For tensors of these formats; `None` if the device may round them otherwise than a reader of their files does. A value
    /// half way between two bf16 values is rounded up by `kernels/masters.cu`, and to even by a reader of f32.
    pub fn new(half: Half, formats: &TensorFormats) -> Option<PublishedChecksum> {
        let is_same = half == Half::Float16 || formats.types.iter().all(|&kind| kind == ElementType::BF16);
        let added = vec![0; formats.types.len()];
        is_same.then_some(PublishedChecksum { half, added, sum: WeightChecksum::default(), bits: Vec::new() })
    }

    /// Adds published values of a tensor, from number `from` on. A tensor that is stored twice counts once.
    pub fn add(&mut self, tensor: usize, from: usize, values: &[f32]) {
        if self.added[tensor] == from {
            self.bits.clear();
            self.bits.extend(values.iter().map(|&value| self.half.rounded(value)));
            self.sum.add(tensor, from, &self.bits);
            self.added[tensor] += values.len();
        }
    }

    /// The checksum, if all weights were published.
    pub fn of_all(&self, layout: &Layout) -> Option<WeightChecksum> {
        (self.sum.values == layout.len() as u64).then_some(self.sum)
    }
}
