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
    /// Values added, by tensor.
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
        let mut bits = std::mem::take(&mut self.bits);
        bits.clear();
        bits.extend(values.iter().map(|&value| self.half.rounded(value)));
        self.add_bits(tensor, from, &bits);
        self.bits = bits;
    }

    /// Adds values by their bits.
    pub fn add_bits(&mut self, tensor: usize, from: usize, bits: &[u16]) {
        if self.added[tensor] == from {
            self.sum.add(tensor, from, bits);
            self.added[tensor] += bits.len();
        }
    }

    /// The checksum, if all weights were published.
    pub fn of_all(&self, layout: &Layout) -> Option<WeightChecksum> {
        (self.sum.values == layout.len() as u64).then_some(self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::config::Config;
    use std::sync::Arc;

    fn formats(kind: ElementType) -> TensorFormats {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
            "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 24, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": true, "torch_dtype": "bfloat16"}"#;
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let layout = Arc::new(Layout::new(&Config::load(folder.path()).unwrap()));
        let types = vec![kind; layout.entries.len()];
        TensorFormats { layout, types }
    }

    #[test]
    fn only_weights_that_are_rounded_alike_are_offered() {
        let (bf16, f16) = (Half::BFloat16, Half::Float16);
        for (half, kind, offered) in [
            (bf16, ElementType::BF16, true),
            (bf16, ElementType::F32, false),
            (bf16, ElementType::F16, false),
            (f16, ElementType::BF16, true),
            (f16, ElementType::F32, true),
            (f16, ElementType::F16, true),
        ] {
            assert_eq!(PublishedChecksum::new(half, &formats(kind)).is_some(), offered, "{half:?} {kind:?}");
        }
    }

    #[test]
    fn a_checksum_is_of_all_weights_each_once() {
        let formats = formats(ElementType::BF16);
        let layout = &formats.layout;
        let value = |tensor: usize, i: usize| (tensor as f32 - 3.0) * (i as f32 + 1.0);
        let [mut values, mut bits] =
            [(); 2].map(|()| PublishedChecksum::new(Half::BFloat16, &formats).unwrap());
        for (tensor, entry) in layout.entries.iter().enumerate() {
            assert_eq!(values.of_all(layout), None);
            let all: Vec<f32> = (0..entry.range.len()).map(|i| value(tensor, i)).collect();
            for (piece, part) in all.chunks(8).enumerate() {
                values.add(tensor, 8 * piece, part);
            }
            // A tied head is stored, too.
            values.add(tensor, 0, &all);
            let rounded: Vec<u16> = all.iter().map(|&value| half::bf16::from_f32(value).to_bits()).collect();
            bits.add_bits(tensor, 0, &rounded);
        }
        let found = values.of_all(layout).unwrap();
        assert_eq!((found.values, Some(found)), (layout.len() as u64, bits.of_all(layout)));
    }
}
