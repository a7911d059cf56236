//! A runner's memory, and how custom operators reach it.
//!
//! One session runs on many threads. What differs between them, keys and values above all, is set as the thread's current
//! context for a run, because ONNX Runtime hands its kernels tensors and nothing else of a run. With one thread per run it
//! calls the operators on the thread that called it.

use super::kv::KvCache;
use super::parameters::ModelParameters;
use super::rope::Rope;
use super::workspace::Workspace;
use crate::engine::batch::Batch;
use crate::engine::custom_op::Outcome;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

/// A runner's memory.
pub struct ForwardContext {
    /// Memory of the operators' products.
    pub parameters: Arc<ModelParameters>,
    /// Keys and values.
    pub kv: KvCache,
    /// Cosines and sines of the positions.
    pub rope: Rope,
    /// Scratch of the attention.
    pub work: Workspace,
    /// Scratch of the matrix products.
    pub products: gemm::Scratch,
    /// `A·x` of adapters.
    pub low_rank: Vec<f32>,
}

thread_local! {
    static CURRENT: Cell<(*mut ForwardContext, *const Batch)> = const { Cell::new((ptr::null_mut(), ptr::null())) };
}

/// Unsets the current context when dropped.
pub struct CurrentGuard<'a>(PhantomData<&'a mut ForwardContext>);

/// Sets the current context and batch of this thread until the result is dropped.
pub fn set_current<'a>(context: &'a mut ForwardContext, batch: &'a Batch) -> CurrentGuard<'a> {
    CURRENT.set((context, batch));
    CurrentGuard(PhantomData)
}

impl Drop for CurrentGuard<'_> {
    fn drop(&mut self) {
        CURRENT.set((ptr::null_mut(), ptr::null()));
    }
}

/// The current context and batch of this thread.
///
/// # Safety
/// One node at a time may hold it, while it runs.
pub unsafe fn current<'a>() -> Outcome<(&'a mut ForwardContext, &'a Batch)> {
    let (context, batch) = CURRENT.get();
    if context.is_null() {
        return Err("no forward context is set on this thread".to_owned());
    }
    // SAFETY: `set_current` borrowed both for this run, and the nodes of a run follow each other on this thread.
    Ok(unsafe { (&mut *context, &*batch) })
}
