//! Typed ranges of an arena.
//!
//! A buffer stands for device memory as a file handle stands for a file: reading and writing go through the device,
//! in the order of its calls, so shared references suffice for both.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::arena::Arena;
use crate::element::{Element, Scalar};

/// Values in device memory, given back to the arena when dropped.
#[derive(Debug)]
pub struct Buffer<T: Element> {
    pub(crate) arena: Arena,
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where its first value lies on the device.
    pub fn address(&self) -> u64 {
        self.arena.address(self.offset)
    }

    /// All values.
    pub fn all(&self) -> Slice<'_, T> {
        Slice {
            arena: &self.arena,
            buffer_offset: self.offset,
            buffer_length: self.length,
            start: 0,
            length: self.length,
            element: PhantomData,
        }
    }

    /// Some of the values.
    ///
    /// # Panics
    /// If the range reaches past the end, as slices do.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Slice<'_, T> {
        self.all().slice(range)
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.arena.give_back(self.offset, (self.length * size_of::<T>()) as u64);
    }
}

/// Some values of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a, T: Element> {
    arena: &'a Arena,
    buffer_offset: u64,
    buffer_length: usize,
    start: usize,
    length: usize,
    element: PhantomData<T>,
}

impl<'a, T: Element> Slice<'a, T> {
    /// Number of values.
    pub fn len(self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Where its first value lies on the device.
    pub fn address(self) -> u64 {
        self.arena.address(self.buffer_offset) + (self.start * size_of::<T>()) as u64
    }

    /// Some of the values.
    ///
    /// # Panics
    /// If the range reaches past the end, as slices do.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Slice<'a, T> {
        let start = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => at + 1,
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.length,
        };
        assert!(start <= end && end <= self.length, "values {start}..{end} of a slice of {}", self.length);
        Slice { start: self.start + start, length: end - start, ..self }
    }

    /// The same without its type.
    pub(crate) fn raw(self) -> Raw<'a> {
        let size = size_of::<T>() as u64;
        Raw {
            arena: self.arena,
            scalar: T::SCALAR,
            address: self.address(),
            length: self.length,
            buffer_end: self.arena.address(self.buffer_offset) + self.buffer_length as u64 * size,
        }
    }
}

impl<'a, T: Element> From<&'a Buffer<T>> for Slice<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.all()
    }
}

/// A slice whose type is a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    pub arena: &'a Arena,
    pub scalar: Scalar,
    pub address: u64,
    pub length: usize,
    /// Where the buffer, and with it what may be written, ends.
    pub buffer_end: u64,
}
