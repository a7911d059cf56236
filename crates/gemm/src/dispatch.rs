//! Instruction sets and precisions, and the micro-kernel for each pair.

use crate::bf16::RoundedToBf16;
use crate::blocking::{self, Right};
use crate::micro_kernel::{MicroKernel, Word};
#[cfg(target_arch = "aarch64")]
use crate::neon;
use crate::{Accumulate, Addend, Scratch, View, ViewMut, portable};
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
#[cfg(target_arch = "x86_64")]
use std::time::Instant;

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// 512-bit vectors with fused multiply-add, and with dot products of pairs of bf16 values.
    Avx512BFloat16,
    /// 512-bit vectors with fused multiply-add.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 128-bit vectors with fused multiply-add: every 64-bit ARM.
    Neon,
    /// Plain Rust.
    Portable,
}

/// The instruction set that [`Isa::select`] chose.
static SELECTED: OnceLock<Isa> = OnceLock::new();

impl Isa {
    /// The names that [`FromStr`] accepts.
    pub const NAMES: [&str; 5] = ["avx512-bf16", "avx512", "avx2", "neon", "portable"];

    pub fn name(self) -> &'static str {
        Isa::NAMES[self as usize]
    }

    /// The instruction sets of this CPU, fastest first.
    pub fn available() -> Vec<Isa> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let wide = fused && is_x86_feature_detected!("avx512f");
            if wide && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512bf16") {
                found.push(Isa::Avx512BFloat16);
            }
            if wide {
                found.push(Isa::Avx512);
            }
            if fused {
                found.push(Isa::Avx2);
            }
        }
        if cfg!(target_arch = "aarch64") {
            found.push(Isa::Neon);
        }
        found.push(Isa::Portable);
        found
    }

    /// Makes this process compute with this instruction set. Must be called before the first computation.
    ///
    /// # Errors
    /// This CPU does not have it, or another one was selected before.
    pub fn select(self) -> Result<(), String> {
        let available = Isa::available();
        if !available.contains(&self) {
            let names: Vec<&str> = available.into_iter().map(Isa::name).collect();
            return Err(format!("this processor has no {}, only {}", self.name(), names.join(", ")));
        }
        let selected = *SELECTED.get_or_init(|| self);
        if selected == self { Ok(()) } else { Err(format!("this process computes with {selected} already")) }
    }

    /// The [selected](Isa::select) instruction set, or else the fastest of this CPU.
    pub fn best() -> Isa {
        static FASTEST: OnceLock<Isa> = OnceLock::new();
        SELECTED.get().copied().unwrap_or_else(|| *FASTEST.get_or_init(|| Isa::available()[0]))
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Isa, String> {
        let all = [Isa::Avx512BFloat16, Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];
        let found = all.into_iter().find(|isa| isa.name() == name);
        found.ok_or_else(|| format!("{name} is none of {}", Isa::NAMES.join(", ")))
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The precision to which operands are rounded before they are multiplied, named as in PyTorch and Hugging
/// Face configurations. Sums and results are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// No rounding.
    #[default]
    Float32,
    /// 8 bits of significand, rounded to nearest even. Twice as fast on CPUs with fast bf16 dot products.
    BFloat16,
}

impl Precision {
    /// The names that [`FromStr`] accepts.
    pub const NAMES: [&str; 2] = ["float32", "bfloat16"];

    pub fn name(self) -> &'static str {
        Precision::NAMES[self as usize]
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Precision, String> {
        let found = [Precision::Float32, Precision::BFloat16].into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| format!("{name} is none of {}", Precision::NAMES.join(", ")))
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The entry points for one micro-kernel.
#[derive(Clone, Copy)]
pub(crate) struct Dispatch {
    pub multiply: fn(&mut Scratch, [usize; 3], View, Right, Addend, ViewMut),
    /// [`blocking::packed_buffer`].
    pub buffer: fn([usize; 2]) -> (Vec<Word>, usize),
    pub pack_band: fn([usize; 2], View, &mut [Word], usize) -> usize,
}

impl Dispatch {
    pub(crate) fn of(isa: Isa, precision: Precision) -> Dispatch {
        use Precision::{BFloat16, Float32};
        match (isa, precision) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512BFloat16, BFloat16) if pairs_are_faster() => Dispatch::with::<avx512::Pairs>(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512BFloat16 | Isa::Avx512, Float32) => Dispatch::with::<avx512::Single>(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512BFloat16 | Isa::Avx512, BFloat16) => {
                Dispatch::with::<RoundedToBf16<avx512::Single>>()
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, Float32) => Dispatch::with::<avx2::Avx2>(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, BFloat16) => Dispatch::with::<RoundedToBf16<avx2::Avx2>>(),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon, Float32) => Dispatch::with::<neon::Neon>(),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon, BFloat16) => Dispatch::with::<RoundedToBf16<neon::Neon>>(),
            (_, Float32) => Dispatch::with::<portable::Portable>(),
            (_, BFloat16) => Dispatch::with::<RoundedToBf16<portable::Portable>>(),
        }
    }

    /// The kernel for a right operand stored in upper halves; `None` if no kernel supports that.
    pub(crate) fn of_halves(isa: Isa, precision: Precision) -> Option<Dispatch> {
        match (isa, precision) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512BFloat16 | Isa::Avx512, Precision::Float32) => {
                Some(Dispatch::with::<avx512::Halves>())
            }
            _ => None,
        }
    }

    fn with<K: MicroKernel>() -> Dispatch {
        Dispatch {
            multiply: blocking::multiply::<K>,
            buffer: blocking::packed_buffer::<K>,
            pack_band: blocking::pack_band::<K>,
        }
    }
}

/// Returns true if bf16 dot products are faster than f32 arithmetic on rounded values; both give the
/// same bits. Some cores issue one bf16 dot product in the time of two or four f32 instructions.
/// Measured once, in a millisecond.
#[cfg(target_arch = "x86_64")]
fn pairs_are_faster() -> bool {
    static FASTER: OnceLock<bool> = OnceLock::new();
    *FASTER.get_or_init(|| {
        let extent @ [rows, columns, inner] = [56, 256, 256];
        let (a, b, mut c) = (vec![1.0; rows * inner], vec![1.0; inner * columns], vec![0.0; rows * columns]);
        let mut scratch = Scratch::new(Isa::Avx512BFloat16);
        let mut fastest = |dispatch: Dispatch| {
            let mut seconds = || {
                let (a, b) = (View::new(&a, inner), Right::Strided(View::new(&b, columns)));
                let started = Instant::now();
                (dispatch.multiply)(
                    &mut scratch,
                    extent,
                    a,
                    b,
                    Accumulate::Zero.after(),
                    ViewMut::new(&mut c, columns),
                );
                started.elapsed()
            };
            (0..5).map(|_| seconds()).min()
        };
        let rounded = fastest(Dispatch::with::<RoundedToBf16<avx512::Single>>());
        fastest(Dispatch::with::<avx512::Pairs>()) <= rounded
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Both choices must give the same bits.
    #[test]
    fn pairs_and_rounded_values_give_the_same_bits() {
        if !Isa::available().contains(&Isa::Avx512BFloat16) {
            troupe_tests::skip!("this processor has no bf16 instructions");
        }
        let mut scratch = Scratch::new(Isa::Avx512BFloat16);
        for extent @ [rows, columns, inner] in [[1, 1, 1], [29, 48, 41], [15, 33, 769], [40, 64, 2000]] {
            let values = |count: usize, factor: usize| -> Vec<f32> {
                (0..count).map(|at| ((at * factor) % 1009) as f32 / 504.0 - 1.0).collect()
            };
            let (a, b) = (values(rows * inner, 617), values(inner * columns, 421));
            let mut product = |dispatch: Dispatch| {
                let mut c = vec![0.0; rows * columns];
                let (a, b) = (View::new(&a, inner), Right::Strided(View::new(&b, columns)));
                (dispatch.multiply)(
                    &mut scratch,
                    extent,
                    a,
                    b,
                    Accumulate::Zero.after(),
                    ViewMut::new(&mut c, columns),
                );
                c.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let pairs = product(Dispatch::with::<avx512::Pairs>());
            assert!(pairs == product(Dispatch::with::<RoundedToBf16<avx512::Single>>()), "{extent:?}");
        }
        println!("pairs are faster here: {}", pairs_are_faster());
    }
}
