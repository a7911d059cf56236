//! The kernels compiled once for each instruction set, and the choice between them at run time.

use super::adapters::Part;
use super::attention::{Layer, Tensors, forward};
use super::context::ForwardContext;
use super::kernels::{Attend, Keys};
use super::lanes::Number;
use super::portable::Portable;
use super::workspace::Workspace;
use super::{adapters, kernels, softmax};
use crate::engine::batch::Batch;
use gemm::Precision;
use half::bf16;

/// The kernels of one instruction set and head size.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// The instruction set's name.
    pub name: &'static str,
    /// [`forward`].
    pub attention: unsafe fn(&mut ForwardContext, &Batch, &Layer, Tensors),
    /// [`kernels::swiglu`].
    pub swiglu: unsafe fn(*const f32, *const f32, usize, *mut f32),
    /// [`adapters::add`].
    pub low_rank: unsafe fn(&Part, usize, *const f32, *mut f32),
    /// [`softmax::largest`].
    pub largest: unsafe fn(&[f32]) -> f32,
    /// [`softmax::tile_sums`].
    pub tile_sums: unsafe fn(&[f32], f32, f32, &mut Vec<f32>),
    /// [`softmax::weights`].
    pub weights: unsafe fn(&[f32], f32, f32, &mut Vec<f32>),
}

/// Instruction sets that the kernels are compiled for, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What every processor of the target has.
    Portable,
}

impl Isa {
    /// The best kernels on this processor for a head size.
    pub fn best(head_size: usize) -> Option<Kernels> {
        Isa::available().into_iter().find_map(|isa| isa.kernels(head_size))
    }

    /// The instruction sets of this processor, best first.
    pub fn available() -> Vec<Isa> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
                found.push(Isa::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                found.push(Isa::Avx2);
            }
        }
        found.push(Isa::Portable);
        found
    }

    /// The kernels for a head size, if compiled. Rare sizes are compiled only in the portable version, which is slower, to
    /// save compile time.
    pub fn kernels(self, head_size: usize) -> Option<Kernels> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::kernels(head_size),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::kernels(head_size),
            Isa::Portable => portable::kernels(head_size),
        }
    }
}

/// One module per instruction set: the generic kernels behind functions that are compiled for it.
macro_rules! compiled {
    ($module:ident, $name:literal, $lanes:ty, [$($size:literal),*] $(, #[$attribute:meta])?) => {
        mod $module {
            use super::*;

            $(#[$attribute])?
            unsafe fn attention<const D: usize>(
                context: &mut ForwardContext,
                batch: &Batch,
                layer: &Layer,
                tensors: Tensors,
            ) {
                let attend: Attend = match context.kv.layout().precision {
                    Precision::Float32 => attend::<f32, D>,
                    Precision::BFloat16 => attend::<bf16, D>,
                };
                // SAFETY: the caller checked the instruction set; the rest is its promise.
                unsafe { forward::<$lanes, D>(context, batch, layer, tensors, attend) }
            }

            $(#[$attribute])?
            unsafe fn attend<K: Number, const D: usize>(
                work: &mut Workspace,
                first: usize,
                rows: usize,
                keys: Keys,
            ) {
                // SAFETY: as above.
                unsafe { kernels::attend::<$lanes, K, D>(work, first, rows, keys) }
            }

            $(#[$attribute])?
            unsafe fn swiglu(gate: *const f32, up: *const f32, count: usize, output: *mut f32) {
                // SAFETY: as above.
                unsafe { kernels::swiglu::<$lanes>(gate, up, count, output) }
            }

            $(#[$attribute])?
            unsafe fn low_rank(part: &Part, rank: usize, x: *const f32, y: *mut f32) {
                // SAFETY: as above.
                unsafe { adapters::add::<$lanes>(part, rank, x, y) }
            }

            $(#[$attribute])?
            unsafe fn largest(logits: &[f32]) -> f32 {
                // SAFETY: as above.
                unsafe { softmax::largest::<$lanes>(logits) }
            }

            $(#[$attribute])?
            unsafe fn tile_sums(logits: &[f32], shift: f32, scale: f32, sums: &mut Vec<f32>) {
                // SAFETY: as above.
                unsafe { softmax::tile_sums::<$lanes>(logits, shift, scale, sums) }
            }

            $(#[$attribute])?
            unsafe fn weights(logits: &[f32], shift: f32, scale: f32, weights: &mut Vec<f32>) {
                // SAFETY: as above.
                unsafe { softmax::weights::<$lanes>(logits, shift, scale, weights) }
            }

            pub fn kernels(head_size: usize) -> Option<Kernels> {
                let attention: unsafe fn(&mut ForwardContext, &Batch, &Layer, Tensors) = match head_size {
                    $($size => attention::<$size>,)*
                    _ => return None,
                };
                Some(Kernels { name: $name, attention, swiglu, low_rank, largest, tile_sums, weights })
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
compiled!(avx512, "AVX-512", crate::engine::cpu::x86::Avx512, [16, 32, 64, 96, 128], #[target_feature(enable = "avx512f,avx2,fma")]);
#[cfg(target_arch = "x86_64")]
compiled!(avx2, "AVX2", crate::engine::cpu::x86::Avx2, [16, 32, 64, 96, 128], #[target_feature(enable = "avx2,fma")]);
compiled!(
    portable,
    "portable",
    Portable,
    [16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256]
);

#[cfg(test)]
mod tests {
    use super::*;

    /// What `policy::config` lets through: multiples of 16 up to 256.
    #[test]
    fn every_head_size_that_a_configuration_may_have_can_be_run() {
        for head_size in (16..=policy::config::LARGEST_HEAD).step_by(16) {
            assert!(Isa::best(head_size).is_some(), "{head_size}");
        }
    }
}
