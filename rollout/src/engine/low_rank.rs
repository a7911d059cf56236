//! The operator `LowRank` of the decoder's graph: adds to each row of a projection what the adapter of its group gives.

use super::adapters::NONE;
use super::custom::{Outcome, guarded};
use super::isa::Kernels;
use super::operator::{input, integer, lent, output};
use ort::sys::*;
use std::ffi::c_void;
use std::ptr;

/// A node of the graph.
pub struct LowRankNode {
    layer: usize,
    site: usize,
    /// Whether the rows are those to be scored, and not all.
    scored: bool,
    kernels: Kernels,
}

impl LowRankNode {
    /// The node that is described by `info`.
    ///
    /// # Safety
    ///
    /// `info` is that of the node being made.
    pub unsafe fn new(kernels: Kernels, info: *const OrtKernelInfo) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(LowRankNode {
                layer: integer(info, c"layer")?,
                site: integer(info, c"site")?,
                scored: integer(info, c"scored")? == 1,
                kernels,
            })
        }
    }

    /// Runs the node.
    ///
    /// # Safety
    ///
    /// `context` is that of the running call.
    pub unsafe fn compute(&self, context: *mut OrtKernelContext) -> Outcome<()> {
        // SAFETY: nodes of a run follow each other on this thread.
        let pass = unsafe { lent()? };
        // SAFETY: the caller's promise.
        let ((rows, inputs, x), (same, outputs, y)) = unsafe { (input(context, 0)?, input(context, 1)?) };
        let owners = if self.scored { &pass.plan.wanted_adapters } else { &pass.plan.adapters };
        if rows != same || rows != owners.len() {
            return Err(format!("{rows} and {same} rows do not fit a plan of {}", owners.len()));
        }
        // SAFETY: sizes are those of the tensors; each part is compared with them before it is used.
        unsafe {
            let result = output(context, rows, outputs)?;
            if !ptr::eq(result, y) {
                ptr::copy_nonoverlapping(y, result, rows * outputs);
            }
            for (row, &owner) in owners.iter().enumerate().filter(|&(_, &owner)| owner != NONE) {
                let adapter =
                    pass.adapters.get(owner as usize).ok_or("a row of an adapter that is not loaded")?;
                for part in adapter.parts(self.layer, self.site) {
                    if !part.fits(adapter.rank(), inputs, outputs) {
                        return Err(format!("an adapter does not fit {inputs} inputs and {outputs} outputs"));
                    }
                    let (x, y) = (x.add(row * inputs), result.add(row * outputs));
                    (self.kernels.low_rank)(part, adapter.rank(), x, y);
                }
            }
        }
        Ok(())
    }
}

/// See [`LowRankNode::compute`].
pub unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut OrtKernelContext) -> OrtStatusPtr {
    // SAFETY: the kernel was made by the operator's `create` and is only ever read.
    guarded(|| unsafe { (*kernel.cast::<LowRankNode>()).compute(context) })
}

/// Frees a node.
pub unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: made by the operator's `create`, destroyed once.
    drop(unsafe { Box::from_raw(kernel.cast::<LowRankNode>()) });
}
