//! Muon: momentum whose update is replaced by the nearest orthogonal matrix (Jordan et al. 2024,
//! <https://kellerjordan.github.io/posts/muon/>; arXiv 2502.16982), for one matrix of a layer.
//!
//! ```text
//! b ← μ·b + g                 u = g + μ·b                       (Nesterov, μ = 0.95)
//! X₀ = u/‖u‖                  five times  A = X·Xᵀ,  X ← 3.4445·X + (−4.7750·A + 2.0315·A·A)·X
//! p ← p·(1 − η·λ) − η·√max(1, rows/columns)·X₅
//! ```
//!
//! The iteration brings every singular value of u near 1 (between about 0.7 and 1.2), so that each direction of the
//! matrix moves at the rate and not only the few that dominate the gradient. Query, key, value, gate and up
//! projections are separate tensors in a Hugging Face checkpoint and are orthogonalized separately. f32 throughout;
//! the reference iterates in bf16.

use gemm::{Accumulate, Precision, Scratch, View, ViewMut};

const MOMENTUM: f32 = 0.95;
/// Newton-Schulz iterations.
const ITERATIONS: usize = 5;
/// Coefficients of the iteration's odd polynomial in X: of X, A·X and A·A·X.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];
/// Avoids a division by zero for a zero gradient.
const EPSILON: f64 = 1e-7;

/// Hyperparameters of one step, and the matrix's shape.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Learning rate η of this step.
    pub rate: f64,
    /// Weight decay λ.
    pub decay: f64,
    /// Rows of the matrix (outputs of the projection).
    pub rows: usize,
    /// Columns of the matrix (inputs of the projection).
    pub columns: usize,
}

/// One step on one matrix, row-major. `scale` multiplies the gradient first (gradient clipping).
pub fn step(rule: &Step, scale: f32, param: &mut [f32], grad: &[f32], momentum: &mut [f32]) {
    let update = momentum.iter_mut().zip(grad).map(|(b, &g)| {
        let g = g * scale;
        *b = *b * MOMENTUM + g;
        g + MOMENTUM * *b
    });
    let update = orthogonalized(update.collect(), rule.rows, rule.columns);
    let shape = (rule.rows as f64 / rule.columns as f64).max(1.0).sqrt();
    let (keep, rate) = ((1.0 - rule.rate * rule.decay) as f32, (rule.rate * shape) as f32);
    for (p, u) in param.iter_mut().zip(update) {
        *p = *p * keep - rate * u;
    }
}

/// The matrix with its singular values brought near 1. Iterates on the wide orientation, where X·Xᵀ is the smaller.
fn orthogonalized(matrix: Vec<f32>, rows: usize, columns: usize) -> Vec<f32> {
    if rows > columns {
        let wide = orthogonalized(transposed(&matrix, rows, columns), columns, rows);
        return transposed(&wide, columns, rows);
    }
    let norm = matrix.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let inverse = (1.0 / (norm + EPSILON)) as f32;
    let mut x: Vec<f32> = matrix.into_iter().map(|value| value * inverse).collect();
    let [of_x, of_ax, of_aax] = COEFFICIENTS;
    let (mut gram, mut square) = (vec![0.0; rows * rows], vec![0.0; rows * rows]);
    let mut next = vec![0.0; x.len()];
    let mut scratch = Scratch::default();
    let mut multiply = |mnk: [usize; 3], a: View, b: View, onto: Accumulate, c: &mut [f32]| {
        gemm::multiply(&mut scratch, Precision::Float32, mnk, a, b, onto, ViewMut::new(c, mnk[1]));
    };
    for _ in 0..ITERATIONS {
        let wide = View::new(&x, columns);
        multiply([rows, rows, columns], wide, wide.transposed(), Accumulate::Zero, &mut gram);
        let view = View::new(&gram, rows);
        multiply([rows, rows, rows], view, view, Accumulate::Zero, &mut square);
        for (square, &gram) in square.iter_mut().zip(&gram) {
            *square = of_ax * gram + of_aax * *square;
        }
        for (next, &x) in next.iter_mut().zip(&x) {
            *next = of_x * x;
        }
        let (polynomial, x_view) = (View::new(&square, rows), View::new(&x, columns));
        multiply([rows, columns, rows], polynomial, x_view, Accumulate::Result, &mut next);
        std::mem::swap(&mut x, &mut next);
    }
    x
}

fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut turned = Vec::with_capacity(matrix.len());
    for column in 0..columns {
        turned.extend((0..rows).map(|row| matrix[row * columns + column]));
    }
    turned
}
