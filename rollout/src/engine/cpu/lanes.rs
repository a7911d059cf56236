//! Sixteen f32 at a time: the one vector type that every kernel of the engine is written with.
//!
//! Kernels are generic over [`Lanes`] and compiled once for each instruction set; which one runs is decided when the
//! engine is loaded. Every operation is defined lane by lane and reductions fold in one fixed order, so AVX-512 and
//! AVX2 give the same bits; the portable build does too where the target has a fused multiply-add.

#![allow(unsafe_op_in_unsafe_fn, reason = "every method promises what the others do")]

use half::bf16;

/// A type that keys and values are stored in.
pub trait Number: Copy {
    /// Sixteen of them from memory, any alignment.
    ///
    /// # Safety
    ///
    /// As for every method of [`Lanes`].
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
    /// Whether there are registers for 16 accumulators of sixteen lanes (AVX-512) or for half of them.
    const WIDE: bool;
    /// The same number in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// Sixteen numbers from memory, any alignment.
    unsafe fn load(from: *const f32) -> Self;
    /// The same of bf16 numbers.
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// Sixteen numbers to memory, any alignment.
    unsafe fn store(self, to: *mut f32);
    /// `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// `self - other`.
    unsafe fn sub(self, other: Self) -> Self;
    /// `self * other`.
    unsafe fn mul(self, other: Self) -> Self;
    /// `self / other`.
    unsafe fn div(self, other: Self) -> Self;
    /// The larger of both; `other` where either is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once.
    unsafe fn fma(self, factor: Self, term: Self) -> Self;
    /// Rounded to the nearest whole number, ties to even.
    unsafe fn round(self) -> Self;
    /// 2 to the power of `self`, which holds whole numbers in -126..=127.
    unsafe fn two_to(self) -> Self;
    /// Prefetches the cache line of `address` into the second-level cache.
    unsafe fn prefetch(address: *const f32);

    /// The lanes as an array.
    #[inline(always)]
    unsafe fn array(self) -> [f32; 16] {
        let mut lanes = [0.0; 16];
        self.store(lanes.as_mut_ptr());
        lanes
    }

    /// The sum of the lanes: halves are added until one is left.
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut lanes = self.array();
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
        }
        lanes[0]
    }

    /// The largest lane; NaN is skipped or returned.
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        let mut lanes = self.array();
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                lanes[lane] =
                    if lanes[lane] > lanes[lane + width] { lanes[lane] } else { lanes[lane + width] };
            }
        }
        lanes[0]
    }

    /// e to the power of each lane, within 2 units in the last place; 0 below -87.3, so that no denormal appears.
    /// For arguments up to 88. NaN stays NaN. (Range reduction and polynomial of the Cephes library's `expf`.)
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        let low = Self::splat(LOWEST_EXPONENT);
        let x = low.max(self);
        let whole = x.mul(Self::splat(std::f32::consts::LOG2_E)).round();
        let rest = whole.fma(Self::splat(-0.693_359_4), x);
        let rest = whole.fma(Self::splat(2.121_944_4e-4), rest);
        let mut sum = Self::splat(1.987_569_1e-4);
        for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            sum = sum.fma(rest, Self::splat(coefficient));
        }
        let value = sum.fma(rest.mul(rest), rest.add(Self::splat(1.0))).mul(whole.two_to());
        value.zero_where_below(self, low)
    }

    /// 0 where `argument` is below `bound`, else `self`.
    unsafe fn zero_where_below(self, argument: Self, bound: Self) -> Self;
}

/// Below it [`Lanes::exp`] gives 0: e to this power is still a normal number.
pub const LOWEST_EXPONENT: f32 = -87.3;
