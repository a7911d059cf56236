//! Chooses the micro-kernel for an instruction set and a precision.

use crate::bf16::RoundedToBf16;
use crate::blocking::{self, Right};
use crate::micro_kernel::{MicroKernel, Word};
use crate::{Isa, Onto, Precision, Scratch, View, portable};
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512};

type Multiply = fn(&mut Scratch, [usize; 3], View, Right, Onto, &mut [f32], usize);
type Buffer = fn([usize; 2]) -> (Vec<Word>, usize);
type PackBand = fn([usize; 2], View, &mut [Word], usize) -> usize;

/// The entry points for one micro-kernel.
#[derive(Clone, Copy)]
pub(crate) struct Dispatch {
    pub multiply: Multiply,
    pub buffer: Buffer,
    pub pack_band: PackBand,
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
