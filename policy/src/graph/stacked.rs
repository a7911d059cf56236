//! LoRA adapters (arXiv 2106.09685) of one base in the paged graph: several in one run, each row with its own or none,
//! nothing merged.
//!
//! The factors of all adapters lie side by side, `W` columns in all; a column belongs to one adapter. Each target's
//! projection `y = W·x` becomes
//!
//! ```text
//! y + ((x · Aᵀ) ∘ own[adapter of the row]) · B
//! ```
//!
//! with `own` 1 in the adapter's columns and 0 elsewhere: a row's products with other adapters are multiplied by zero,
//! so the sum is exactly its own. That is two thin products, for which every device has its best kernels, whatever the
//! order of rows: prefill of one agent and decoding of another are one run. The cost is the width of all adapters
//! instead of one, which for the roles of a team is small: four of rank 16 over a hidden width of 4,096 are 3 % of the
//! base's products. For hundreds of adapters the kernels of Punica (arXiv 2310.18547) and S-LoRA (arXiv 2311.03285), which
//! gather each row's factors, are better; as standard operators they would copy whole factors for every prompt token.
//! Projections that read the same input share one product with A.
//!
//! | value | type and shape | meaning |
//! |---|---|---|
//! | input `adapter` | int32 `[N]` | each row's adapter, counted from 1; 0: none |
//! | inputs `lora_A.SITE.L` | T `[targets * W, inputs]` | A of each target, of each adapter in turn |
//! | inputs `lora_B.TARGET.L` | T `[W, outputs]` | B transposed, times the scale and [`HALF`] |
//!
//! SITE is `qkv`, `o`, `gate_up` or `down`, TARGET a [`Target::name`]; a site has those of its targets that any adapter
//! changes, with zeros in the columns of the others. Factors are inputs and not stored in the model: they come from
//! several files, and the caller accounts for their memory. A graph without adapters has none of this.
//!
//! Both products are doubled and what they multiply is halved, which is exact: ONNX Runtime's CPU product has a separate
//! kernel for a single row with factor 1, which sums in another order, so a row's bits would depend on its batch.

use std::ops::Range;

use super::{Builder, MICROSOFT, ONNX, value_name};
use crate::adapter::Adapter;
use crate::config::Config;
use crate::decoder::{Site, Target};
use crate::onnx::{Attribute, Element};

/// Columns are padded to a multiple of this: 16-bit products want rows of whole 16 bytes.
const ALIGNED: usize = 8;

/// Factor of B beside the adapter's scale.
pub const HALF: f32 = 0.5;

/// How the adapters of one base share columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Where each adapter's columns end.
    ends: Vec<usize>,
    /// Targets of any adapter.
    targets: Vec<Target>,
}

/// An input of the graph that holds factors of all adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factor {
    /// The input's name.
    pub name: String,
    /// Its shape.
    pub shape: [usize; 2],
    /// The layer, from 0.
    pub layer: usize,
    /// Whose factors: the A of all these stacked, or the B of one.
    pub targets: Vec<Target>,
    /// Whether it holds A.
    pub is_a: bool,
}

impl Stack {
    /// Adapters in the order of their numbers in input `adapter`.
    pub fn new<'a>(adapters: impl IntoIterator<Item = &'a Adapter>) -> Stack {
        let mut stack = Stack::default();
        for adapter in adapters {
            stack.ends.push(stack.used() + adapter.rank);
            stack.targets.extend(&adapter.targets);
        }
        stack.targets.sort_unstable();
        stack.targets.dedup();
        stack
    }

    /// Whether there is no adapter.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The columns of an adapter.
    pub fn columns(&self, adapter: usize) -> Range<usize> {
        let begin = adapter.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin..self.ends[adapter]
    }

    /// All columns, with padding.
    pub fn width(&self) -> usize {
        self.used().next_multiple_of(ALIGNED)
    }

    fn used(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The targets of a site that any adapter changes.
    fn at(&self, site: Site) -> Vec<Target> {
        site.targets().iter().copied().filter(|target| self.targets.contains(target)).collect()
    }

    /// Every input that holds factors, over a base of this configuration.
    pub fn factors(&self, config: &Config) -> Vec<Factor> {
        let mut all = Vec::new();
        for layer in 0..config.num_layers {
            for site in Site::ALL {
                let targets = self.at(site);
                let Some((inputs, _)) = targets.first().map(|target| target.extent(config)) else { continue };
                let (width, name) = (self.width(), input_a(site, layer));
                for &target in &targets {
                    let shape = [width, target.extent(config).1];
                    let name = input_b(target, layer);
                    all.push(Factor { name, shape, layer, targets: vec![target], is_a: false });
                }
                let shape = [targets.len() * width, inputs];
                all.push(Factor { name, shape, layer, targets, is_a: true });
            }
        }
        all
    }

    /// Values that a run holds for each row beside those of the base, at most: `x · Aᵀ` before and after masking and once
    /// more in parts, the rows of `columns`, and a projection without its adapters.
    pub fn activations(&self, config: &Config) -> usize {
        let widest = Site::ALL.map(|site| self.at(site).len()).into_iter().max().unwrap_or(0);
        let outputs = self.targets.iter().map(|target| target.extent(config).1).max().unwrap_or(0);
        self.width() * (3 * widest + 2 * (1 + 2 + 3)) + outputs
    }
}

fn site_name(site: Site) -> &'static str {
    match site {
        Site::QueryKeyValue => "qkv",
        Site::Output => "o",
        Site::GateUp => "gate_up",
        Site::Down => "down",
    }
}

fn input_a(site: Site, layer: usize) -> String {
    format!("lora_A.{}.{layer}", site_name(site))
}

fn input_b(target: Target, layer: usize) -> String {
    format!("lora_B.{}.{layer}", target.name())
}

impl Builder<'_> {
    pub(super) fn stack_inputs(&mut self) {
        if self.stack.is_empty() {
            return;
        }
        self.graph.input("adapter", Element::I32, &["N"]);
        for factor in self.stack.factors(self.config) {
            let [rows, columns] = factor.shape.map(|extent| extent.to_string());
            self.graph.input(&factor.name, self.element, &[&rows, &columns]);
        }
    }

    /// Whether an adapter changes a projection of this site.
    pub(super) fn adapts(&self, site: Site) -> bool {
        !self.stack.at(site).is_empty()
    }

    /// The value of a projection before adapters add to it.
    pub(super) fn base_of(&self, target: Target, layer: usize) -> String {
        let base = if self.stack.targets.contains(&target) { ".base" } else { "" };
        format!("{}.{layer}{base}", value_name(target))
    }

    /// Adds the product of each row's adapter to the projections of a site.
    pub(super) fn add_stacked(&mut self, layer: usize, site: Site, input: &str) {
        let targets = self.stack.at(site);
        if targets.is_empty() {
            return;
        }
        let scored = layer + 1 == self.config.num_layers && site != Site::QueryKeyValue;
        let columns = self.columns(targets.len(), scored);
        let step = |what: &str| format!("{what}.{}.{layer}", site_name(site));
        let doubled = ("alpha", Attribute::Float(1.0 / HALF));
        let transposed = [("transB", Attribute::Int(1)), doubled];
        let (a, inner) = (input_a(site, layer), step("inner"));
        self.graph.node(MICROSOFT, "FusedMatMul", &[input, &a], &[&inner], &transposed);
        self.graph.node(ONNX, "Mul", &[&step("inner"), &columns], &[&step("own")], &[]);
        let mut parts = vec![step("own")];
        if targets.len() > 1 {
            parts = targets.iter().map(|target| format!("own.{}.{layer}", target.name())).collect();
            let outputs: Vec<&str> = parts.iter().map(String::as_str).collect();
            let equal = [("axis", Attribute::Int(1)), ("num_outputs", Attribute::Int(targets.len() as i64))];
            self.graph.node(ONNX, "Split", &[&step("own")], &outputs, &equal);
        }
        for (target, part) in targets.into_iter().zip(&parts) {
            // One operator for product and sum, which rounds once.
            let inputs = [part, &input_b(target, layer), &self.base_of(target, layer)];
            let value = format!("{}.{layer}", value_name(target));
            self.graph.node(ONNX, "Gemm", &inputs.map(String::as_str), &[&value], &[doubled]);
        }
    }

    /// The mask of each row's own columns, repeated `times` times.
    fn columns(&mut self, times: usize, scored: bool) -> String {
        let value = format!("columns.{times}");
        if self.present.insert(value.clone()) {
            let (stack, table) = (self.stack, format!("columns_of_adapters.{times}"));
            let width = stack.width();
            let mut numbers = vec![0.0; (stack.ends.len() + 1) * times * width];
            for adapter in 0..stack.ends.len() {
                for time in 0..times {
                    let begin = ((adapter + 1) * times + time) * width;
                    numbers[begin..begin + width][stack.columns(adapter)].fill(HALF);
                }
            }
            let shape = [stack.ends.len() + 1, times * width];
            self.graph.numbers(&table, self.element, &shape, numbers.into_iter());
            self.graph.node(ONNX, "Gather", &[&table, "adapter"], &[&value], &[("axis", Attribute::Int(0))]);
        }
        if !scored {
            return value;
        }
        match self.present.insert(format!("{value}.scored")) {
            true => self.scored(&value),
            false => format!("{value}.scored"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(rank: usize, targets: &[Target]) -> Adapter {
        Adapter::new(rank, 1.0, targets.to_vec())
    }

    #[test]
    fn adapters_of_any_ranks_and_targets_stand_beside_each_other() {
        let adapters =
            [adapter(3, &[Target::Query, Target::Down]), adapter(6, &[Target::Value, Target::Query])];
        let stack = Stack::new(&adapters);
        assert_eq!((stack.columns(0), stack.columns(1), stack.width()), (0..3, 3..9, 16));
        assert_eq!(stack.at(Site::QueryKeyValue), [Target::Query, Target::Value]);
        assert_eq!(stack.at(Site::Down), [Target::Down]);
        assert!(stack.at(Site::GateUp).is_empty());
        assert!(Stack::new([]).is_empty());
    }
}
