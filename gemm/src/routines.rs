//! From instructions and a precision to the kernel that is written for them.

use crate::blocks::{self, Right};
use crate::kernel::{Kernel, Word};
use crate::rounded::Rounded;
use crate::{Instructions, Onto, Precision, Scratch, View, portable};
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512};

type Multiply = fn(&mut Scratch, [usize; 3], View, Right, Onto, &mut [f32], usize);
type Room = fn([usize; 2]) -> (Vec<Word>, usize);
type PackBand = fn([usize; 2], View, &mut [Word], usize) -> usize;

/// What one kernel can be asked for.
#[derive(Clone, Copy)]
pub(crate) struct Routines {
    pub multiply: Multiply,
    pub room: Room,
    pub pack_band: PackBand,
}

impl Routines {
    pub(crate) fn of(instructions: Instructions, precision: Precision) -> Routines {
        use Precision::{BFloat16, Float32};
        match (instructions, precision) {
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx512BFloat16, BFloat16) => Routines::with::<avx512::Pairs>(),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx512BFloat16 | Instructions::Avx512, Float32) => {
                Routines::with::<avx512::Single>()
            }
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx512, BFloat16) => Routines::with::<Rounded<avx512::Single>>(),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx2, Float32) => Routines::with::<avx2::Avx2>(),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx2, BFloat16) => Routines::with::<Rounded<avx2::Avx2>>(),
            (_, Float32) => Routines::with::<portable::Portable>(),
            (_, BFloat16) => Routines::with::<Rounded<portable::Portable>>(),
        }
    }

    fn with<K: Kernel>() -> Routines {
        Routines {
            multiply: blocks::multiply::<K>,
            room: blocks::room::<K>,
            pack_band: blocks::pack_band::<K>,
        }
    }
}
