//! Instruction sets and precisions, and the micro-kernel for each pair.

use crate::bf16::RoundedToBf16;
use crate::blocking::{self, Right};
use crate::micro_kernel::{MicroKernel, Word};
use crate::{Onto, Scratch, View, ViewMut, portable};
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// 512-bit vectors with fused multiply-add, and with dot products of pairs of bf16 values.
    Avx512BFloat16,
    /// 512-bit vectors with fused multiply-add.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// Plain Rust.
    Portable,
}

impl Isa {
    /// Those that this CPU has, the fastest first.
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
        found.push(Isa::Portable);
        found
    }

    /// The fastest that this CPU has.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::available()[0])
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            Isa::Avx512BFloat16 => "AVX-512 with bf16",
            Isa::Avx512 => "AVX-512",
            Isa::Avx2 => "AVX2",
            Isa::Portable => "portable",
        })
    }
}

/// The precision that operands are rounded to before they are multiplied, named as in PyTorch and Hugging Face
/// configurations. Sums and results are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// No rounding.
    #[default]
    Float32,
    /// 8 bits of significand, to nearest even. Twice as fast on CPUs with bf16 instructions.
    BFloat16,
}

impl Precision {
    /// The names, as [`FromStr`] takes them.
    pub const NAMES: [&str; 2] = ["float32", "bfloat16"];

    /// Its name.
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
    /// [`blocking::multiply`].
    pub multiply: fn(&mut Scratch, [usize; 3], View, Right, Onto, ViewMut),
    /// [`blocking::packed_buffer`].
    pub buffer: fn([usize; 2]) -> (Vec<Word>, usize),
    /// [`blocking::pack_band`].
    pub pack_band: fn([usize; 2], View, &mut [Word], usize) -> usize,
}

impl Dispatch {
    pub(crate) fn of(isa: Isa, precision: Precision) -> Dispatch {
        use Precision::{BFloat16, Float32};
        match (isa, precision) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512BFloat16, BFloat16) => Dispatch::with::<avx512::Pairs>(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512BFloat16 | Isa::Avx512, Float32) => Dispatch::with::<avx512::Single>(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, BFloat16) => Dispatch::with::<RoundedToBf16<avx512::Single>>(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, Float32) => Dispatch::with::<avx2::Avx2>(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, BFloat16) => Dispatch::with::<RoundedToBf16<avx2::Avx2>>(),
            (_, Float32) => Dispatch::with::<portable::Portable>(),
            (_, BFloat16) => Dispatch::with::<RoundedToBf16<portable::Portable>>(),
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
