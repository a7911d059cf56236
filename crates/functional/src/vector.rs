//! Loops compiled for each instruction set, and the reductions and exponential they use.
//!
//! Sums have a fixed number of lanes and a fixed order, and every operation rounds the same on all
//! instruction sets, so results are bit-identical.

/// Compiles a function body for AVX-512, AVX2 and the baseline, and dispatches at run time.
#[macro_export]
macro_rules! vectorized {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $visibility fn $name($($argument: $type),*) {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx512($($argument: $type),*) {
                    body($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx2($($argument: $type),*) {
                    body($($argument),*)
                }
                match $crate::Isa::best() {
                    // SAFETY: the CPU was found to have these instructions.
                    $crate::Isa::Avx512BFloat16 | $crate::Isa::Avx512 => return unsafe {
                        avx512($($argument),*)
                    },
                    // SAFETY: as above.
                    $crate::Isa::Avx2 => return unsafe { avx2($($argument),*) },
                    $crate::Isa::Neon | $crate::Isa::Portable => {}
                }
            }
            body($($argument),*)
        }
    };
}

/// Lanes of every sum.
const LANES: usize = 32;

/// Adds lanes pairwise.
#[inline(always)]
fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `sum_i f(a_i, b_i)` over slices of equal length.
#[inline(always)]
fn sum2(a: &[f32], b: &[f32], f: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] = f(a[lane], b[lane], lanes[lane]);
        }
    }
    for ((&a, &b), lane) in a_rest.iter().zip(b_rest).zip(&mut lanes) {
        *lane = f(a, b, *lane);
    }
    fold(lanes)
}

/// The inner product.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    sum2(a, b, |a, b, sum| a.mul_add(b, sum))
}

/// The largest value, or negative infinity for an empty slice.
#[inline(always)]
pub fn maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for values in chunks {
        for lane in 0..LANES {
            lanes[lane] = if values[lane] > lanes[lane] { values[lane] } else { lanes[lane] };
        }
    }
    for (&value, lane) in rest.iter().zip(&mut lanes) {
        *lane = if value > *lane { value } else { *lane };
    }
    lanes.iter().fold(f32::NEG_INFINITY, |largest, &value| if value > largest { value } else { largest })
}

/// `e^x` to within 2 units in the last place, zero below -87. Uses the polynomial of Cephes' `expf`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    const HIGHEST: f32 = 88.0;
    // Adding and then subtracting 1.5 * 2^23 rounds to the nearest integer, which the
    // low bits of the sum hold.
    const ROUNDER: f32 = 12_582_912.0;
    let clamped = if x < LOWEST { LOWEST } else { x };
    let clamped = if clamped > HIGHEST { HIGHEST } else { clamped };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUNDER);
    let whole = shifted - ROUNDER;
    let rest = whole.mul_add(-0.693_359_4, clamped);
    let rest = whole.mul_add(2.121_944_4e-4, rest);
    let mut series = 1.987_569_1e-4f32;
    series = series.mul_add(rest, 1.398_2e-3);
    series = series.mul_add(rest, 8.333_452e-3);
    series = series.mul_add(rest, 4.166_579_6e-2);
    series = series.mul_add(rest, 1.666_666_5e-1);
    series = series.mul_add(rest, 5e-1);
    let value = (rest * rest).mul_add(series, rest) + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < LOWEST { 0.0 } else { value * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for step in 0..2_000_000 {
            let x = -86.9 + step as f32 * (174.0 / 2_000_000.0);
            let truth = f64::from(x).exp();
            worst = std::cmp::max_by(worst, ((f64::from(exp(x)) - truth) / truth).abs(), f64::total_cmp);
        }
        println!("largest relative error {worst:.2e}");
        assert!(worst < 2.4e-7);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sums_cover_every_length() {
        for length in 0..100 {
            let values: Vec<f32> = (0..length).map(|i| (i as f32 * 0.7).sin()).collect();
            let truth: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            assert!((f64::from(dot(&values, &values)) - truth).abs() <= 1e-5);
            let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(maximum(&values), largest);
        }
    }
}
