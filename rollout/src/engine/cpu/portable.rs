//! [`Lanes`] in plain Rust, for every target without a special version (on aarch64 it compiles to NEON).

#![allow(unsafe_op_in_unsafe_fn, reason = "`Lanes` says once what callers promise")]

use super::lanes::Lanes;
use half::bf16;

/// Sixteen lanes as an array; the compiler makes vectors of the loops.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Portable([f32; 16]);

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
    unsafe fn fma(self, factor: Self, mut term: Self) -> Self {
        for lane in 0..16 {
            term.0[lane] = multiply_add(self.0[lane], factor.0[lane], term.0[lane]);
        }
        term
    }

    #[inline(always)]
    unsafe fn prefetch(_address: *const f32) {}
}
