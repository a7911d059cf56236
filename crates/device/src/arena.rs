//! Device memory: one arena, the buffers allocated in it, and typed slices of them.
//!
//! First fit in a sorted free list; adjacent free ranges merge. Placement depends only on the order of
//! the calls, so a plan that fits once always fits. Buffers are aligned to 256 bytes, for cuBLASLt and
//! vector loads. A buffer is a handle: reads and writes go through the device in call order, so shared
//! references suffice for both.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use record::failure::{Failure, Result};

use crate::element::{Element, Scalar};

/// Alignment of buffers, in bytes.
pub(crate) const ALIGNMENT: u64 = 256;

/// Bytes of an arena that a buffer of `bytes` occupies.
pub fn footprint(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ALIGNMENT)
}

/// A range of device memory that holds buffers. Clones share the range.
#[derive(Clone, Debug)]
pub struct Arena {
    inner: Arc<Mutex<FreeList>>,
    base: u64,
    margin: u64,
}

#[derive(Debug)]
struct FreeList {
    /// Offset to length of every free range; ranges never touch.
    free: BTreeMap<u64, u64>,
    /// Bytes for buffers: total, in use, and peak use, without guard margins.
    total: u64,
    used: u64,
    peak: u64,
}

impl Arena {
    /// An arena for `bytes` of buffers at device address `base`; see [`Arena::extent`] for its size.
    /// Each buffer is followed by `margin` guard bytes, which the simulator checks. `base` and
    /// `margin` are multiples of 256.
    pub fn new(base: u64, bytes: u64, margin: u64) -> Self {
        let extent = Arena::extent(bytes, margin);
        let list = FreeList { free: BTreeMap::from([(0, extent)]), total: bytes, used: 0, peak: 0 };
        Arena { inner: Arc::new(Mutex::new(list)), base, margin }
    }

    /// Bytes of address space needed for `bytes` of buffers with their margins.
    pub fn extent(bytes: u64, margin: u64) -> u64 {
        bytes + bytes / ALIGNMENT * margin
    }

    /// A buffer of `length` values.
    pub fn allocate<T: Element>(&self, length: usize) -> Result<Buffer<T>> {
        let bytes = (length as u64) * size_of::<T>() as u64;
        let counted = footprint(bytes);
        let taken = counted + self.margin;
        let mut list = self.list();
        let fits = list.total - list.used >= counted;
        let found = list.free.iter().find(|(_, free)| fits && **free >= taken);
        let found = found.map(|(offset, free)| (*offset, *free));
        let Some((offset, free)) = found else {
            let largest = list.free.values().max().copied().unwrap_or(0);
            return Err(Failure::unavailable(format!(
                "device memory: {bytes} bytes requested, but of {} planned {} are in use and the largest free range has {largest}",
                list.total, list.used
            ))
            .hint("lower --max-tokens-per-batch"));
        };
        list.free.remove(&offset);
        if free > taken {
            list.free.insert(offset + taken, free - taken);
        }
        list.used += counted;
        list.peak = list.peak.max(list.used);
        drop(list);
        Ok(Buffer { arena: self.clone(), offset, length, element: PhantomData })
    }

    /// Bytes in use, now and at peak, without margins.
    pub fn usage(&self) -> (u64, u64) {
        let list = self.list();
        (list.used, list.peak)
    }

    /// The device address of its first byte.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of the whole arena.
    pub fn total(&self) -> u64 {
        self.list().total
    }

    /// Frees a buffer's range.
    fn free(&self, mut offset: u64, bytes: u64) {
        let mut length = footprint(bytes) + self.margin;
        let mut list = self.list();
        list.used -= footprint(bytes);
        if let Some(next) = list.free.remove(&(offset + length)) {
            length += next;
        }
        let before = list.free.range(..offset).next_back().map(|(at, free)| (*at, *free));
        if let Some((at, free)) = before
            && at + free == offset
        {
            list.free.remove(&at);
            offset = at;
            length += free;
        }
        list.free.insert(offset, length);
    }

    /// No code panics while holding the lock, so a poisoned lock still guards consistent data.
    fn list(&self) -> MutexGuard<'_, FreeList> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Values in device memory, freed when dropped.
#[derive(Debug)]
pub struct Buffer<T: Element> {
    arena: Arena,
    offset: u64,
    length: usize,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Device address of the first value.
    pub fn address(&self) -> u64 {
        self.arena.base + self.offset
    }

    /// All values.
    pub fn all(&self) -> Slice<'_, T> {
        let (address, length) = (self.address(), self.length);
        let buffer_end = address + (length * size_of::<T>()) as u64;
        Slice { arena: Some(&self.arena), address, length, buffer_end, element: PhantomData }
    }

    /// A range of the values.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Slice<'_, T> {
        self.all().slice(range)
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.arena.free(self.offset, (self.length * size_of::<T>()) as u64);
    }
}

/// A range of a buffer, or of device memory that a library owns.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a, T: Element> {
    /// `None` for memory of a library.
    arena: Option<&'a Arena>,
    address: u64,
    length: usize,
    buffer_end: u64,
    element: PhantomData<T>,
}

impl<'a, T: Element> Slice<'a, T> {
    /// A slice of memory that a library owns. The library shares the device and its stream.
    ///
    /// # Safety
    /// `length` values lie at `address`, aligned to their type, and remain until the work on them is done.
    /// Until then others use them only in stream order.
    pub unsafe fn foreign(address: u64, length: usize) -> Slice<'a, T> {
        let buffer_end = address + (length * size_of::<T>()) as u64;
        Slice { arena: None, address, length, buffer_end, element: PhantomData }
    }

    pub fn len(self) -> usize {
        self.length
    }

    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Device address of the first value.
    pub fn address(self) -> u64 {
        self.address
    }

    /// A range of the values.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Slice<'a, T> {
        let (start, end) = bounds(range, self.length);
        let address = self.address + (start * size_of::<T>()) as u64;
        Slice { address, length: end - start, ..self }
    }

    pub(crate) fn raw(self) -> AnySlice<'a> {
        AnySlice {
            arena: self.arena,
            scalar: T::SCALAR,
            address: self.address,
            length: self.length,
            buffer_end: self.buffer_end,
        }
    }
}

/// Start and end of a range of `length` values. Panics if it reaches past the end.
fn bounds(range: impl RangeBounds<usize>, length: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at + 1,
        Bound::Excluded(&at) => at,
        Bound::Unbounded => length,
    };
    assert!(start <= end && end <= length, "values {start}..{end} of a slice of {length}");
    (start, end)
}

impl<'a, T: Element> From<&'a Buffer<T>> for Slice<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.all()
    }
}

/// A slice with its type as a run-time value.
#[derive(Clone, Copy, Debug)]
pub struct AnySlice<'a> {
    /// `None` for memory of a library.
    pub(crate) arena: Option<&'a Arena>,
    pub(crate) scalar: Scalar,
    pub(crate) address: u64,
    pub(crate) length: usize,
    /// Address of the buffer's end.
    pub(crate) buffer_end: u64,
}

impl<'a, T: Element> From<Slice<'a, T>> for AnySlice<'a> {
    fn from(slice: Slice<'a, T>) -> Self {
        slice.raw()
    }
}

impl<'a, T: Element> From<&'a Buffer<T>> for AnySlice<'a> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.all().raw()
    }
}

impl<'a> AnySlice<'a> {
    /// A range of the values; see [`Slice::slice`].
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn slice(self, range: impl RangeBounds<usize>) -> AnySlice<'a> {
        let (start, end) = bounds(range, self.length);
        AnySlice { address: self.address + (start * self.scalar.bytes()) as u64, length: end - start, ..self }
    }

    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Its size.
    pub fn bytes(self) -> usize {
        self.length * self.scalar.bytes()
    }

    /// Fails if the slice belongs to another arena.
    pub(crate) fn check(&self, arena: &Arena) -> Result<()> {
        match self.arena {
            Some(own) if !Arc::ptr_eq(&own.inner, &arena.inner) => {
                Err(Failure::work("a buffer of another device"))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the slices share a byte.
    pub(crate) fn overlaps(&self, other: &AnySlice<'_>) -> bool {
        let end = |raw: &AnySlice<'_>| raw.address + (raw.length * raw.scalar.bytes()) as u64;
        self.address < end(other) && other.address < end(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn buffers_never_overlap_and_all_are_freed(
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
        assert!(failure.message.contains("513 bytes requested"), "{failure}");
        assert!(failure.message.contains("largest free range has 512"), "{failure}");
    }
}
