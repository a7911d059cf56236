//! [`Lanes`] for x86-64: AVX-512, and AVX2 with FMA as two registers of eight.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "every line is an intrinsic; `Lanes` says once what callers promise"
)]

use super::lanes::Lanes;
use half::bf16;
use std::arch::x86_64::*;

/// One AVX-512 register.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

/// Two AVX2 registers.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

// SAFETY: used only behind a run-time check for AVX-512F (see `isa::Isa`).
unsafe impl Lanes for Avx512 {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Avx512(_mm512_set1_ps(value))
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Avx512(_mm512_loadu_ps(from))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // A bf16 is the upper half of an f32.
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        _mm512_storeu_ps(to, self.0)
    }

    #[inline(always)]
    unsafe fn fma(self, factor: Self, term: Self) -> Self {
        Avx512(_mm512_fmadd_ps(self.0, factor.0, term.0))
    }

    #[inline(always)]
    unsafe fn prefetch(address: *const f32) {
        _mm_prefetch::<_MM_HINT_T1>(address.cast())
    }
}

// SAFETY: used only behind a run-time check for AVX2 and FMA (see `isa::Isa`).
unsafe impl Lanes for Avx2 {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Avx2(_mm256_set1_ps(value), _mm256_set1_ps(value))
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Avx2(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8)))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
        Avx2(
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
        )
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        _mm256_storeu_ps(to, self.0);
        _mm256_storeu_ps(to.add(8), self.1);
    }

    #[inline(always)]
    unsafe fn fma(self, factor: Self, term: Self) -> Self {
        Avx2(_mm256_fmadd_ps(self.0, factor.0, term.0), _mm256_fmadd_ps(self.1, factor.1, term.1))
    }

    #[inline(always)]
    unsafe fn prefetch(address: *const f32) {
        _mm_prefetch::<_MM_HINT_T1>(address.cast())
    }
}
