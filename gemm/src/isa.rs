//! The instruction sets that micro-kernels are written for.

use std::fmt;
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
