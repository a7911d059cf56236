//! The KV cache on the device: one buffer, so that the blocks in which sequences part are copied in all layers by one kernel.

use super::config::{Activation, Capacity};
use super::sessions::Sessions;
use crate::engine::sequence::BlockCopy;
use crate::kernels;
use device::{Buffer, Device, Shape};
use policy::config::Config;
use record::failure::Result;
use std::collections::HashSet;

/// Bytes that a thread copies at a time. A block's rows are at least as long, and all of it a multiple.
const UNIT: usize = 16;
/// Copies that are uploaded at a time.
const COPIES: usize = 1024;

/// Keys and values of all layers.
pub struct KvCache {
    /// `[layers, 2, blocks, block size, key heads, head size]`, in words of eight bytes.
    words: Buffer<u64>,
    /// `[copies, 2]`.
    copies: Buffer<i32>,
    sides: usize,
    blocks: usize,
    /// Bytes of a block.
    block: usize,
}

/// Bytes of a block of one side of one layer.
pub fn block_bytes<T: Activation>(config: &Config, block_size: usize) -> usize {
    block_size * config.num_kv_heads * config.head_dim * size_of::<T>()
}

impl KvCache {
    /// Bytes of device memory.
    pub fn bytes<T: Activation>(config: &Config, capacity: &Capacity) -> u64 {
        let sides = 2 * config.num_layers as u64;
        let copies = (2 * COPIES * size_of::<i32>()) as u64;
        sides * (capacity.blocks * block_bytes::<T>(config, capacity.block_size)) as u64 + copies
    }

    /// An empty cache, bound to the sessions as its inputs and its outputs.
    ///
    /// # Errors
    /// 69 where the device's arena is too small; 1 where ONNX Runtime refuses.
    pub fn new<D: Device, T: Activation>(
        config: &Config,
        capacity: &Capacity,
        device: &mut D,
        sessions: &mut Sessions,
    ) -> Result<KvCache> {
        let (sides, blocks) = (2 * config.num_layers, capacity.blocks);
        let block = block_bytes::<T>(config, capacity.block_size);
        let words = device.allocate::<u64>(sides * blocks * block / size_of::<u64>())?;
        let shape = [blocks, capacity.block_size, config.num_kv_heads, config.head_dim];
        for side in 0..sides {
            let (name, layer) = (["key", "value"][side % 2], side / 2);
            let address = words.address() + (side * blocks * block) as u64;
            sessions.input::<T>(&format!("{name}_cache.{layer}"), address, &shape)?;
            sessions.output::<T>(&format!("{name}_cache_out.{layer}"), address, &shape)?;
        }
        let cache = KvCache { words, copies: device.allocate(2 * COPIES)?, sides, blocks, block };
        cache.clear(device)?;
        Ok(cache)
    }

    /// Clears all keys and values.
    pub fn clear<D: Device>(&self, device: &mut D) -> Result<()> {
        device.clear(self.words.all())
    }

    /// Copies blocks in all layers: one launch, however many they are. They belong to one run, so what is read has
    /// another owner who keeps it, and what is written was free.
    pub fn copy<D: Device>(&self, device: &mut D, copies: &[BlockCopy]) -> Result<()> {
        debug_assert!(independent(copies), "{copies:?}");
        for copies in copies.chunks(COPIES) {
            let pairs: Vec<i32> = copies.iter().flat_map(|copy| [copy.from as i32, copy.to as i32]).collect();
            device.upload(&pairs, self.copies.slice(..pairs.len()))?;
            let shape =
                Shape { grid: [copies.len() as u32, self.sides as u32, 1], block: [256, 1, 1], shared: 0 };
            let (blocks, units) = (self.blocks as u64, (self.block / UNIT) as u64);
            let arguments = [(&self.words).into(), (&self.copies).into(), blocks.into(), units.into()];
            device.launch(&kernels::COPY_BLOCKS, shape, &arguments)?;
        }
        Ok(())
    }
}

/// Returns true if the order of copies does not matter.
fn independent(copies: &[BlockCopy]) -> bool {
    let written: HashSet<u32> = copies.iter().map(|copy| copy.to).collect();
    written.len() == copies.len() && copies.iter().all(|copy| !written.contains(&copy.from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_depend_on_each_other_are_seen() {
        let copies = |pairs: &[[u32; 2]]| -> Vec<BlockCopy> {
            pairs.iter().map(|&[from, to]| BlockCopy { from, to }).collect()
        };
        assert!(independent(&copies(&[[1, 2], [1, 3], [4, 5]])));
        assert!(!independent(&copies(&[[1, 2], [2, 3]])));
        assert!(!independent(&copies(&[[1, 2], [3, 2]])));
        assert!(!independent(&copies(&[[1, 2], [3, 1]])));
    }
}
