//! The value of `--dtype`: the type of the operands of matrix products.

use std::fmt;
use std::str::FromStr;

/// A type of numbers, named as in PyTorch and Hugging Face configurations. Sums are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeDtype {
    /// No rounding; on a CPU only.
    #[default]
    Float32,
    /// 8 bits of significand and the range of f32.
    BFloat16,
    /// 11 bits of significand, at most 65504; on devices only.
    Float16,
}

impl ComputeDtype {
    const ALL: [ComputeDtype; 3] = [ComputeDtype::Float32, ComputeDtype::BFloat16, ComputeDtype::Float16];
    /// The names that [`FromStr`] accepts.
    pub const NAMES: [&str; 3] = ["float32", "bfloat16", "float16"];

    pub fn name(self) -> &'static str {
        ComputeDtype::NAMES[self as usize]
    }
}

impl FromStr for ComputeDtype {
    type Err = String;

    fn from_str(name: &str) -> Result<ComputeDtype, String> {
        let found = ComputeDtype::ALL.into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| format!("{name} is none of {}", ComputeDtype::NAMES.join(", ")))
    }
}

impl fmt::Display for ComputeDtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
