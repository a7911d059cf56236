//! Sixteen f32 at a time: the one vector type that the attention is written with.
//!
//! Kernels are generic over [`Lanes`] and compiled once for each instruction set; which one runs is decided when the
//! engine is loaded. Every operation is defined lane by lane, so AVX-512 and AVX2 give the same bits; the portable build does
//! too where the target has a fused multiply-add.

#![allow(unsafe_op_in_unsafe_fn, reason = "every method promises what the others do")]

use half::bf16;

/// A type that keys and values are stored in.
pub trait Number: Copy {
    /// Loads sixteen values, any alignment.
    ///
    /// # Safety
    ///
    /// See [`Lanes`].
    unsafe fn load<S: Lanes>(from: *const Self) -> S;
}

impl Number for f32 {
    #[inline(always)]
    unsafe fn load<S: Lanes>(from: *const f32) -> S {
        S::load(from)
    }
}

impl Number for bf16 {
    #[inline(always)]
    unsafe fn load<S: Lanes>(from: *const bf16) -> S {
        S::load_bf16(from)
    }
}

/// Sixteen f32 lanes.
///
/// # Safety
///
/// The methods of an implementation may only be called where its instruction set is available, from a function
/// compiled for it (that is what lets them inline).
pub unsafe trait Lanes: Copy {
    /// True if there are registers for 16 accumulators of sixteen lanes (AVX-512) or for half of them.
    const WIDE: bool;
    /// Copies a number to every lane.
    unsafe fn splat(value: f32) -> Self;
    /// Sixteen numbers from memory, any alignment.
    unsafe fn load(from: *const f32) -> Self;
    /// Loads sixteen bf16 values.
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// Sixteen numbers to memory, any alignment.
    unsafe fn store(self, to: *mut f32);
    /// `self * factor + term`, rounded once.
    unsafe fn fma(self, factor: Self, term: Self) -> Self;
    /// Prefetches the cache line of `address` into the second-level cache.
    unsafe fn prefetch(address: *const f32);
}
