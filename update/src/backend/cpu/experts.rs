//! Experts in place of an MLP (arXiv 1701.06538): routing, and each expert's rows as one batch.
//!
//! The router is f32 whatever the precision of the products, as in rollout's engine. The choice of experts has no gradient;
//! their probabilities have, also through the sum that divides them. Nothing is kept for the backward pass, which computes an
//! expert again. The threads of a pool share each product.

use super::products::{self, Gemm};
use super::{elementwise, view};
use crate::backend::Experts;
use gemm::{Accumulate, View};

/// A router's result.
struct Routing {
    /// `[rows, experts]`.
    probabilities: Vec<f32>,
    /// The rows of each expert, ascending, and their weights.
    taken: Vec<Vec<(usize, f32)>>,
    /// The divisor of each row's probabilities.
    totals: Vec<f32>,
}

fn route(gemm: &mut Gemm, op: &Experts<Vec<f32>>, x: &[f32]) -> Routing {
    let (rows, count, hidden) = (op.rows, op.router.outputs, op.router.inputs);
    let mut probabilities = vec![0.0; rows * count];
    let router = view(op.weights, op.router).transposed();
    exact(gemm, [rows, count, hidden], View::new(x, hidden), router, Accumulate::Zero, &mut probabilities);
    let mut taken = vec![Vec::new(); count];
    let mut totals = Vec::with_capacity(rows);
    for (row, own) in probabilities.chunks_exact_mut(count).enumerate() {
        let (experts, total) = op.settings.route(own);
        experts.into_iter().for_each(|expert| taken[expert].push((row, own[expert] / total)));
        totals.push(total);
    }
    Routing { probabilities, taken, totals }
}

/// `c = onto + a · b` in f32: `[m, n, k]`.
fn exact(gemm: &mut Gemm, mnk: [usize; 3], a: View, b: View, onto: Accumulate, c: &mut [f32]) {
    products::exact(gemm.scratch(), mnk, a, b, onto, c, mnk[1]);
}

/// One expert on its rows.
struct Run {
    /// `[rows, hidden]`.
    inputs: Vec<f32>,
    /// Gate and up, `[rows, 2 * width]`.
    gate_up: Vec<f32>,
    /// `[rows, width]`.
    gated: Vec<f32>,
    /// `[rows, hidden]`.
    outputs: Vec<f32>,
}

fn run(gemm: &mut Gemm, op: &Experts<Vec<f32>>, x: &[f32], expert: usize, taken: &[(usize, f32)]) -> Run {
    let (hidden, width, rows) = (op.router.inputs, op.settings.width, taken.len());
    let [in_matrix, out_matrix] = op.matrices(expert);
    let inputs: Vec<f32> = taken.iter().flat_map(|&(row, _)| &x[row * hidden..][..hidden]).copied().collect();
    let mut gate_up = vec![0.0; rows * 2 * width];
    let weight = view(op.weights, in_matrix).transposed();
    gemm.linear(
        [rows, 2 * width, hidden],
        View::new(&inputs, hidden),
        weight,
        Accumulate::Zero,
        &mut gate_up,
        2 * width,
    );
    let mut gated = vec![0.0; rows * width];
    functional::swiglu(width, &gate_up, &mut gated);
    let mut outputs = vec![0.0; rows * hidden];
    let weight = view(op.weights, out_matrix).transposed();
    gemm.linear(
        [rows, hidden, width],
        View::new(&gated, width),
        weight,
        Accumulate::Zero,
        &mut outputs,
        hidden,
    );
    Run { inputs, gate_up, gated, outputs }
}

/// See [`crate::backend::Variants::experts`].
pub(super) fn forward(gemm: &mut Gemm, op: &Experts<Vec<f32>>, x: &[f32], residual: &[f32], out: &mut [f32]) {
    let hidden = op.router.inputs;
    out[..op.rows * hidden].copy_from_slice(&residual[..op.rows * hidden]);
    let routing = route(gemm, op, &x[..op.rows * hidden]);
    for (expert, taken) in routing.taken.iter().enumerate().filter(|(_, taken)| !taken.is_empty()) {
        let run = run(gemm, op, x, expert, taken);
        for (&(row, weight), output) in taken.iter().zip(run.outputs.chunks_exact(hidden)) {
            let out = &mut out[row * hidden..][..hidden];
            out.iter_mut().zip(output).for_each(|(out, output)| *out += weight * output);
        }
    }
}

/// See [`crate::backend::Variants::experts_backward`].
pub(super) fn backward(
    gemm: &mut Gemm,
    op: &Experts<Vec<f32>>,
    x: &[f32],
    d_out: &[f32],
    d_x: &mut [f32],
    mut gradients: Option<&mut [f32]>,
) {
    let (hidden, width, count) = (op.router.inputs, op.settings.width, op.router.outputs);
    let d_x = &mut d_x[..op.rows * hidden];
    d_x.fill(0.0);
    let Routing { probabilities, taken, totals } = route(gemm, op, &x[..op.rows * hidden]);
    // First the gradient of the weights, then of the logits.
    let mut d_logits = vec![0.0; op.rows * count];
    for (expert, taken) in taken.iter().enumerate().filter(|(_, taken)| !taken.is_empty()) {
        let Run { inputs, mut gate_up, mut gated, outputs } = run(gemm, op, x, expert, taken);
        let [in_matrix, out_matrix] = op.matrices(expert);
        let rows = taken.len();
        let mut d_outputs = Vec::with_capacity(rows * hidden);
        for (&(row, weight), output) in taken.iter().zip(outputs.chunks_exact(hidden)) {
            let d_out = &d_out[row * hidden..][..hidden];
            d_logits[row * count + expert] = d_out.iter().zip(output).map(|(d, output)| d * output).sum();
            d_outputs.extend(d_out.iter().map(|d| weight * d));
        }
        let by_hidden = View::new(&d_outputs, hidden);
        if let Some(gradients) = gradients.as_deref_mut() {
            let gradient = &mut gradients[out_matrix.range()];
            let gated = View::new(&gated, width);
            gemm.linear_gradient([hidden, width, rows], by_hidden.transposed(), gated, gradient);
        }
        let mut d_gated = vec![0.0; rows * width];
        let weight = view(op.weights, out_matrix);
        gemm.linear([rows, width, hidden], by_hidden, weight, Accumulate::Zero, &mut d_gated, width);
        elementwise::swiglu_backward(width, &mut gate_up, &d_gated, &mut gated);
        let by_width = View::new(&gate_up, 2 * width);
        if let Some(gradients) = gradients.as_deref_mut() {
            let gradient = &mut gradients[in_matrix.range()];
            let inputs = View::new(&inputs, hidden);
            gemm.linear_gradient([2 * width, hidden, rows], by_width.transposed(), inputs, gradient);
        }
        let mut d_inputs = vec![0.0; rows * hidden];
        let weight = view(op.weights, in_matrix);
        gemm.linear([rows, hidden, 2 * width], by_width, weight, Accumulate::Zero, &mut d_inputs, hidden);
        for (&(row, _), d_input) in taken.iter().zip(d_inputs.chunks_exact(hidden)) {
            elementwise::add(d_input, &mut d_x[row * hidden..][..hidden]);
        }
    }
    for (row, taken) in taken_by_row(&taken, op.rows).iter().enumerate() {
        let (own, d_own) = (&probabilities[row * count..][..count], &mut d_logits[row * count..][..count]);
        if op.settings.normalized {
            let along: f32 = taken.iter().map(|&(expert, weight)| weight * d_own[expert]).sum();
            taken.iter().for_each(|&(expert, _)| d_own[expert] = (d_own[expert] - along) / totals[row]);
        }
        let along: f32 = taken.iter().map(|&(expert, _)| own[expert] * d_own[expert]).sum();
        d_own.iter_mut().zip(own).for_each(|(d, probability)| *d = probability * (*d - along));
    }
    let (by_expert, x) = (View::new(&d_logits, count), View::new(x, hidden));
    if let Some(gradients) = gradients {
        let mut gradient = vec![0.0; count * hidden];
        exact(gemm, [count, hidden, op.rows], by_expert.transposed(), x, Accumulate::Zero, &mut gradient);
        elementwise::add(&gradient, &mut gradients[op.router.range()]);
    }
    exact(gemm, [op.rows, hidden, count], by_expert, view(op.weights, op.router), Accumulate::Result, d_x);
}

/// The experts of each row and their weights.
fn taken_by_row(taken: &[Vec<(usize, f32)>], rows: usize) -> Vec<Vec<(usize, f32)>> {
    let mut by_row = vec![Vec::new(); rows];
    for (expert, own) in taken.iter().enumerate() {
        own.iter().for_each(|&(row, weight)| by_row[row].push((expert, weight)));
    }
    by_row
}
