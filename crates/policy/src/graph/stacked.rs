//! LoRA adapters (arXiv 2106.09685) of one base in the paged graph: several in one run, each row with one
//! adapter or without, and no weights merged.
//!
//! The factors of all adapters lie side by side, `W` columns in all; a column belongs to one adapter. Each target's
//! projection `y = W·x` becomes
//!
//! ```text
//! y + ((x · Aᵀ) ∘ own[adapter of the row]) · B
//! ```
//!
//! with `own` 1 in the adapter's columns and 0 elsewhere: a row's products with other adapters are multiplied
//! by zero, so the sum is exactly the product with its adapter. These are two thin products, for which every
//! device has fast kernels, in any order of rows: prefill of one agent and decoding of another are one run.
//! The cost is the width of all adapters instead of one, which for the roles of a team is small: four of rank
//! 16 over a hidden width of 4,096 are 3 % of the base's products. For hundreds of adapters the kernels of
//! Punica (arXiv 2310.18547) and S-LoRA (arXiv 2311.03285), which gather each row's factors, are better; as
//! standard operators they would copy whole factors for every prompt token.
//!
//! Projections that read the same input are one matrix, so their factors are too: one product with the A of all, and one with a
//! B that is zero where a row of it and a column are of different projections. The small product is computed first, and the
//! large one adds to it before it is rounded, as in training.
//!
//! | value | type and shape | meaning |
//! |---|---|---|
//! | input `adapter` | int32 `[N]` | each row's adapter, counted from 1; 0 for the base alone |
//! | inputs `lora_A.SITE.L` | T `[targets * W, inputs]` | A of each target, of each adapter in turn |
//! | inputs `lora_B.SITE.L` | T `[outputs of the site, targets * W]` | B of each target times the scale, zeros elsewhere |
//!
//! SITE is a [`Site::name`]; it has the targets that any adapter changes, with zeros in the columns of the
//! other adapters. Factors are inputs and not stored in the model: they come from several files, and the
//! caller accounts for their memory. A graph without adapters has no such inputs.

use std::ops::Range;

use super::{Builder, ONNX};
use crate::adapter::Adapter;
use crate::config::Config;
use crate::decoder::{Site, Target};
use crate::onnx::{Attribute, Element};

/// Columns are padded to a multiple of this: 16-bit products want rows of whole 16 bytes.
const ALIGNED: usize = 8;

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
    pub name: String,
    pub shape: [usize; 2],
    /// The layer, from 0.
    pub layer: usize,
    /// The projections that read the same input.
    pub site: Site,
    /// Targets of the site that any adapter changes, in their order.
    pub targets: Vec<Target>,
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

    /// Returns true if there is no adapter.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

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
                let width = targets.len() * self.width();
                let outputs: usize = site.targets().iter().map(|target| target.extent(config).1).sum();
                for (is_a, shape) in [(true, [width, inputs]), (false, [outputs, width])] {
                    let name = factor_name(is_a, site, layer);
                    all.push(Factor { name, shape, layer, site, targets: targets.clone(), is_a });
                }
            }
        }
        all
    }

    /// Upper bound of the values that a run holds per row in addition to the base: `x · Aᵀ` before and after
    /// masking, the rows of `columns`, and the small product of a site.
    pub fn activations(&self, config: &Config) -> usize {
        let widest = Site::ALL.map(|site| self.at(site).len()).into_iter().max().unwrap_or(0);
        let outputs = |site: Site| site.targets().iter().map(|target| target.extent(config).1).sum();
        let adapted = Site::ALL.into_iter().filter(|&site| !self.at(site).is_empty());
        self.width() * (2 * widest + 2 * (1 + 2 + 3)) + adapted.map(outputs).max().unwrap_or(0)
    }
}

fn factor_name(is_a: bool, site: Site, layer: usize) -> String {
    format!("lora_{}.{}.{layer}", if is_a { "A" } else { "B" }, site.name())
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

    /// The product of each row's adapter at a site, added to the residual stream if one is given; `None`
    /// without adapters there.
    pub(super) fn low_rank(
        &mut self,
        layer: usize,
        site: Site,
        input: &str,
        stream: Option<&str>,
        output: &str,
    ) -> Option<String> {
        let targets = self.stack.at(site).len();
        if targets == 0 {
            return None;
        }
        let scored = layer + 1 == self.config.num_layers && site != Site::QueryKeyValue && !self.decodes();
        let columns = self.columns(targets, scored);
        let value = |what: &str| format!("{output}.{what}");
        let [a, b] = [true, false].map(|is_a| factor_name(is_a, site, layer));
        self.product(input, &a, None, false, &value("inner"));
        self.graph.node(ONNX, "Mul", &[&value("inner"), &columns], &[&value("own")], &[]);
        self.product(&value("own"), &b, stream, stream.is_some(), &value("low_rank"));
        Some(value("low_rank"))
    }

    /// The mask of the columns of each row's adapter, repeated `times` times.
    fn columns(&mut self, times: usize, scored: bool) -> String {
        let value = format!("columns.{times}");
        if self.present.insert(value.clone()) {
            let (stack, table) = (self.stack, format!("columns_of_adapters.{times}"));
            let width = stack.width();
            let mut numbers = vec![0.0; (stack.ends.len() + 1) * times * width];
            for adapter in 0..stack.ends.len() {
                for time in 0..times {
                    let begin = ((adapter + 1) * times + time) * width;
                    numbers[begin..begin + width][stack.columns(adapter)].fill(1.0);
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
