//! Blocks of 2, 3 and 4 bits that [`super::dequantize`] reads: values of few bits with many scales, or from a table of 16.

use half::f16;

/// The values of IQ4's four bits.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice what the four bits of MXFP4 (e2m1) stand for.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

/// The f16 at a byte.
pub(super) fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The four bits of a value in a block of 32: the lower halves of 16 bytes, then the upper halves.
pub(super) fn nibble(quants: &[u8], index: usize) -> u8 {
    quants[index % 16] >> (4 * (index / 16)) & 15
}

/// Two bits of a value among 256: four quarters of 32 bytes in each half.
fn two_bits(quants: &[u8], index: usize) -> u8 {
    let (half, at) = (index / 128, index % 128);
    quants[half * 32 + at % 32] >> (at / 32 * 2) & 3
}

/// Scale and minimum for each 16 values, four bits each.
pub(super) fn q2_k(block: &[u8], values: &mut [f32]) {
    let (d, least) = (scale(block, 80), scale(block, 82));
    for (index, value) in values.iter_mut().enumerate() {
        let own = block[index / 16];
        let quant = f32::from(two_bits(&block[16..80], index));
        *value = d * f32::from(own & 15) * quant - least * f32::from(own >> 4);
    }
}

/// A scale of six bits for each 16 values, packed into twelve bytes; a third bit of each value that is 0 takes off four.
pub(super) fn q3_k(block: &[u8], values: &mut [f32]) {
    let (high, quants, scales, d) = (&block[..32], &block[32..96], &block[96..108], scale(block, 108));
    let own = |part: usize| {
        let low = scales[part % 8] >> (part / 8 * 4) & 15;
        let two = scales[8 + part % 4] >> (part / 4 * 2) & 3;
        f32::from(low | two << 4) - 32.0
    };
    for (index, value) in values.iter_mut().enumerate() {
        let off = if high[index % 32] >> (index / 32) & 1 == 0 { 4.0 } else { 0.0 };
        *value = d * own(index / 16) * (f32::from(two_bits(quants, index)) - off);
    }
}

pub(super) fn iq4_nl(block: &[u8], values: &mut [f32]) {
    table(scale(block, 0), &IQ4, &block[2..], values);
}

/// Eight parts of 32 values with scales of six bits.
pub(super) fn iq4_xs(block: &[u8], values: &mut [f32]) {
    let (d, high) = (scale(block, 0), u16::from_le_bytes(array(&block[2..])));
    for (part, values) in values.chunks_exact_mut(32).enumerate() {
        let low = block[4 + part / 2] >> (part % 2 * 4) & 15;
        let two = (high >> (2 * part)) as u8 & 3;
        let d = d * (f32::from(low | two << 4) - 32.0);
        table(d, &IQ4, &block[8 + 16 * part..][..16], values);
    }
}

/// A power of two (e8m0), halved for the table.
pub(super) fn mxfp4(block: &[u8], values: &mut [f32]) {
    let bits = match u32::from(block[0]) {
        small @ 0..2 => 0x0020_0000 << small,
        exponent => (exponent - 1) << 23,
    };
    table(f32::from_bits(bits), &E2M1, &block[1..], values);
}

fn table(d: f32, table: &[i8; 16], quants: &[u8], values: &mut [f32]) {
    for (index, value) in values.iter_mut().enumerate() {
        *value = d * f32::from(table[usize::from(nibble(quants, index))]);
    }
}
