//! One range of device memory, and the buffers in it.
//!
//! First fit over a sorted list of gaps, which join when buffers are given back. Placement depends on the order of
//! the calls alone, so a plan that fits once fits always. Buffers begin at multiples of 256 bytes, as cuBLASLt and
//! vector loads like them.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use record::failure::{Failure, Result};

use crate::buffer::Buffer;
use crate::element::Element;

/// Where buffers begin.
pub(crate) const ALIGNMENT: u64 = 256;

/// Bytes that a buffer of `bytes` takes of an arena.
pub fn footprint(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ALIGNMENT)
}

/// A range of device memory that buffers are cut from. Cloning gives another handle on the same range.
#[derive(Clone, Debug)]
pub struct Arena {
    inner: Arc<Mutex<Gaps>>,
    base: u64,
    margin: u64,
}

#[derive(Debug)]
struct Gaps {
    /// Offset to length of every gap, none touching another.
    free: BTreeMap<u64, u64>,
    /// Bytes that buffers may take together, and those that they do and did at most; margins count nowhere.
    total: u64,
    used: u64,
    peak: u64,
}

impl Arena {
    /// An arena for `bytes` of buffers in the [`Arena::extent`] at device address `base`, a multiple of 256. `margin`
    /// bytes, a multiple of 256, are left after each buffer: the simulator watches them.
    pub fn new(base: u64, bytes: u64, margin: u64) -> Self {
        let extent = Arena::extent(bytes, margin);
        let gaps = Gaps { free: BTreeMap::from([(0, extent)]), total: bytes, used: 0, peak: 0 };
        Arena { inner: Arc::new(Mutex::new(gaps)), base, margin }
    }

    /// Bytes of address space for `bytes` of buffers, each of which takes 256 at least, with a margin after each.
    pub fn extent(bytes: u64, margin: u64) -> u64 {
        bytes + bytes / ALIGNMENT * margin
    }

    /// A buffer of `length` values.
    ///
    /// # Errors
    /// 69 where no gap is large enough.
    pub fn allocate<T: Element>(&self, length: usize) -> Result<Buffer<T>> {
        let bytes = (length as u64) * size_of::<T>() as u64;
        let counted = footprint(bytes);
        let taken = counted + self.margin;
        let mut gaps = self.gaps();
        let room = gaps.total - gaps.used >= counted;
        let found = gaps.free.iter().find(|(_, free)| room && **free >= taken);
        let found = found.map(|(offset, free)| (*offset, *free));
        let Some((offset, free)) = found else {
            let largest = gaps.free.values().max().copied().unwrap_or(0);
            return Err(Failure::unavailable(format!(
                "device memory: {bytes} bytes wanted, but of {} planned {} are in use and the largest gap has {largest}",
                gaps.total, gaps.used
            ))
            .hint("lower --max-tokens-per-batch"));
        };
        gaps.free.remove(&offset);
        if free > taken {
            gaps.free.insert(offset + taken, free - taken);
        }
        gaps.used += counted;
        gaps.peak = gaps.peak.max(gaps.used);
        drop(gaps);
        Ok(Buffer { arena: self.clone(), offset, length, element: PhantomData })
    }

    /// Bytes in use, and the most that ever were; margins do not count.
    pub fn usage(&self) -> (u64, u64) {
        let gaps = self.gaps();
        (gaps.used, gaps.peak)
    }

    /// Bytes of the whole arena.
    pub fn total(&self) -> u64 {
        self.gaps().total
    }

    /// The address of an offset.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.base + offset
    }

    /// Bytes between buffers.
    pub(crate) fn margin(&self) -> u64 {
        self.margin
    }

    /// Whether both are handles on one arena.
    pub(crate) fn is(&self, other: &Arena) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Takes a range back.
    pub(crate) fn give_back(&self, mut offset: u64, bytes: u64) {
        let mut length = footprint(bytes) + self.margin;
        let mut gaps = self.gaps();
        gaps.used -= footprint(bytes);
        if let Some(next) = gaps.free.remove(&(offset + length)) {
            length += next;
        }
        let before = gaps.free.range(..offset).next_back().map(|(at, free)| (*at, *free));
        if let Some((at, free)) = before
            && at + free == offset
        {
            gaps.free.remove(&at);
            offset = at;
            length += free;
        }
        gaps.free.insert(offset, length);
    }

    /// A panic elsewhere cannot leave the gaps half-changed: no call in here panics midway.
    fn gaps(&self) -> MutexGuard<'_, Gaps> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn buffers_never_overlap_and_all_comes_back(
            sizes in prop::collection::vec((1usize..5000, any::<prop::sample::Index>(), any::<bool>()), 1..80),
            margin in prop::sample::select(vec![0u64, 256]),
        ) {
            let arena = Arena::new(1 << 20, 1 << 17, margin);
            let mut held: Vec<Buffer<f32>> = Vec::new();
            for (size, index, free) in sizes {
                if free && !held.is_empty() {
                    held.swap_remove(index.index(held.len()));
                } else if let Ok(buffer) = arena.allocate::<f32>(size) {
                    held.push(buffer);
                }
                let end = (1 << 20) + Arena::extent(1 << 17, margin);
                let mut ranges: Vec<(u64, u64)> =
                    held.iter().map(|b| (b.address(), b.address() + 4 * b.len() as u64)).collect();
                ranges.sort_unstable();
                prop_assert!(ranges.iter().all(|r| r.0 % ALIGNMENT == 0 && r.0 >= 1 << 20 && r.1 <= end));
                prop_assert!(ranges.windows(2).all(|w| w[0].1 + margin <= w[1].0));
                let used: u64 = held.iter().map(|b| footprint(4 * b.len() as u64)).sum();
                prop_assert_eq!(arena.usage().0, used);
            }
            held.clear();
            prop_assert_eq!(arena.usage().0, 0);
            prop_assert!(arena.allocate::<u8>((1 << 17) + 1).is_err());
            let whole = arena.allocate::<u8>(1 << 17);
            prop_assert!(whole.is_ok());
            prop_assert_eq!(arena.usage(), (1 << 17, 1 << 17));
        }
    }

    #[test]
    fn a_full_arena_says_what_is_left() {
        let arena = Arena::new(0, 1024, 0);
        let _held = arena.allocate::<u8>(512).unwrap();
        let failure = arena.allocate::<u8>(513).unwrap_err();
        assert_eq!(failure.code, record::failure::UNAVAILABLE);
        assert!(failure.message.contains("513 bytes wanted"), "{failure}");
        assert!(failure.message.contains("largest gap has 512"), "{failure}");
    }
}
