//! [`Lanes`] in plain Rust, for every target without a version of its own (aarch64 compiles it to NEON).

#![allow(unsafe_op_in_unsafe_fn, reason = "`Lanes` says once what callers promise")]

use super::lanes::Lanes;
use half::bf16;

/// Sixteen lanes as an array; the compiler makes vectors of the loops.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Portable([f32; 16]);

impl Portable {
    #[inline(always)]
    fn map(mut self, other: Self, operation: impl Fn(f32, f32) -> f32) -> Self {
        for (lane, other) in self.0.iter_mut().zip(other.0) {
            *lane = operation(*lane, other);
        }
        self
    }
}

/// Fused where the target has the instruction; a call into the C library for each lane would be far slower than both.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
}

// SAFETY: plain Rust, available everywhere.
unsafe impl Lanes for Portable {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Portable([value; 16])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Portable(from.cast::<[f32; 16]>().read_unaligned())
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        let halves = from.cast::<[u16; 16]>().read_unaligned();
        Portable(halves.map(|half| f32::from_bits(u32::from(half) << 16)))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        to.cast::<[f32; 16]>().write_unaligned(self.0)
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.map(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.map(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.map(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.map(other, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.map(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn fma(self, factor: Self, mut term: Self) -> Self {
        for lane in 0..16 {
            term.0[lane] = multiply_add(self.0[lane], factor.0[lane], term.0[lane]);
        }
        term
    }

    #[inline(always)]
    unsafe fn round(mut self) -> Self {
        // Adding 1.5 * 2^23 leaves no bits for a fraction: the processor's own rounding, without a library call.
        const SHIFT: f32 = 12_582_912.0;
        for lane in &mut self.0 {
            *lane = (*lane + SHIFT) - SHIFT;
        }
        self
    }

    #[inline(always)]
    unsafe fn two_to(mut self) -> Self {
        for lane in &mut self.0 {
            *lane = f32::from_bits(((*lane as i32 + 127) << 23) as u32);
        }
        self
    }

    #[inline(always)]
    unsafe fn prefetch(_address: *const f32) {}

    #[inline(always)]
    unsafe fn zero_where_below(mut self, argument: Self, bound: Self) -> Self {
        for lane in 0..16 {
            self.0[lane] = if argument.0[lane] < bound.0[lane] { 0.0 } else { self.0[lane] };
        }
        self
    }
}
