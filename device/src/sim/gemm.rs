//! The simulator's GEMM: f32 sums in ascending order of depth, the result rounded once.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;

use crate::element::Scalar;
use crate::gemm::{Gemm, Operand};

/// Rows that one task computes.
const ROWS: usize = 16;

/// Computes the GEMM on `threads` threads; the values do not depend on their number.
///
/// # Safety
/// The description must have passed [`Gemm::check`], and its operands must lie in memory of this process that nobody
/// else uses meanwhile.
pub(crate) unsafe fn run(gemm: &Gemm, threads: usize) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut sums = vec![0f32; gemm.columns];
        let mut column = vec![0f32; gemm.columns];
        loop {
            let first = next.fetch_add(ROWS, Ordering::Relaxed);
            if first >= gemm.rows {
                break;
            }
            for row in first..(first + ROWS).min(gemm.rows) {
                // SAFETY: as this function's; rows of the result are written by one task each.
                unsafe { one_row(gemm, row, &mut sums, &mut column) };
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(gemm.rows.div_ceil(ROWS)) {
            // Where the system starts no more of them, there are fewer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// # Safety
/// As [`run`].
unsafe fn one_row(gemm: &Gemm, row: usize, sums: &mut [f32], line: &mut [f32]) {
    let index = |operand: &Operand<'_>, row: usize, column: usize| {
        let (row, column) = operand.stored(row, column);
        row * operand.stride + column
    };
    sums.fill(0.0);
    for depth in 0..gemm.depth {
        // SAFETY: inside the extents that have been checked.
        let factor = unsafe { read(&gemm.left, index(&gemm.left, row, depth)) };
        for (column, value) in line.iter_mut().enumerate() {
            // SAFETY: as above.
            *value = unsafe { read(&gemm.right, index(&gemm.right, depth, column)) };
        }
        for (sum, value) in sums.iter_mut().zip(line.iter()) {
            *sum += factor * value;
        }
    }
    for (column, sum) in sums.iter().enumerate() {
        let index = index(&gemm.out, row, column);
        // SAFETY: as above; this element is this task's alone.
        unsafe {
            let before = gemm.addend.map_or(0.0, |addend| read(&addend, index));
            write(&gemm.out, index, sum + before);
        }
    }
}

/// # Safety
/// There must be such a value.
unsafe fn read(operand: &Operand<'_>, index: usize) -> f32 {
    let base = operand.values.address;
    // SAFETY: the caller's promise.
    unsafe {
        match operand.values.scalar {
            Scalar::Bf16 => (*(base as *const bf16).add(index)).to_f32(),
            _ => *(base as *const f32).add(index),
        }
    }
}

/// # Safety
/// There must be such a value, and nobody else using it.
unsafe fn write(operand: &Operand<'_>, index: usize, value: f32) {
    let base = operand.values.address;
    // SAFETY: the caller's promise.
    unsafe {
        match operand.values.scalar {
            Scalar::Bf16 => *(base as *mut bf16).add(index) = bf16::from_f32(value),
            _ => *(base as *mut f32).add(index) = value,
        }
    }
}
