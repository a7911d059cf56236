//! Operand precision, named as in PyTorch and Hugging Face configurations.

use std::fmt;
use std::str::FromStr;

/// The precision that operands are rounded to before they are multiplied. Sums and results are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// No rounding.
    #[default]
    Float32,
    /// 8 bits of significand, to nearest even. Twice as fast on CPUs with bf16 instructions.
    BFloat16,
}

impl Precision {
    /// The names, as [`FromStr`] takes them.
    pub const NAMES: [&str; 2] = ["float32", "bfloat16"];

    /// Its name.
    pub fn name(self) -> &'static str {
        let [single, brain] = Precision::NAMES;
        match self {
            Precision::Float32 => single,
            Precision::BFloat16 => brain,
        }
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Precision, String> {
        let all = [Precision::Float32, Precision::BFloat16];
        let found = all.into_iter().find(|precision| precision.name() == name);
        found.ok_or_else(|| format!("{name} is none of {}", Precision::NAMES.join(", ")))
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
