//! Takes a version's weights from the process that published it, where both are on one device: a copy on the device, and a
//! checksum of the copy, which must equal the checksum of the published file.

use super::config::Activation;
use super::weights::DeviceWeights;
use crate::kernels;
use device::{Buffer, Device, OpenedMemory, Scalar, Shape, Slice};
use half::bf16;
use policy::hand_over::{OfferedTensor, OfferedWeights, WeightChecksum};
use policy::weights::{ElementType, Weights};
use record::failure::{Failure, Result};

/// Blocks that sum, at most.
const BLOCKS: usize = 264;
/// Sums that a checksum is made of: two of each block.
pub const SUMS: usize = 2 * BLOCKS;

/// Replaces all weights by offered ones. `stored` are the version's files, of which only the headers are read. A failure leaves
/// them undefined.
///
/// # Errors
/// They are other tensors or of another type, the memory cannot be opened, or the checksum is another.
pub fn take<D: Device, T: Activation>(
    weights: &DeviceWeights<T>,
    device: &mut D,
    stored: &Weights,
    offered: &OfferedWeights,
) -> Result<()> {
    let opened = device.open(&offered.handle)?;
    let sums = device.allocate::<u64>(SUMS)?;
    device.clear(sums.all())?;
    let mut values = 0;
    weights.each_part(stored, |name, tensor, to| {
        let found = offered.tensors.get(name).filter(|found| found.length == to.len());
        let found = found.ok_or_else(|| Failure::work(format!("tensor {name:?} is not there")))?;
        values += to.len() as u64;
        copy(device, &opened, offered, found, tensor.dtype, to)?;
        sum(device, &sums, found, to)
    })?;
    let mut of_blocks = vec![0; SUMS];
    device.download(sums.all(), &mut of_blocks)?;
    let mut checksum = WeightChecksum { values, ..WeightChecksum::default() };
    for [words, placed] in of_blocks.as_chunks::<2>().0 {
        checksum.words = checksum.words.wrapping_add(*words);
        checksum.placed = checksum.placed.wrapping_add(*placed);
    }
    match checksum == offered.checksum {
        true => Ok(()),
        false => Err(Failure::work("their checksum differs from the file's")),
    }
}

fn copy<D: Device, T: Activation>(
    device: &mut D,
    opened: &OpenedMemory,
    offered: &OfferedWeights,
    tensor: &OfferedTensor,
    stored: ElementType,
    to: Slice<'_, T>,
) -> Result<()> {
    match (T::SCALAR, offered.dtype.as_str(), stored) {
        (Scalar::Bf16, "bfloat16", _) | (Scalar::F16, "float16", _) => {
            device.copy(opened.slice::<T>(tensor.start, tensor.length)?, to)
        }
        (Scalar::F32, "bfloat16", ElementType::BF16) => {
            let from = opened.slice::<bf16>(tensor.start, tensor.length)?;
            let arguments = [to.into(), from.into(), (tensor.length as u64).into()];
            device.launch(&kernels::WIDEN_BF16, shape(tensor.length), &arguments)
        }
        (scalar, dtype, _) => Err(Failure::work(format!("they are {dtype}, and the engine's are {scalar}"))),
    }
}

fn sum<D: Device, T: Activation>(
    device: &mut D,
    sums: &Buffer<u64>,
    tensor: &OfferedTensor,
    values: Slice<'_, T>,
) -> Result<()> {
    let kernel = if T::SCALAR == Scalar::F32 { &kernels::SUM_WORDS_F32 } else { &kernels::SUM_WORDS };
    let place = WeightChecksum::place(tensor.number);
    let arguments = [sums.into(), values.into(), (tensor.length as u64).into(), place.into()];
    device.launch(kernel, shape(tensor.length), &arguments)
}

/// Blocks of 256 threads, four values a thread at least.
fn shape(values: usize) -> Shape {
    Shape::rows(values.div_ceil(4 * 256).clamp(1, BLOCKS) as u32, 256)
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Any;
    use half::f16;

    fn checksum<T: Activation>(device: &mut Any, tensors: &[Vec<T>]) -> WeightChecksum {
        let sums = device.allocate::<u64>(SUMS).unwrap();
        device.clear(sums.all()).unwrap();
        let mut found = WeightChecksum::default();
        for (number, values) in tensors.iter().enumerate() {
            let buffer = device.allocate::<T>(values.len()).unwrap();
            device.upload(values, buffer.all()).unwrap();
            let tensor = OfferedTensor { number, start: 0, length: values.len() };
            sum(device, &sums, &tensor, buffer.all()).unwrap();
            found.values += values.len() as u64;
        }
        let mut of_blocks = vec![0; SUMS];
        device.download(sums.all(), &mut of_blocks).unwrap();
        for pair in of_blocks.chunks(2) {
            found.words = found.words.wrapping_add(pair[0]);
            found.placed = found.placed.wrapping_add(pair[1]);
        }
        found
    }

    #[test]
    fn the_kernels_sum_as_the_host_does() {
        let lengths = [1, 3, 4, 1021, 300_001];
        let bits = |number: usize, i: usize| ((i * 40_503 + number * 977) >> 3) as u16;
        let mut wanted = WeightChecksum::default();
        for (number, &length) in lengths.iter().enumerate() {
            wanted.add(number, 0, &(0..length).map(|i| bits(number, i)).collect::<Vec<_>>());
        }
        fn all<T>(lengths: &[usize], value: impl Fn(usize, usize) -> T) -> Vec<Vec<T>> {
            let tensor = |(number, &length): (usize, &usize)| (0..length).map(|i| value(number, i)).collect();
            lengths.iter().enumerate().map(tensor).collect()
        }
        for seed in Any::test_seeds() {
            let mut device = Any::for_tests(seed).unwrap();
            device.reserve(16 << 20).unwrap();
            let narrow = all(&lengths, |number, i| bf16::from_bits(bits(number, i)));
            assert_eq!(checksum(&mut device, &narrow), wanted);
            let half = all(&lengths, |number, i| f16::from_bits(bits(number, i)));
            assert_eq!(checksum(&mut device, &half), wanted);
            let wide = all(&lengths, |number, i| f32::from_bits(u32::from(bits(number, i)) << 16));
            assert_eq!(checksum(&mut device, &wide), wanted);
            // Not a bf16.
            let mut other = wide;
            other[3][7] = f32::from_bits(other[3][7].to_bits() | 1);
            assert_ne!(checksum(&mut device, &other), wanted);
        }
    }
}
