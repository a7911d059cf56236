//! What a model runner lends to the custom operators for the time of a run.
//!
//! One session runs on many threads; what differs between them, keys and values above all, reaches the operators through a
//! thread-local pointer: with one thread per run, ONNX Runtime calls them on the thread that called it.

use super::kv::KvCache;
use super::rope::Rope;
use super::workspace::Workspace;
use crate::engine::batch::Batch;
use crate::engine::custom_op::Outcome;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

/// A runner's memory.
pub struct ForwardContext {
    /// Keys and values.
    pub kv: KvCache,
    /// Cosines and sines of the positions.
    pub rope: Rope,
    /// Scratch of the attention.
    pub work: Workspace,
    /// Scratch of the matrix products.
    pub products: gemm::Scratch,
}

thread_local! {
    static CURRENT: Cell<(*mut ForwardContext, *const Batch)> = const { Cell::new((ptr::null_mut(), ptr::null())) };
}

/// Ends the loan when dropped.
pub struct Loan<'a>(PhantomData<&'a mut ForwardContext>);

/// Lends a context and a batch to the operators that run on this thread, until the result is dropped.
pub fn lend<'a>(context: &'a mut ForwardContext, batch: &'a Batch) -> Loan<'a> {
    CURRENT.set((context, batch));
    Loan(PhantomData)
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        CURRENT.set((ptr::null_mut(), ptr::null()));
    }
}

/// What is lent to the operators on this thread.
///
/// # Safety
/// One node at a time may hold it, while it runs.
pub unsafe fn current<'a>() -> Outcome<(&'a mut ForwardContext, &'a Batch)> {
    let (context, batch) = CURRENT.get();
    if context.is_null() {
        return Err("no model runner lends its context on this thread".to_owned());
    }
    // SAFETY: `lend` borrowed both for this run, and the nodes of a run follow each other on this thread.
    Ok(unsafe { (&mut *context, &*batch) })
}
