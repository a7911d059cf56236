//! The weights in training: what the forward pass uses, and beneath it what the optimiser moves.
//!
//! For a checkpoint of 16-bit weights the two differ. The forward pass must see exactly the numbers that were
//! published and sampled from, or every ratio is off from the start; the optimiser must see f32, or steps smaller
//! than a rounding are lost. So f32 masters are kept beneath the rounded weights, and saved with the optimiser's
//! state: of bf16 weights the lower halves, which with the published upper halves are the masters to the bit; of f16
//! weights the masters whole. For f32 checkpoints there is one copy.

use policy::weights::ElementType;

use crate::model::Parameters;

/// Half of a bf16 rounding step, in the bits of an f32: the one lower half that does not say which way it was rounded.
const TIE: u32 = 0x8000;

/// Weights of one policy.
#[derive(Clone, Debug)]
pub struct Weights {
    forward: Parameters,
    master: Option<Parameters>,
    /// Element type of each tensor on disk, in the layout's order.
    types: Vec<ElementType>,
}

impl Weights {
    /// Weights as published, the masters saved beside them where there are any, and each tensor's type on disk.
    pub fn new(published: Parameters, masters: Option<Parameters>, types: Vec<ElementType>) -> Weights {
        let narrow = types.iter().any(|&kind| kind != ElementType::F32);
        let master = narrow.then(|| masters.unwrap_or_else(|| published.clone()));
        Weights { forward: published, master, types }
    }

    /// What the forward pass uses: the values that are published.
    pub fn forward(&self) -> &Parameters {
        &self.forward
    }

    /// The masters, where they differ from what is published.
    pub fn masters(&self) -> Option<&Parameters> {
        self.master.as_ref()
    }

    /// Lets `change` move the masters, then rounds them to what would be published.
    pub fn step(&mut self, change: impl FnOnce(&mut Parameters)) {
        let Some(master) = &mut self.master else { return change(&mut self.forward) };
        change(master);
        let layout = master.layout().clone();
        for (entry, &kind) in layout.entries.iter().zip(&self.types) {
            let rounded = self.forward.values[entry.range.clone()].iter_mut();
            for (rounded, exact) in rounded.zip(&mut master.values[entry.range.clone()]) {
                *rounded = round(exact, kind);
            }
        }
    }
}

/// The nearest value of a type. A master half way between two bf16 values is first moved by its last bit, so that
/// [`join`] can undo the rounding.
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

/// What is published of a master.
pub fn published(mut master: f32, kind: ElementType) -> f32 {
    round(&mut master, kind)
}

/// What is kept of a master beside its published bf16: its lower half.
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
