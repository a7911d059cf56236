//! Which instructions this processor has for matrix products.

use std::fmt;
use std::sync::OnceLock;

/// Instructions that a kernel is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// 512-bit vectors with fused multiply-add, and with dot products of pairs of bf16 values.
    Avx512BFloat16,
    /// 512-bit vectors with fused multiply-add.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// Whatever the compiler makes of plain Rust.
    Portable,
}

impl Instructions {
    /// Every variant this processor runs, the fastest first.
    pub fn available() -> Vec<Instructions> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let wide = fused && is_x86_feature_detected!("avx512f");
            if wide && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512bf16") {
                found.push(Instructions::Avx512BFloat16);
            }
            if wide {
                found.push(Instructions::Avx512);
            }
            if fused {
                found.push(Instructions::Avx2);
            }
        }
        found.push(Instructions::Portable);
        found
    }

    /// The fastest variant this processor runs.
    pub fn best() -> Instructions {
        static BEST: OnceLock<Instructions> = OnceLock::new();
        *BEST.get_or_init(|| Instructions::available()[0])
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            Instructions::Avx512BFloat16 => "AVX-512 with bf16",
            Instructions::Avx512 => "AVX-512",
            Instructions::Avx2 => "AVX2",
            Instructions::Portable => "portable",
        })
    }
}
