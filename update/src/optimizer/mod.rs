//! The optimizer: which rule updates which tensor, the learning rate, gradient clipping, and the state saved between
//! calls.
//!
//! | `--optimizer` | matrices of the layers | embedding, head | norms, biases |
//! |---|---|---|---|
//! | `adamw` | AdamW, decayed | AdamW, decayed | AdamW |
//! | `sgd` | p ← p·(1 − η·λ) − η·g | the same | p ← p − η·g |
//! | `muon` | Muon at `--lr`, decayed | AdamW at `--lr-other`, decayed | AdamW at `--lr-other` |
//!
//! Weight decay applies to tensors of two dimensions only, not to norms and biases. The gradient is clipped by its global
//! norm first. Every rule works on one tensor, or a piece of one, by itself, so results depend neither on the threads nor on
//! how ranks divide the steps among them ([`slices`]).

mod adamw;
mod muon;
pub mod on_device;
pub mod schedule;
pub mod shares;

use crate::model::{Entry, Gradients, Layout, Parameters, on_threads};
use clap::ValueEnum;
use record::failure::Result;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Values handed to a thread at once by the elementwise rules.
const PIECE: usize = 1 << 16;

/// The optimization method of `--optimizer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// Adam with decoupled weight decay (arXiv 1711.05101)
    Adamw,
    /// Plain gradient descent, no momentum
    Sgd,
    /// Orthogonalized momentum for the matrices of layers (Muon, arXiv 2502.16982), AdamW for the rest
    Muon,
}

/// The optimizer's hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub method: Method,
    /// Peak learning rate.
    pub lr: f64,
    /// Peak learning rate of the tensors that AdamW updates under Muon.
    pub lr_other: f64,
    /// Decay of AdamW's two moments.
    pub betas: (f64, f64),
    /// Decoupled weight decay of matrices.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; 0 turns clipping off.
    pub max_grad_norm: f64,
}

/// The rule that updates a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    AdamW,
    Sgd,
    Muon,
}

/// An optimizer with its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    settings: Settings,
    layout: Arc<Layout>,
    rules: Vec<Rule>,
    /// The values that this optimizer steps, in the order of the layout.
    own: Range<usize>,
    /// First moment (AdamW) or momentum (Muon) of its values of each tensor; empty for SGD.
    first: Vec<Vec<f32>>,
    /// Second moment of its values of each tensor; empty unless AdamW.
    second: Vec<Vec<f32>>,
    steps: u64,
}

/// A kind of state of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// First moment (AdamW) or momentum (Muon).
    First,
    /// Second moment (AdamW).
    Second,
}

/// A kind of training state, of which each weight has one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// The weight as every rank has it: the f32 master on the CPU, rounded to bf16 or f16 on a device.
    Weight,
    /// The f32 master weight.
    MasterWeight,
    /// A moment.
    Moment(Moment),
}

/// A tensor of an optimizer's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTensor {
    /// By PyTorch's names: `exp_avg.NAME`, `exp_avg_sq.NAME` (AdamW), `momentum_buffer.NAME` (Muon).
    pub name: String,
    /// Index in the layout of the tensor whose state it is.
    pub tensor: usize,
    /// First or second moment.
    pub moment: Moment,
}

/// The state tensors of an optimizer for a layout, in the order in which they are saved.
pub fn tensors(method: Method, layout: &Layout) -> Vec<StateTensor> {
    let mut kept = Vec::new();
    for (tensor, entry) in layout.entries.iter().enumerate() {
        let parts: &[(&str, Moment)] = match rule(method, entry) {
            Rule::AdamW => &[("exp_avg", Moment::First), ("exp_avg_sq", Moment::Second)],
            Rule::Muon => &[("momentum_buffer", Moment::First)],
            Rule::Sgd => &[],
        };
        let named = |&(kind, moment): &(&str, Moment)| StateTensor {
            name: format!("{kind}.{}", entry.name),
            tensor,
            moment,
        };
        kept.extend(parts.iter().map(named));
    }
    kept
}

/// The slices of a layout's values that `count` ranks step, consecutive and of about equal size. A matrix
/// that its rule takes whole is in one slice.
pub fn slices(method: Method, layout: &Layout, count: usize) -> Vec<Range<usize>> {
    let cut = |index: usize| {
        let at = (layout.len() * index).div_ceil(count);
        let whole = |entry: &&Entry| {
            entry.range.start < at && at < entry.range.end && rule(method, entry) == Rule::Muon
        };
        layout.entries.iter().find(whole).map_or(at, |entry| entry.range.end)
    };
    (0..count).map(|rank| cut(rank)..cut(rank + 1)).collect()
}

/// What two ranges have in common; empty if nothing.
pub fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

/// Consecutive values of a tensor, with their gradient and state.
struct TensorSlice<'a> {
    rule: Rule,
    entry: &'a Entry,
    values: &'a mut [f32],
    gradient: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
}

/// How one step is scaled.
#[derive(Clone, Copy, Debug)]
pub struct StepScale {
    /// Factor for the summed gradients, from the loss ([`crate::aggregate`]).
    pub gradient: f64,
    /// The global L2 norm of the gradients, so scaled.
    pub norm: f64,
    /// Factor of the peak learning rates (see [`schedule`]).
    pub rate: f64,
}

impl StepScale {
    /// The factor of the gradients that also brings their norm to at most `max_norm`, as PyTorch's `clip_grad_norm_`.
    fn clipped(self, max_norm: f64) -> f32 {
        let clipping = if max_norm > 0.0 { (max_norm / (self.norm + 1e-6)).min(1.0) } else { 1.0 };
        (self.gradient * clipping) as f32
    }
}

/// The global L2 norm of a gradient, summed in f64 in the order of the layout.
pub fn norm(gradients: &Gradients) -> f64 {
    gradients
        .values
        .chunks(PIECE)
        .map(|piece| piece.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>())
        .sum::<f64>()
        .sqrt()
}

impl Optimizer {
    /// An optimizer that has taken no step.
    pub fn new(settings: Settings, layout: &Arc<Layout>) -> Optimizer {
        Optimizer::of_slice(settings, layout, 0..layout.len())
    }

    /// One that steps a slice of the values ([`slices`]), and keeps the state of these only.
    pub fn of_slice(settings: Settings, layout: &Arc<Layout>, own: Range<usize>) -> Optimizer {
        let rules: Vec<Rule> = layout.entries.iter().map(|entry| rule(settings.method, entry)).collect();
        let state = |wanted: &dyn Fn(Rule) -> bool| -> Vec<Vec<f32>> {
            let sizes = rules.iter().zip(&layout.entries);
            let length =
                |rule, entry: &Entry| if wanted(rule) { overlap(&entry.range, &own).len() } else { 0 };
            sizes.map(|(&rule, entry)| vec![0.0; length(rule, entry)]).collect()
        };
        let first = state(&|rule| rule != Rule::Sgd);
        let second = state(&|rule| rule == Rule::AdamW);
        Optimizer { settings, layout: layout.clone(), rules, own, first, second, steps: 0 }
    }

    /// Optimizer steps taken since the state was made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The values that it steps, in the order of the layout.
    pub fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    /// The [`slices`] of `count` ranks.
    pub fn slices(&self, count: usize) -> Vec<Range<usize>> {
        slices(self.settings.method, &self.layout, count)
    }

    /// Takes one step of its values.
    pub fn step(
        &mut self,
        parameters: &mut Parameters,
        gradients: &Gradients,
        scale: StepScale,
        threads: usize,
    ) {
        self.steps += 1;
        let (settings, step, factor) = (self.settings, self.steps, scale.rate);
        let scale = scale.clipped(settings.max_grad_norm);
        let mut pieces: Vec<TensorSlice> = Vec::new();
        let mut rest = parameters.values.as_mut_slice();
        let states = self.first.iter_mut().zip(&mut self.second);
        for ((entry, &rule), (first, second)) in self.layout.entries.iter().zip(&self.rules).zip(states) {
            let (values, after) = rest.split_at_mut(entry.range.len());
            rest = after;
            let own = overlap(&entry.range, &self.own);
            if own.is_empty() {
                continue;
            }
            let values = &mut values[own.start - entry.range.start..][..own.len()];
            let gradient = &gradients.values[own];
            split(TensorSlice { rule, entry, values, gradient, first, second }, &mut pieces);
        }
        spread(pieces, threads, |piece| update(&settings, step, scale, factor, piece));
    }

    /// A tensor's moment, of the values that it steps; empty where its rule has none.
    pub fn moment(&self, moment: Moment, tensor: usize) -> &[f32] {
        match moment {
            Moment::First => &self.first[tensor],
            Moment::Second => &self.second[tensor],
        }
    }

    /// Restores saved state: its [`tensors`], which `read` fills by name from an index of the tensor on, and the number of
    /// steps taken.
    ///
    /// # Errors
    /// The first error of `read`.
    pub fn restore(
        &mut self,
        steps: u64,
        mut read: impl FnMut(&str, usize, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        for StateTensor { name, tensor, moment } in tensors(self.settings.method, &self.layout) {
            let range = &self.layout.entries[tensor].range;
            let own = overlap(range, &self.own);
            let tensors = if moment == Moment::First { &mut self.first } else { &mut self.second };
            if !own.is_empty() {
                read(&name, own.start - range.start, &mut tensors[tensor])?;
            }
        }
        self.steps = steps;
        Ok(())
    }

    /// Bytes of the state that an optimizer of this method keeps for a slice of a layout.
    pub fn state_bytes(method: Method, layout: &Layout, own: &Range<usize>) -> usize {
        let values = tensors(method, layout)
            .into_iter()
            .map(|kept| overlap(&layout.entries[kept.tensor].range, own).len());
        values.sum::<usize>() * size_of::<f32>()
    }
}

/// The rule that updates a tensor under a method.
fn rule(method: Method, entry: &Entry) -> Rule {
    match method {
        Method::Adamw => Rule::AdamW,
        Method::Sgd => Rule::Sgd,
        Method::Muon if is_layer_matrix(entry) => Rule::Muon,
        Method::Muon => Rule::AdamW,
    }
}

/// Returns true if the tensor is a projection inside a layer: neither embedding nor head nor a vector.
fn is_layer_matrix(entry: &Entry) -> bool {
    entry.shape.len() == 2 && entry.name.contains("model.layers.")
}

/// Splits a tensor into slices that threads can take; Muon needs its matrix whole.
fn split<'a>(whole: TensorSlice<'a>, slices: &mut Vec<TensorSlice<'a>>) {
    if whole.rule == Rule::Muon {
        return slices.push(whole);
    }
    let TensorSlice { rule, entry, mut values, mut gradient, mut first, mut second } = whole;
    while !values.is_empty() {
        let size = PIECE.min(values.len());
        let piece = TensorSlice {
            rule,
            entry,
            values: values.split_off_mut(..size).unwrap_or_default(),
            gradient: gradient.split_off(..size).unwrap_or_default(),
            first: first.split_off_mut(..size).unwrap_or_default(),
            second: second.split_off_mut(..size).unwrap_or_default(),
        };
        slices.push(piece);
    }
}

/// Updates one piece by its rule.
fn update(settings: &Settings, step: u64, scale: f32, factor: f64, piece: TensorSlice) {
    let decay = if piece.entry.shape.len() == 2 { settings.weight_decay } else { 0.0 };
    let rate = settings.lr * factor;
    match piece.rule {
        Rule::AdamW => {
            let peak = if settings.method == Method::Muon { settings.lr_other } else { settings.lr };
            let rule = adamw::Step { rate: peak * factor, betas: settings.betas, decay, step };
            adamw::step(&rule, scale, piece.values, piece.gradient, piece.first, piece.second);
        }
        Rule::Sgd => {
            let (keep, rate) = ((1.0 - rate * decay) as f32, rate as f32);
            for (p, &g) in piece.values.iter_mut().zip(piece.gradient) {
                *p = *p * keep - rate * (g * scale);
            }
        }
        Rule::Muon => {
            let (rows, columns) = (piece.entry.shape[0], piece.entry.shape[1]);
            let rule = muon::Step { rate, decay, rows, columns };
            muon::step(&rule, scale, piece.values, piece.gradient, piece.first);
        }
    }
}

/// Runs `work` on every piece, over `threads` threads.
fn spread<'a>(pieces: Vec<TensorSlice<'a>>, threads: usize, work: impl Fn(TensorSlice<'a>) + Sync) {
    let threads = threads.min(pieces.len());
    let queue = Mutex::new(pieces);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
    on_threads(threads, || {
        while let Some(piece) = next() {
            work(piece);
        }
    });
}

#[cfg(test)]
mod tests;
