//! AdamW: Adam (arXiv 1412.6980, algorithm 1) with decoupled weight decay (arXiv 1711.05101, algorithm 2).
//!
//! ```text
//! m ← β₁·m + (1 − β₁)·g                  v ← β₂·v + (1 − β₂)·g²
//! p ← p·(1 − η·λ) − η/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε)
//! ```
//!
//! The order of operations follows PyTorch's `torch.optim.AdamW`, so that the two agree to rounding.

/// Hyperparameters of one step: η, (β₁, β₂), λ, and t counted from 1.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Learning rate η of this step.
    pub rate: f64,
    /// Decay of the first and of the second moment.
    pub betas: (f64, f64),
    /// Weight decay λ; 0 for tensors that are not decayed.
    pub decay: f64,
    /// The number of this step, from 1.
    pub step: u64,
}

/// ε of the denominator, PyTorch's default.
pub(super) const EPSILON: f32 = 1e-8;

impl Step {
    /// 1 − η·λ, η/(1 − β₁ᵗ), √(1 − β₂ᵗ), 1 − β₁, β₂, 1 − β₂, each rounded once.
    pub(super) fn factors(&self) -> [f32; 6] {
        let (beta1, beta2) = self.betas;
        let correction = |beta: f64| 1.0 - beta.powi(self.step as i32);
        let (rate, root) = (self.rate / correction(beta1), correction(beta2).sqrt());
        [1.0 - self.rate * self.decay, rate, root, 1.0 - beta1, beta2, 1.0 - beta2]
            .map(|factor| factor as f32)
    }
}

/// One step on one tensor (or any slice of it: the rule is elementwise). All four slices have the same length.
/// `scale` multiplies the gradient first (gradient clipping).
pub fn step(rule: &Step, scale: f32, param: &mut [f32], grad: &[f32], first: &mut [f32], second: &mut [f32]) {
    let [keep, step_size, root_correction2, mix1, beta2, mix2] = rule.factors();
    for (((p, &g), m), v) in param.iter_mut().zip(grad).zip(first).zip(second) {
        let g = g * scale;
        *m += (g - *m) * mix1;
        *v = *v * beta2 + mix2 * g * g;
        let denominator = v.sqrt() / root_correction2 + EPSILON;
        *p = *p * keep - step_size * (*m / denominator);
    }
}
