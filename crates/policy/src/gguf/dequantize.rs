//! The formats of a GGUF file's weights, as f32.
//!
//! A format stores blocks of 32 or 256 values with common scales; each function reads one block. Layouts as
//! in llama.cpp's `ggml-common.h`; operations in the order of the `gguf` Python package, so that every f32
//! has the same bits. Left out: formats of code words for several values (IQ1 to IQ3), ternary formats, and
//! formats of activations.

use half::bf16;
use record::failure::{Failure, Result};

use super::few_bits::{array, iq4_nl, iq4_xs, mxfp4, nibble, q2_k, q3_k, scale};

/// How a tensor's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

/// Formats that are not read, by number, for messages.
const OTHERS: [(u32, &str); 18] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl Format {
    pub(super) fn of(number: u32, tensor: &str) -> Result<Format> {
        Ok(match number {
            0 => Format::F32,
            1 => Format::F16,
            2 => Format::Q4_0,
            3 => Format::Q4_1,
            6 => Format::Q5_0,
            7 => Format::Q5_1,
            8 => Format::Q8_0,
            10 => Format::Q2K,
            11 => Format::Q3K,
            12 => Format::Q4K,
            13 => Format::Q5K,
            14 => Format::Q6K,
            20 => Format::Iq4Nl,
            23 => Format::Iq4Xs,
            30 => Format::BF16,
            39 => Format::Mxfp4,
            other => {
                let named = OTHERS.iter().find(|(number, _)| *number == other);
                let name = named.map_or_else(|| format!("type {other}"), |(_, name)| (*name).to_owned());
                return Err(Failure::data(format!("tensor {tensor:?} is {name}, which is not read")).hint(
                    "take a file of F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0, IQ4_NL, IQ4_XS, MXFP4, Q3_K or Q2_K",
                ));
            }
        })
    }

    pub(super) fn values(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => 32,
            Format::Iq4Nl | Format::Mxfp4 => 32,
            Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K | Format::Iq4Xs => 256,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q4_0 => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q8_0 => 34,
            Format::Q2K => 84,
            Format::Q3K => 110,
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
            Format::Iq4Nl => 18,
            Format::Iq4Xs => 136,
            Format::Mxfp4 => 17,
        }
    }

    /// Whole blocks as f32.
    pub(super) fn dequantize(self, bytes: &[u8], values: &mut [f32]) {
        let block: fn(&[u8], &mut [f32]) = match self {
            Format::F32 => |bytes, values| values[0] = f32::from_le_bytes(array(bytes)),
            Format::F16 => |bytes, values| values[0] = scale(bytes, 0),
            Format::BF16 => |bytes, values| values[0] = bf16::from_le_bytes(array(bytes)).to_f32(),
            Format::Q4_0 => q4_0,
            Format::Q4_1 => q4_1,
            Format::Q5_0 => q5_0,
            Format::Q5_1 => q5_1,
            Format::Q8_0 => q8_0,
            Format::Q2K => q2_k,
            Format::Q3K => q3_k,
            Format::Q4K => q4_k,
            Format::Q5K => q5_k,
            Format::Q6K => q6_k,
            Format::Iq4Nl => iq4_nl,
            Format::Iq4Xs => iq4_xs,
            Format::Mxfp4 => mxfp4,
        };
        let blocks = bytes.chunks_exact(self.bytes()).zip(values.chunks_exact_mut(self.values()));
        blocks.for_each(|(bytes, values)| block(bytes, values));
    }
}

/// With a fifth bit from a word of 32.
fn five_bits(high: &[u8], quants: &[u8], index: usize) -> u8 {
    nibble(quants, index) | (high[index / 8] >> (index % 8) & 1) << 4
}

fn q4_0(block: &[u8], values: &mut [f32]) {
    let d = scale(block, 0);
    for (index, value) in values.iter_mut().enumerate() {
        *value = d * (f32::from(nibble(&block[2..], index)) - 8.0);
    }
}

fn q4_1(block: &[u8], values: &mut [f32]) {
    let (d, least) = (scale(block, 0), scale(block, 2));
    for (index, value) in values.iter_mut().enumerate() {
        *value = d * f32::from(nibble(&block[4..], index)) + least;
    }
}

fn q5_0(block: &[u8], values: &mut [f32]) {
    let d = scale(block, 0);
    for (index, value) in values.iter_mut().enumerate() {
        *value = d * (f32::from(five_bits(&block[2..], &block[6..], index)) - 16.0);
    }
}

fn q5_1(block: &[u8], values: &mut [f32]) {
    let (d, least) = (scale(block, 0), scale(block, 2));
    for (index, value) in values.iter_mut().enumerate() {
        *value = d * f32::from(five_bits(&block[4..], &block[8..], index)) + least;
    }
}

fn q8_0(block: &[u8], values: &mut [f32]) {
    let d = scale(block, 0);
    for (value, &quant) in values.iter_mut().zip(&block[2..]) {
        *value = f32::from(quant as i8) * d;
    }
}

/// Scale and minimum of the `part`-th 32 values, six bits each, packed into twelve bytes.
fn six_bits(scales: &[u8], part: usize) -> (f32, f32) {
    let (scale, least) = match part {
        0..4 => (scales[part] & 63, scales[part + 4] & 63),
        _ => (
            scales[part + 4] & 15 | scales[part - 4] >> 6 << 4,
            scales[part + 4] >> 4 | scales[part] >> 6 << 4,
        ),
    };
    (f32::from(scale), f32::from(least))
}

fn q4_k(block: &[u8], values: &mut [f32]) {
    k_quants(block, &block[16..], |_, _| 0, values);
}

fn q5_k(block: &[u8], values: &mut [f32]) {
    let high = &block[16..48];
    k_quants(block, &block[48..], |part, index| (high[index] >> part & 1) << 4, values);
}

/// Eight parts of 32 values, two in the halves of 32 bytes; `high` has each value's fifth bit.
fn k_quants(block: &[u8], quants: &[u8], high: impl Fn(usize, usize) -> u8, values: &mut [f32]) {
    let (d, least) = (scale(block, 0), scale(block, 2));
    for (part, values) in values.chunks_exact_mut(32).enumerate() {
        let (own, own_least) = six_bits(&block[4..16], part);
        let (d, least) = (d * own, least * own_least);
        for (index, value) in values.iter_mut().enumerate() {
            let quant = quants[part / 2 * 32 + index] >> (part % 2 * 4) & 15 | high(part, index);
            *value = d * f32::from(quant) - least;
        }
    }
}

/// Two halves of 128 values: four bits in the halves of 64 bytes, two more in the quarters of 32; a scale for each 16.
fn q6_k(block: &[u8], values: &mut [f32]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], scale(block, 208));
    for (index, value) in values.iter_mut().enumerate() {
        let (half, at) = (index / 128, index % 128);
        let four = low[half * 64 + at % 64] >> (at / 64 * 4) & 15;
        let two = high[half * 32 + at % 32] >> (at / 32 * 2) & 3;
        let quant = f32::from(four | two << 4) - 32.0;
        *value = d * f32::from(scales[index / 16] as i8) * quant;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Weights;
    use std::path::Path;

    /// Against the `gguf` package, bit for bit; blocks are random, two of each format with extreme scales.
    #[test]
    fn every_format_has_the_bits_of_the_gguf_package() {
        let goldens =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf/blocks.safetensors");
        let goldens = Weights::open_file(&goldens).unwrap();
        let formats =
            [(1, "F16"), (30, "BF16"), (2, "Q4_0"), (3, "Q4_1"), (6, "Q5_0"), (7, "Q5_1"), (8, "Q8_0")];
        let parts = [(10, "Q2_K"), (11, "Q3_K"), (12, "Q4_K"), (13, "Q5_K"), (14, "Q6_K")];
        let tables = [(20, "IQ4_NL"), (23, "IQ4_XS"), (39, "MXFP4")];
        for (number, name) in formats.into_iter().chain(parts).chain(tables) {
            let blocks = goldens.tensor(&format!("{name}.blocks")).unwrap().bytes;
            let expected = goldens.tensor(&format!("{name}.values")).unwrap().to_f32().unwrap();
            let mut values = vec![f32::NAN; expected.len()];
            Format::of(number, "t").unwrap().dequantize(blocks, &mut values);
            let differing = values.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(differing, None, "{name}");
            assert!(values.iter().any(|&value| value != 0.0), "{name}");
        }
    }
}
