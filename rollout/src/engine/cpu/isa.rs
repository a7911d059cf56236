//! The kernels compiled once for each instruction set, and the choice between them at run time.

use super::adapters::Part;
use super::attention::{Layer, Tensors, forward};
use super::kernels::{Attend, Keys};
use super::lanes::Number;
use super::portable::Portable;
use super::runner::ForwardContext;
use super::workspace::Workspace;
use super::{adapters, kernels, softmax};
use crate::engine::batch::Batch;
use gemm::{Isa, Precision};
use half::bf16;

/// [`forward`] compiled for an instruction set and a head size.
type Attention = unsafe fn(&mut ForwardContext, &Batch, &Layer, Tensors);

/// The kernels of one instruction set and head size.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// The instruction set's name.
    pub name: &'static str,
    /// [`forward`].
    pub attention: Attention,
    /// [`kernels::swiglu`].
    pub swiglu: unsafe fn(*const f32, *const f32, usize, *mut f32),
    /// [`kernels::geglu`].
    pub geglu: unsafe fn(*const f32, *const f32, usize, *mut f32),
    /// [`adapters::add`].
    pub low_rank: unsafe fn(&Part, usize, *const f32, *mut f32),
    /// [`softmax::largest`].
    pub largest: unsafe fn(&[f32]) -> f32,
    /// [`softmax::tile_sums`].
    pub tile_sums: unsafe fn(&[f32], f32, f32, &mut Vec<f32>),
    /// [`softmax::weights`].
    pub weights: unsafe fn(&[f32], f32, f32, &mut Vec<f32>),
}

impl Kernels {
    /// The kernels of an instruction set for a head size, if compiled. Rare sizes are compiled only in the portable version,
    /// which is slower, to save compile time.
    pub fn of(isa: Isa, head_size: usize) -> Option<Kernels> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512BFloat16 | Isa::Avx512 => avx512::kernels(head_size),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::kernels(head_size),
            _ => portable::kernels(head_size),
        }
    }

    /// The kernels of an instruction set, or the portable ones where it has none for the head size.
    pub fn best(isa: Isa, head_size: usize) -> Option<Kernels> {
        Kernels::of(isa, head_size).or_else(|| Kernels::of(Isa::Portable, head_size))
    }
}

/// One module per instruction set: the generic kernels behind functions that are compiled for it.
macro_rules! compiled {
    ($module:ident, $name:literal, $lanes:ty, [$($size:literal),*] $(, #[$attribute:meta])?) => {
        #[allow(unsafe_op_in_unsafe_fn, reason = "each function promises what the kernel in it does")]
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
                forward::<$lanes, D>(context, batch, layer, tensors, attend)
            }

            $(#[$attribute])?
            unsafe fn attend<K: Number, const D: usize>(work: &mut Workspace, first: usize, rows: usize, keys: Keys) {
                kernels::attend::<$lanes, K, D>(work, first, rows, keys)
            }

            $(#[$attribute])?
            unsafe fn swiglu(gate: *const f32, up: *const f32, count: usize, output: *mut f32) {
                kernels::swiglu::<$lanes>(gate, up, count, output)
            }

            $(#[$attribute])?
            unsafe fn geglu(gate: *const f32, up: *const f32, count: usize, output: *mut f32) {
                kernels::geglu::<$lanes>(gate, up, count, output)
            }

            $(#[$attribute])?
            unsafe fn low_rank(part: &Part, rank: usize, x: *const f32, y: *mut f32) {
                adapters::add::<$lanes>(part, rank, x, y)
            }

            $(#[$attribute])?
            unsafe fn largest(logits: &[f32]) -> f32 {
                softmax::largest::<$lanes>(logits)
            }

            $(#[$attribute])?
            unsafe fn tile_sums(logits: &[f32], shift: f32, scale: f32, sums: &mut Vec<f32>) {
                softmax::tile_sums::<$lanes>(logits, shift, scale, sums)
            }

            $(#[$attribute])?
            unsafe fn weights(logits: &[f32], shift: f32, scale: f32, weights: &mut Vec<f32>) {
                softmax::weights::<$lanes>(logits, shift, scale, weights)
            }

            pub fn kernels(head_size: usize) -> Option<Kernels> {
                let attention: Attention = match head_size {
                    $($size => attention::<$size>,)*
                    _ => return None,
                };
                Some(Kernels { name: $name, attention, swiglu, geglu, low_rank, largest, tile_sums, weights })
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
            assert!(Kernels::best(Isa::best(), head_size).is_some(), "{head_size}");
        }
    }
}
