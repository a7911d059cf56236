//! The element types of device memory.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

/// A value with the same bytes in device and host memory.
pub trait Element: Pod + Send + Sync {
    /// Its run-time type.
    const SCALAR: Scalar;
}

macro_rules! scalars {
    ($($(#[$doc:meta])* $scalar:ident => $type:ident),* $(,)?) => {
        /// The type of a value or of a buffer's values, at run time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Scalar {
            $($(#[$doc])* $scalar),*
        }

        impl Scalar {
            /// Bytes of a value.
            pub fn bytes(self) -> usize {
                match self {
                    $(Scalar::$scalar => size_of::<$type>()),*
                }
            }
        }

        impl fmt::Display for Scalar {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(match self {
                    $(Scalar::$scalar => stringify!($type)),*
                })
            }
        }

        $(impl Element for $type {
            const SCALAR: Scalar = Scalar::$scalar;
        })*
    };
}

scalars!(
    /// Brain float: the upper half of an f32.
    Bf16 => bf16,
    /// IEEE half: 11 bits of significand, at most 65504.
    F16 => f16,
    /// 32-bit float.
    F32 => f32,
    /// Unsigned 8-bit integer.
    U8 => u8,
    /// Signed 16-bit integer.
    I16 => i16,
    /// Signed 32-bit integer.
    I32 => i32,
    /// Unsigned 32-bit integer.
    U32 => u32,
    /// Signed 64-bit integer.
    I64 => i64,
    /// Unsigned 64-bit integer.
    U64 => u64,
);
