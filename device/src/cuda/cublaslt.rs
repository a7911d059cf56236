//! GEMMs by cuBLASLt, with its descriptors and chosen algorithm cached per [`Key`].
//!
//! The algorithm heuristic takes longer than a small GEMM. cuBLASLt is column-major: a row-major matrix is the transpose
//! of a column-major one of the same bytes, so the operands are passed in reverse order.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use record::failure::{Failure, Result};

use super::library::{self, Library};
use crate::element::Scalar;
use crate::gemm::{Gemm, Operand};

/// An operand as cuBLASLt sees it: column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub scalar: Scalar,
    pub rows: u64,
    pub columns: u64,
    pub stride: i64,
    /// Whether the GEMM takes its transpose.
    pub transposed: bool,
    /// Alignment of the address in bytes, at most 256.
    pub alignment: u32,
}

/// Everything that determines the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// cuBLASLt's first operand: our right one.
    pub first: Layout,
    pub second: Layout,
    pub out: Layout,
    /// What the product is added to: laid out as `out`, at an alignment of its own.
    pub addend: Option<Layout>,
    /// See [`Gemm::choice`].
    pub choice: usize,
}

impl Key {
    /// The key of a GEMM.
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

/// A `[rows, columns]` operand (after its transposition) as stored, seen column-major.
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
}

impl CublasLt {
    pub fn new() -> Result<Self> {
        library::open(Library::CublasLt)?;
        let handle = result::create_handle().map_err(|error| failed("start", &error))?;
        Ok(CublasLt { handle, plans: HashMap::new() })
    }

    /// Enqueues a GEMM on `stream`.
    ///
    /// # Safety
    /// The description has been checked, its operands and the `workspace` lie on the device of the current context.
    pub unsafe fn run(
        &mut self,
        gemm: &Gemm,
        workspace: (u64, usize),
        stream: sys::cudaStream_t,
    ) -> Result<()> {
        let key = Key::new(gemm);
        if !self.plans.contains_key(&key) {
            let plan = MatmulPlan::new(self.handle, &key, workspace.1)
                .map_err(|error| failed(&format!("{key:?}"), &error))?;
            self.plans.insert(key, plan);
        }
        let plan = &self.plans[&key];
        let address = |operand: &Operand<'_>| operand.values.address as *const c_void;
        let out = gemm.out.values.address as *mut c_void;
        // Without an addend nothing of it is read, whatever its address.
        let addend = address(&gemm.addend.unwrap_or(gemm.out));
        let (alpha, beta) = (1f32, if gemm.addend.is_some() { 1f32 } else { 0.0 });
        // SAFETY: the plan's descriptors live as long as the plan; the rest is the caller's promise.
        unsafe {
            result::matmul(
                self.handle,
                plan.product,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                address(&gemm.right),
                plan.layouts[0],
                address(&gemm.left),
                plan.layouts[1],
                addend,
                plan.layouts[2],
                out,
                plan.layouts[2],
                &raw const plan.algorithm,
                workspace.0 as *mut c_void,
                workspace.1,
                stream,
            )
        }
        .map_err(|error| failed(&format!("{key:?}"), &error))
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: the handle is ours, and its plans are gone.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::work(format!("cuBLASLt: {what}: {error}"))
}

/// cuBLASLt's descriptors of a GEMM, and the algorithm it chose.
struct MatmulPlan {
    product: sys::cublasLtMatmulDesc_t,
    layouts: Vec<sys::cublasLtMatrixLayout_t>,
    preference: sys::cublasLtMatmulPreference_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl MatmulPlan {
    fn new(
        handle: sys::cublasLtHandle_t,
        key: &Key,
        workspace: usize,
    ) -> std::result::Result<Self, result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t::{CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB};
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        // f32 inputs are not rounded to TF32.
        let product = result::create_matmul_desc(
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType_t::CUDA_R_32F,
        )?;
        let mut plan = MatmulPlan {
            product,
            layouts: Vec::new(),
            preference: std::ptr::null_mut(),
            // SAFETY: plain numbers, overwritten below before any use.
            algorithm: unsafe { std::mem::zeroed() },
        };
        plan.preference = result::create_matmul_pref()?;
        for layout in [key.first, key.second, key.out] {
            let scalar = match layout.scalar {
                Scalar::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
                _ => sys::cudaDataType_t::CUDA_R_32F,
            };
            plan.layouts.push(result::create_matrix_layout(
                scalar,
                layout.rows,
                layout.columns,
                layout.stride,
            )?);
        }
        for (attribute, layout) in
            [(CUBLASLT_MATMUL_DESC_TRANSA, key.first), (CUBLASLT_MATMUL_DESC_TRANSB, key.second)]
        {
            let operation = i32::from(layout.transposed);
            let value = (&raw const operation).cast();
            // SAFETY: the description is alive; the attribute is a 32-bit number.
            unsafe { result::set_matmul_desc_attribute(product, attribute, value, size_of::<i32>())? };
        }
        let alignments = [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.first.alignment),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.second.alignment),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.addend.unwrap_or(key.out).alignment),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out.alignment),
        ];
        // SAFETY: the preference is alive; each attribute has the type written here.
        unsafe {
            let (limit, value) =
                (Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast());
            result::set_matmul_pref_attribute(plan.preference, limit, value, size_of::<usize>())?;
            for (attribute, bytes) in alignments {
                let value = (&raw const bytes).cast();
                result::set_matmul_pref_attribute(plan.preference, attribute, value, size_of::<u32>())?;
            }
            let [a, b, c] = [plan.layouts[0], plan.layouts[1], plan.layouts[2]];
            plan.algorithm = match key.choice {
                0 => result::get_matmul_algo_heuristic(handle, product, a, b, c, c, plan.preference)?.algo,
                choice => {
                    let mut proposed =
                        vec![std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>(); choice + 1];
                    let (most, mut count) = (proposed.len() as i32, 0);
                    let first = proposed.as_mut_ptr();
                    sys::cublasLtMatmulAlgoGetHeuristic(
                        handle,
                        product,
                        a,
                        b,
                        c,
                        c,
                        plan.preference,
                        most,
                        first,
                        &mut count,
                    )
                    .result()?;
                    let none = result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
                    let chosen = proposed[..count.max(0) as usize].get(choice).ok_or(none)?;
                    chosen.state.result()?;
                    chosen.algo
                }
            };
        }
        Ok(plan)
    }
}

impl Drop for MatmulPlan {
    fn drop(&mut self) {
        // SAFETY: each was made by `new` and is destroyed once; failures leave nothing to do.
        unsafe {
            for layout in &self.layouts {
                let _ = result::destroy_matrix_layout(*layout);
            }
            if !self.preference.is_null() {
                let _ = result::destroy_matmul_pref(self.preference);
            }
            let _ = result::destroy_matmul_desc(self.product);
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::{Arena, Buffer};

    /// What cuBLASLt is documented to do with a key, on column-major arrays.
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
}
