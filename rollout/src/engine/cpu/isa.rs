//! The kernels of attention compiled once for each instruction set, and the choice between them at run time.

use super::attention::Passes;
use super::kernels::{self, Keys};
use super::lanes::Number;
use super::portable::Portable;
use super::workspace::Workspace;
use gemm::{Isa, Precision};
use half::bf16;

/// The kernels of one instruction set.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// The instruction set's name.
    pub name: &'static str,
    float32: Passes,
    bfloat16: Passes,
}

impl Kernels {
    /// The kernels of an instruction set, which must be available.
    pub fn of(isa: Isa) -> Kernels {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512BFloat16 | Isa::Avx512 => avx512::kernels(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::kernels(),
            _ => portable::kernels(),
        }
    }

    /// The passes over keys and values that are stored in a precision.
    pub fn passes(&self, precision: Precision) -> Passes {
        match precision {
            Precision::Float32 => self.float32,
            Precision::BFloat16 => self.bfloat16,
        }
    }
}

/// One module per instruction set: the generic kernels behind functions that are compiled for it.
macro_rules! compiled {
    ($module:ident, $name:literal, $lanes:ty $(, #[$attribute:meta])?) => {
        #[allow(unsafe_op_in_unsafe_fn, reason = "each function promises what the kernel in it does")]
        mod $module {
            use super::*;

            $(#[$attribute])?
            unsafe fn score<K: Number>(work: &mut Workspace, first: usize, rows: usize, keys: Keys) {
                kernels::score_keys::<$lanes, K>(work, first, rows, keys)
            }

            $(#[$attribute])?
            unsafe fn add<K: Number>(work: &mut Workspace, first: usize, rows: usize, keys: Keys) {
                kernels::add_values::<$lanes, K>(work, first, rows, keys)
            }

            pub fn kernels() -> Kernels {
                let float32 = Passes { score: score::<f32>, add: add::<f32> };
                let bfloat16 = Passes { score: score::<bf16>, add: add::<bf16> };
                Kernels { name: $name, float32, bfloat16 }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
compiled!(avx512, "AVX-512", crate::engine::cpu::x86::Avx512, #[target_feature(enable = "avx512f,avx2,fma")]);
#[cfg(target_arch = "x86_64")]
compiled!(avx2, "AVX2", crate::engine::cpu::x86::Avx2, #[target_feature(enable = "avx2,fma")]);
compiled!(portable, "portable", Portable);
