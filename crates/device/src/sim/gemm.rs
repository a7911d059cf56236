//! The simulator's GEMM: f32 sums in ascending order of depth, rounded once at the end.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::{bf16, f16};

use crate::element::Scalar;
use crate::gemm::{Gemm, Operand};

/// Rows per task.
const ROWS: usize = 16;

/// Computes the GEMM on `threads` threads; the result does not depend on their number.
///
/// # Safety
/// The description must have passed [`Gemm::check`]. Its operands must lie in this process's memory, and no
/// one else may use them meanwhile.
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
                // SAFETY: this function's contract; each row of the result is written by one task.
                unsafe { one_row(gemm, row, &mut sums, &mut column) };
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(gemm.rows.div_ceil(ROWS)) {
            // If the system refuses more threads, fewer do the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// # Safety
/// See [`run`].
unsafe fn one_row(gemm: &Gemm, row: usize, sums: &mut [f32], line: &mut [f32]) {
    let index = |operand: &Operand<'_>, row: usize, column: usize| {
        let (row, column) = operand.stored(row, column);
        row * operand.stride + column
    };
    sums.fill(0.0);
    for depth in 0..gemm.depth {
        // SAFETY: inside the checked extents.
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
        // SAFETY: as above; only this task writes this element.
        unsafe {
            let before = gemm.addend.map_or(0.0, |addend| read(&addend, index));
            write(&gemm.out, index, sum + before);
        }
    }
}

/// # Safety
/// `index` must lie inside the operand.
unsafe fn read(operand: &Operand<'_>, index: usize) -> f32 {
    let base = operand.values.address;
    // SAFETY: the caller's promise.
    unsafe {
        match operand.values.scalar {
            Scalar::Bf16 => (*(base as *const bf16).add(index)).to_f32(),
            Scalar::F16 => (*(base as *const f16).add(index)).to_f32(),
            _ => *(base as *const f32).add(index),
        }
    }
}

/// # Safety
/// `index` must lie inside the operand, and no one else may use the value.
unsafe fn write(operand: &Operand<'_>, index: usize, value: f32) {
    let base = operand.values.address;
    // SAFETY: the caller's promise.
    unsafe {
        match operand.values.scalar {
            Scalar::Bf16 => *(base as *mut bf16).add(index) = bf16::from_f32(value),
            Scalar::F16 => *(base as *mut f16).add(index) = f16::from_f32(value),
            _ => *(base as *mut f32).add(index) = value,
        }
    }
}
