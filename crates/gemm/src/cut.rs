//! Splits one product into several, for threads.
//!
//! The result is cut into a grid that minimizes repeated packing: rows of A are packed once per column of the
//! grid, and columns of B once per row. The sum of an element does not depend on the grid.

use crate::blocking::KC;
use crate::{Accumulate, Precision, Scratch, View, ViewMut, multiply};
use std::marker::PhantomData;

/// Block widths are multiples of this: the widest tile of all kernels.
const TILE: usize = 32;
/// Values that [`Product::add`] sums in scratch memory at once: 1 MiB.
pub(crate) const APART: usize = 1 << 18;

/// A product `c = onto + a · b` with its operands and result, or a block of one.
#[derive(Debug)]
pub struct Product<'a> {
    extent: [usize; 3],
    a: View<'a>,
    b: View<'a>,
    onto: Accumulate<'a>,
    c: ViewMut<'a>,
}

/// Cuts `c = onto + a · b` into at most `parts` products with disjoint results; `extent`
/// is [rows, columns, inner].
///
/// # Panics
/// If a slice is shorter than its extent.
pub fn cut<'a>(
    extent: [usize; 3],
    a: View<'a>,
    b: View<'a>,
    onto: Accumulate<'a>,
    c: ViewMut<'a>,
    parts: usize,
) -> Vec<Product<'a>> {
    let [rows, columns, inner] = extent;
    c.check(rows, columns);
    let (down, across) = grid(rows, columns, parts);
    let mut products = Vec::with_capacity(down * across);
    let edge = |length: usize, parts: usize, unit: usize, index: usize| {
        (length.div_ceil(unit) * index / parts * unit).min(length)
    };
    for row in 0..down {
        let (top, bottom) = (edge(rows, down, 1, row), edge(rows, down, 1, row + 1));
        for column in 0..across {
            let [left, right] = [0, 1].map(|next| edge(columns, across, TILE, column + next));
            if top == bottom || left == right {
                continue;
            }
            let offset = top * c.stride + left;
            let onto = match onto {
                Accumulate::Other(other) => Accumulate::Other(&other[offset..]),
                onto => onto,
            };
            // SAFETY: the first element of the block, which lies in the result.
            let data = unsafe { c.data.add(offset) };
            products.push(Product {
                extent: [bottom - top, right - left, inner],
                a: a.from(top, 0),
                b: b.from(0, left),
                onto,
                c: ViewMut { data, length: c.length - offset, stride: c.stride, borrowed: PhantomData },
            });
        }
    }
    products
}

/// The grid with the least packing: each column of blocks packs all of A, each row all of B.
fn grid(rows: usize, columns: usize, parts: usize) -> (usize, usize) {
    let panels = columns.div_ceil(TILE);
    let choices = (1..=parts).map(|down| (down.min(rows.max(1)), (parts / down).clamp(1, panels.max(1))));
    // Minimize the largest block first, then the packing.
    let cost = |&(down, across): &(usize, usize)| {
        let block = rows.div_ceil(down) * panels.div_ceil(across) * TILE;
        (block, across * rows + down * columns)
    };
    choices.min_by_key(cost).unwrap_or((1, 1))
}

impl Product<'_> {
    pub fn run(self, scratch: &mut Scratch, precision: Precision) {
        multiply(scratch, precision, self.extent, self.a, self.b, self.onto, self.c);
    }

    /// Adds `a · b` to `c`. Each element is summed from zero and then added, for any inner dimension, so the
    /// result equals a product into zeros, plus `c`.
    pub fn add(mut self, scratch: &mut Scratch, precision: Precision) {
        let [rows, columns, inner] = self.extent;
        // With a single block, `multiply` already does that.
        if inner <= KC || rows == 0 || columns == 0 {
            self.onto = Accumulate::Result;
            return self.run(scratch, precision);
        }
        let mut sums = std::mem::take(&mut scratch.sums);
        let height = (APART / columns).clamp(1, rows);
        sums.resize(sums.len().max(height * columns), 0.0);
        for top in (0..rows).step_by(height) {
            let height = height.min(rows - top);
            let (a, sums) = (self.a.from(top, 0), &mut sums[..height * columns]);
            let target = ViewMut::new(sums, columns);
            multiply(scratch, precision, [height, columns, inner], a, self.b, Accumulate::Zero, target);
            for (row, sums) in (top..).zip(sums.chunks_exact(columns)) {
                // SAFETY: a row of the result; this product alone uses its elements.
                let row =
                    unsafe { std::slice::from_raw_parts_mut(self.c.data.add(row * self.c.stride), columns) };
                row.iter_mut().zip(sums).for_each(|(element, sum)| *element += sum);
            }
        }
        scratch.sums = sums;
    }
}
