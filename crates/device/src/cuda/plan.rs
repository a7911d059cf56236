//! A GEMM's cuBLASLt descriptors and algorithm proposals, and the timing of an algorithm.

use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::DriverError;

use super::choices::Algorithm;
use super::cublaslt::Key;
use super::timing::Stopwatch;
use crate::element::Scalar;
use crate::gemm::{Gemm, Operand};

type Outcome<T> = std::result::Result<T, result::CublasError>;

/// Timed runs of an algorithm, after one untimed run that loads its code. The shortest counts.
const TIMED: usize = 3;

/// cuBLASLt's descriptors of a GEMM, and its algorithm.
pub(super) struct MatmulPlan {
    product: sys::cublasLtMatmulDesc_t,
    layouts: Vec<sys::cublasLtMatrixLayout_t>,
    preference: sys::cublasLtMatmulPreference_t,
    pub algorithm: sys::cublasLtMatmulAlgo_t,
}

impl MatmulPlan {
    /// A plan without an algorithm.
    pub fn new(key: &Key, workspace: usize) -> Outcome<Self> {
        use sys::cublasLtMatmulDescAttributes_t::{CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB};
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        // Do not round f32 inputs to TF32.
        let product = result::create_matmul_desc(
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType_t::CUDA_R_32F,
        )?;
        let algorithm = sys::cublasLtMatmulAlgo_t { data: [0; 8] };
        let mut plan =
            MatmulPlan { product, layouts: Vec::new(), preference: std::ptr::null_mut(), algorithm };
        plan.preference = result::create_matmul_pref()?;
        for layout in [key.first, key.second, key.out] {
            let scalar = match layout.scalar {
                Scalar::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
                Scalar::F16 => sys::cudaDataType_t::CUDA_R_16F,
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
            // SAFETY: the descriptor is alive; the attribute is a 32-bit number.
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
        }
        Ok(plan)
    }

    /// Up to `most` algorithms that cuBLASLt proposes, best first by its estimate.
    pub fn proposals(
        &self,
        handle: sys::cublasLtHandle_t,
        most: usize,
    ) -> Outcome<Vec<sys::cublasLtMatmulAlgo_t>> {
        let [a, b, c] = [self.layouts[0], self.layouts[1], self.layouts[2]];
        let mut count = 0;
        // SAFETY: all handles are alive, and there is room for `most` results, which are plain numbers.
        let proposed = unsafe {
            let mut proposed = vec![std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>(); most];
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                self.product,
                a,
                b,
                c,
                c,
                self.preference,
                most as i32,
                proposed.as_mut_ptr(),
                &mut count,
            )
            .result()?;
            proposed
        };
        let usable = |found: &&sys::cublasLtMatmulHeuristicResult_t| found.state.result().is_ok();
        Ok(proposed[..count.max(0) as usize].iter().filter(usable).map(|found| found.algo).collect())
    }

    /// A stored algorithm, if it can compute this product within the workspace.
    pub fn checked(
        &self,
        handle: sys::cublasLtHandle_t,
        stored: Algorithm,
        workspace: usize,
    ) -> Option<sys::cublasLtMatmulAlgo_t> {
        let algorithm = sys::cublasLtMatmulAlgo_t { data: stored };
        let [a, b, c] = [self.layouts[0], self.layouts[1], self.layouts[2]];
        // SAFETY: all handles are alive; cuBLASLt validates the algorithm.
        unsafe {
            let mut found = std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>();
            sys::cublasLtMatmulAlgoCheck(handle, self.product, a, b, c, c, &algorithm, &mut found)
                .result()
                .ok()?;
            (found.workspaceSize <= workspace).then_some(algorithm)
        }
    }

    /// Enqueues the product, multiplied by `alpha`.
    ///
    /// # Safety
    /// The GEMM has this plan's key and has been checked; its operands and the workspace lie on the device.
    pub unsafe fn run(
        &self,
        handle: sys::cublasLtHandle_t,
        gemm: &Gemm,
        alpha: f32,
        workspace: (u64, usize),
        stream: sys::cudaStream_t,
    ) -> Outcome<()> {
        let address = |operand: &Operand<'_>| operand.values.address as *const c_void;
        let out = gemm.out.values.address as *mut c_void;
        // Without an addend its address is never read.
        let addend = address(&gemm.addend.unwrap_or(gemm.out));
        let beta = if gemm.addend.is_some() { 1f32 } else { 0.0 };
        // SAFETY: the plan's descriptors live as long as the plan; the rest is the caller's promise.
        unsafe {
            result::matmul(
                handle,
                self.product,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                address(&gemm.right),
                self.layouts[0],
                address(&gemm.left),
                self.layouts[1],
                addend,
                self.layouts[2],
                out,
                self.layouts[2],
                &raw const self.algorithm,
                workspace.0 as *mut c_void,
                workspace.1,
                stream,
            )
        }
    }

    /// Times the plan's algorithm on the device with these operands. Leaves the addend unchanged: `alpha` is
    /// the smallest normal number, so that the product vanishes in the sum.
    ///
    /// # Safety
    /// See [`MatmulPlan::run`].
    pub unsafe fn time(
        &self,
        handle: sys::cublasLtHandle_t,
        gemm: &Gemm,
        workspace: (u64, usize),
        stream: sys::cudaStream_t,
    ) -> std::result::Result<f32, String> {
        let adds = gemm.addend.is_some_and(|addend| addend.values.address == gemm.out.values.address);
        let alpha = if adds { f32::MIN_POSITIVE } else { 1.0 };
        let driver = |error: DriverError| format!("{error:?}");
        let watch = Stopwatch::new(stream).map_err(driver)?;
        let mut best = f32::INFINITY;
        for turn in 0..=TIMED {
            // Clear the cache: in real use the operands are not in it.
            watch.clear(workspace).map_err(driver)?;
            watch.start().map_err(driver)?;
            // SAFETY: the caller's promise.
            unsafe { self.run(handle, gemm, alpha, workspace, stream) }.map_err(|error| error.to_string())?;
            let milliseconds = watch.stop().map_err(driver)?;
            if turn > 0 {
                best = best.min(milliseconds);
            }
        }
        Ok(best)
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
