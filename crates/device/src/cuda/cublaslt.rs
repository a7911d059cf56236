//! GEMMs with cuBLASLt; descriptors and the chosen algorithm are cached per [`Key`].
//!
//! Asking cuBLASLt for algorithms takes longer than a small GEMM, and its first proposal is often not the
//! fastest. When a shape first occurs on a GPU, the first proposals are timed on the actual operands
//! ([`super::choices`]). cuBLASLt is column-major, and a row-major matrix is the transpose of a column-major
//! one with the same bytes, so operands are passed in reverse order.

use std::collections::HashMap;
use std::fmt;

use cudarc::cublaslt::{result, sys};
use record::failure::{Failure, Result};

use super::choices::{Choices, fastest};
use super::installation;
use super::library::{self, Library};
use super::plan::MatmulPlan;
use crate::element::Scalar;
use crate::gemm::{Gemm, Operand};

/// An operand in cuBLASLt's column-major view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub scalar: Scalar,
    pub rows: u64,
    pub columns: u64,
    pub stride: i64,
    /// True if the GEMM uses its transpose.
    pub transposed: bool,
    /// Alignment of the address in bytes, at most 256.
    pub alignment: u32,
}

/// Everything that determines the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// cuBLASLt's first operand, which is our right one.
    pub first: Layout,
    pub second: Layout,
    pub out: Layout,
    /// The addend of the product, in the layout of `out`; its alignment may differ.
    pub addend: Option<Layout>,
    /// See [`Gemm::choice`].
    pub choice: Option<usize>,
}

/// The shape's name in [`Choices`]. Extents are rounded up to four steps per octave, so that
/// similar shapes share a choice.
impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { first, second, out, addend, .. } = self;
        let depth = if first.transposed { first.rows } else { first.columns };
        let [rows, columns, depth] = [out.rows, out.columns, depth].map(step);
        let letter = |layout: &Layout| if layout.transposed { 't' } else { 'n' };
        let (first_letter, second_letter, inputs) = (letter(first), letter(second), first.scalar);
        let sum = if addend.is_some() { "+" } else { "" };
        let alignments =
            [first, second, addend.as_ref().unwrap_or(out), out].map(|one| one.alignment.min(16));
        let alignment = alignments.into_iter().min().unwrap_or(1);
        write!(
            formatter,
            "{rows}x{columns}x{depth}-{first_letter}{second_letter}-{inputs}-{}{sum}-{alignment}",
            out.scalar
        )
    }
}

/// Rounds an extent up to four steps per octave.
fn step(extent: u64) -> u64 {
    extent.next_multiple_of((extent.next_power_of_two() / 8).max(1))
}

impl Key {
    pub fn new(gemm: &Gemm<'_>) -> Self {
        let [m, n, k] = [gemm.rows, gemm.columns, gemm.depth];
        Key {
            first: layout(&gemm.right, k, n),
            second: layout(&gemm.left, m, k),
            out: layout(&gemm.out, m, n),
            addend: gemm.addend.map(|addend| layout(&addend, m, n)),
            choice: gemm.choice,
        }
    }
}

/// The stored layout of a `[rows, columns]` operand (after transposition), in column-major view.
fn layout(operand: &Operand<'_>, rows: usize, columns: usize) -> Layout {
    let (rows, columns) = operand.stored(rows, columns);
    Layout {
        scalar: operand.values.scalar,
        rows: columns as u64,
        columns: rows as u64,
        stride: operand.stride as i64,
        transposed: operand.transposed,
        alignment: 1 << operand.values.address.trailing_zeros().min(8),
    }
}

/// A cuBLASLt handle with its cached plans.
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    plans: HashMap<Key, MatmulPlan>,
    choices: Choices,
}

/// Number of proposals to time.
const PROPOSALS: usize = 8;

impl CublasLt {
    /// A handle, with the choices of this card.
    pub fn new(card: &str) -> Result<Self> {
        library::open(Library::CublasLt)?;
        let handle = result::create_handle().map_err(|error| failed("start", &error))?;
        // SAFETY: the library is open.
        let version = unsafe { sys::cublasLtGetVersion() };
        let choices = Choices::of(card, installation::driver_version().unwrap_or_default(), version);
        Ok(CublasLt { handle, plans: HashMap::new(), choices })
    }

    /// Enqueues a GEMM on `stream`.
    ///
    /// # Safety
    /// The description has been checked; operands and `workspace` lie on the device of the current context.
    pub unsafe fn run(
        &mut self,
        gemm: &Gemm,
        workspace: (u64, usize),
        stream: sys::cudaStream_t,
    ) -> Result<()> {
        let key = Key::new(gemm);
        let failure = |error: result::CublasError| failed(&format!("{key:?}"), &error);
        if !self.plans.contains_key(&key) {
            let mut plan = MatmulPlan::new(&key, workspace.1).map_err(failure)?;
            // SAFETY: the caller's promise.
            unsafe { self.choose(&mut plan, &key, gemm, workspace, stream)? };
            self.plans.insert(key, plan);
        }
        // SAFETY: the plan is this GEMM's; the rest is the caller's promise.
        unsafe { self.plans[&key].run(self.handle, gemm, 1.0, workspace, stream) }.map_err(failure)
    }

    /// Chooses a plan's algorithm: the requested one, a stored choice, or the fastest by measurement.
    ///
    /// # Safety
    /// See [`CublasLt::run`].
    unsafe fn choose(
        &mut self,
        plan: &mut MatmulPlan,
        key: &Key,
        gemm: &Gemm,
        workspace: (u64, usize),
        stream: sys::cudaStream_t,
    ) -> Result<()> {
        let failure = |error: result::CublasError| failed(&format!("{key:?}"), &error);
        let measures = key.choice.is_none() && self.choices.measures;
        let shape = key.to_string();
        let handle = self.handle;
        let usable = |plan: &MatmulPlan, choices: &Choices| {
            choices.of_shape(&shape).iter().find_map(|&known| plan.checked(handle, known, workspace.1))
        };
        if let Some(algorithm) = usable(plan, &self.choices).filter(|_| measures) {
            plan.algorithm = algorithm;
            return Ok(());
        }
        let wanted = key.choice.map_or(if measures { PROPOSALS } else { 1 }, |choice| choice + 1);
        let proposed = plan.proposals(self.handle, wanted).map_err(failure)?;
        let none = result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
        plan.algorithm = *proposed.get(key.choice.unwrap_or(0)).ok_or(none).map_err(failure)?;
        // During graph capture, timing is impossible, because nothing can be waited for.
        if !measures || proposed.len() < 2 || super::timing::is_capturing(stream) {
            return Ok(());
        }
        let mut seconds = Vec::new();
        for algorithm in &proposed {
            plan.algorithm = *algorithm;
            // SAFETY: the caller's promise.
            let time = unsafe { plan.time(self.handle, gemm, workspace, stream) };
            // An algorithm that fails counts as infinitely slow.
            seconds.push(time.unwrap_or(f32::INFINITY));
        }
        plan.algorithm = proposed[fastest(&seconds)];
        self.choices.keep(&shape, plan.algorithm.data);
        plan.algorithm = usable(plan, &self.choices).unwrap_or(plan.algorithm);
        Ok(())
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: the handle is ours, and its plans are gone.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

fn failed(what: &str, error: &dyn fmt::Display) -> Failure {
    Failure::work(format!("cuBLASLt: {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::{Arena, Buffer};

    /// Computes what cuBLASLt's documentation specifies for a key, on column-major arrays.
    fn by_the_book(key: &Key, a: &[f32], b: &[f32]) -> Vec<f32> {
        let at = |layout: &Layout, x: &[f32], row: u64, column: u64| {
            let (row, column) = if layout.transposed { (column, row) } else { (row, column) };
            assert!(row < layout.rows && column < layout.columns, "outside of {layout:?}");
            x[(column * layout.stride as u64 + row) as usize]
        };
        let depth = if key.first.transposed { key.first.rows } else { key.first.columns };
        let mut out = vec![0f32; (key.out.columns * key.out.stride as u64) as usize];
        for row in 0..key.out.rows {
            for column in 0..key.out.columns {
                out[(column * key.out.stride as u64 + row) as usize] =
                    (0..depth).map(|d| at(&key.first, a, row, d) * at(&key.second, b, d, column)).sum();
            }
        }
        out
    }

    #[test]
    fn column_major_gives_the_same_product() {
        let (m, n, k) = (3usize, 4usize, 5usize);
        let arena = Arena::new(1 << 20, 1 << 16, 0);
        let buffer = |length| -> Buffer<f32> { arena.allocate(length).unwrap() };
        for (flip_left, flip_right) in [(false, false), (true, false), (false, true), (true, true)] {
            let value =
                |row: usize, column: usize, salt: usize| ((row * 31 + column * 17 + salt) % 13) as f32 - 6.0;
            let store = |rows: usize, columns: usize, flip: bool, salt: usize| -> (Vec<f32>, usize) {
                let stride = if flip { rows } else { columns } + 2;
                let mut x = vec![99.0; stride * if flip { columns } else { rows }];
                for row in 0..rows {
                    for column in 0..columns {
                        x[if flip { column * stride + row } else { row * stride + column }] =
                            value(row, column, salt);
                    }
                }
                (x, stride)
            };
            let ((left, left_stride), (right, right_stride)) =
                (store(m, k, flip_left, 1), store(k, n, flip_right, 2));
            let (a, b, c) = (buffer(left.len()), buffer(right.len()), buffer(m * 7));
            let mut left_operand = Operand::new(&a, left_stride);
            let mut right_operand = Operand::new(&b, right_stride);
            (left_operand.transposed, right_operand.transposed) = (flip_left, flip_right);
            let gemm = Gemm::new(left_operand, right_operand, Operand::new(&c, 7), [m, n, k]);
            gemm.check(&arena).unwrap();
            let out = by_the_book(&Key::new(&gemm), &right, &left);
            for row in 0..m {
                for column in 0..n {
                    let wanted: f32 = (0..k).map(|d| value(row, d, 1) * value(d, column, 2)).sum();
                    assert_eq!(out[row * 7 + column], wanted, "{flip_left} {flip_right} [{row}, {column}]");
                }
            }
        }
    }

    #[test]
    fn gemms_that_differ_in_address_only_share_a_plan() {
        let arena = Arena::new(1 << 20, 1 << 16, 0);
        let (a, b): (Buffer<bf16>, Buffer<f32>) =
            (arena.allocate(1024).unwrap(), arena.allocate(1024).unwrap());
        let key = |from: usize, add: bool| {
            let operand = Operand::new(a.slice(from..), 8);
            Key::new(&Gemm::new(operand, operand, Operand::new(&b, 8), [8, 8, 8]).adding(add))
        };
        assert_eq!(key(0, false), key(128, false));
        assert_ne!(key(0, false), key(0, true));
        assert_ne!(key(0, false), key(1, false), "an odd address is another plan");
        assert_eq!((key(0, false).first.alignment, key(1, false).first.alignment), (256, 2));
    }

    #[test]
    fn shapes_that_are_alike_share_a_choice() {
        assert_eq!(
            [1, 3, 8, 9, 64, 1000, 1152, 2048, 151_936].map(step),
            [1, 3, 8, 10, 64, 1024, 1280, 2048, 163_840]
        );
        let arena = Arena::new(1 << 20, 1 << 18, 0);
        let (a, b): (Buffer<bf16>, Buffer<f32>) =
            (arena.allocate(32_768).unwrap(), arena.allocate(16_384).unwrap());
        let name = |rows: usize, first: usize, add: bool| {
            let (left, right) = (Operand::new(a.slice(first..), 64), Operand::new(&a, 64).transposed());
            Key::new(&Gemm::new(left, right, Operand::new(&b, 64), [rows, 64, 64]).adding(add)).to_string()
        };
        assert_eq!(name(200, 0, true), "64x224x64-tn-bf16-f32+-16");
        assert_eq!(name(200, 0, true), name(224, 8, true));
        for other in [name(225, 0, true), name(200, 0, false), name(200, 4, true)] {
            assert_ne!(other, name(200, 0, true));
        }
    }
}
