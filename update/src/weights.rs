//! The weights in training: what the forward pass uses, and beneath it what the optimiser moves.
//!
//! For a checkpoint of 16-bit weights the two differ. The forward pass must see exactly the numbers that were
//! published and sampled from, or every ratio is off from the start; the optimiser must see f32, or steps smaller
//! than a rounding are lost. So the masters are kept in f32 beside the rounded weights and saved with the
//! optimiser's state. For f32 checkpoints there is one copy.

use policy::weights::ElementType;

use crate::model::Parameters;

/// Weights of one policy.
#[derive(Clone, Debug)]
pub struct Weights {
    forward: Parameters,
    master: Option<Parameters>,
    /// Element type of each tensor on disk, in the layout's order.
    types: Vec<ElementType>,
}

impl Weights {
    /// Weights as published, the masters that were saved beside them where there are any, and each tensor's type.
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
            for (rounded, &exact) in rounded.zip(&master.values[entry.range.clone()]) {
                *rounded = round(exact, kind);
            }
        }
    }
}

/// The nearest value of a type, ties to even.
fn round(value: f32, kind: ElementType) -> f32 {
    match kind {
        ElementType::BF16 => half::bf16::from_f32(value).to_f32(),
        ElementType::F16 => half::f16::from_f32(value).to_f32(),
        _ => value,
    }
}
