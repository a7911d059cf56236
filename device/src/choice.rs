//! `--device`: what the user asks for, the same words in every stage.

use std::fmt;
use std::str::FromStr;

use record::failure::{Failure, Result};

/// Where the arithmetic is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Choice {
    /// This machine's processor, with code written for it.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by its number.
    Cuda(u32),
    /// The CUDA kernels on this machine's processor.
    Sim,
}

impl Choice {
    /// What `--help` says about `--device`.
    pub const HELP: &str = "cpu, cuda, cuda:N (the N-th NVIDIA GPU), or sim: the CUDA kernels run on the CPU, far too \
                            slow for work, for tests and debugging";

    /// What a flag's value means.
    ///
    /// # Errors
    /// Usage (exit 2) for anything else.
    pub fn parse(flag: &str, text: &str) -> Result<Self> {
        text.parse().map_err(|()| {
            Failure::usage(format!("{flag} {text}: not a device"))
                .hint("devices are cpu, cuda, cuda:N and sim")
        })
    }
}

impl FromStr for Choice {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "cpu" => Ok(Choice::Cpu),
            "sim" => Ok(Choice::Sim),
            "cuda" => Ok(Choice::Cuda(0)),
            _ => match text.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(number)) => Ok(Choice::Cuda(number)),
                _ => Err(()),
            },
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Cpu => formatter.write_str("cpu"),
            Choice::Cuda(number) => write!(formatter, "cuda:{number}"),
            Choice::Sim => formatter.write_str("sim"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_nothing_else() {
        for (text, choice) in [
            ("cpu", Choice::Cpu),
            ("cuda", Choice::Cuda(0)),
            ("cuda:3", Choice::Cuda(3)),
            ("sim", Choice::Sim),
        ] {
            assert_eq!(Choice::parse("--device", text), Ok(choice));
        }
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "cuda0"] {
            let failure = Choice::parse("--device", text).unwrap_err();
            assert_eq!(failure.code, record::failure::USAGE, "{text}");
        }
    }
}
