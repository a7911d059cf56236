//! The types of values that a device computes with.

use std::fmt;

use bytemuck::Pod;
use half::bf16;

/// The type of a value or of a buffer's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// Brain float: the upper half of an f32.
    Bf16,
    /// 32-bit float.
    F32,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
}

impl fmt::Display for Scalar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Scalar::Bf16 => "bf16",
            Scalar::F32 => "f32",
            Scalar::U8 => "u8",
            Scalar::I16 => "i16",
            Scalar::I32 => "i32",
            Scalar::U32 => "u32",
            Scalar::I64 => "i64",
            Scalar::U64 => "u64",
        })
    }
}

/// A value that lies in device memory with the same bytes as here.
pub trait Element: Pod + Send + Sync {
    /// Its type.
    const SCALAR: Scalar;
}

macro_rules! elements {
    ($($type:ty => $scalar:ident),* $(,)?) => {$(
        impl Element for $type {
            const SCALAR: Scalar = Scalar::$scalar;
        }
    )*};
}

elements!(
    bf16 => Bf16, f32 => F32, u8 => U8, i16 => I16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
);
