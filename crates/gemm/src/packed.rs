//! A right operand packed once and multiplied many times: a linear layer's weights during decoding.

use std::ops::Range;

use crate::blocking;
use crate::dispatch::Dispatch;
use crate::micro_kernel::Word;
use crate::{Isa, Precision, View};

/// A packed right operand: one 32-bit word per f32 value, or per two bf16 values, with
/// columns padded to whole panels.
#[derive(Debug)]
pub struct Packed {
    isa: Isa,
    precision: Precision,
    /// True if f32 values are stored in their upper 16 bits.
    halves: bool,
    inner: usize,
    columns: usize,
    words: Vec<Word>,
    /// Start of the first block, aligned to a cache line.
    start: usize,
}

impl Packed {
    /// Its number of rows, the length of the sums.
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// Its number of columns, the width of the result.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn dispatch(&self) -> Dispatch {
        Packed::dispatch_of(self.isa, self.precision, self.halves)
    }

    fn dispatch_of(isa: Isa, precision: Precision, halves: bool) -> Dispatch {
        let of_halves = Dispatch::of_halves(isa, precision).filter(|_| halves);
        of_halves.unwrap_or_else(|| Dispatch::of(isa, precision))
    }

    pub(crate) fn words(&self) -> &[Word] {
        &self.words[self.start..]
    }
}

/// Packs a right operand while it is read, one band of columns at a time, so that weights on disk need
/// no second copy in memory.
#[derive(Debug)]
pub struct Packing {
    packed: Packed,
    /// The next column, and its offset in the words.
    column: usize,
    offset: usize,
}

impl Packing {
    /// An operand `[inner, columns]` for an instruction set, which must be [available](Isa::available).
    pub fn new(isa: Isa, precision: Precision, extent: [usize; 2]) -> Packing {
        Packing::with(isa, precision, extent, false)
    }

    /// [`Packing::new`] for values that bf16 represents exactly, such as a bf16 checkpoint. Gives the same
    /// products from half the memory if a kernel supports it. Other values may lose their lower 16 bits.
    pub fn of_halves(isa: Isa, precision: Precision, extent: [usize; 2]) -> Packing {
        Packing::with(isa, precision, extent, true)
    }

    fn with(isa: Isa, precision: Precision, extent: [usize; 2], halves: bool) -> Packing {
        let [inner, columns] = extent;
        let (words, start) = (Packed::dispatch_of(isa, precision, halves).buffer)(extent);
        let packed = Packed { isa, precision, halves, inner, columns, words, start };
        Packing { packed, column: 0, offset: start }
    }

    /// The columns to push next, or `None` when all are packed.
    pub fn wanted(&self) -> Option<Range<usize>> {
        let columns = self.packed.columns;
        (self.column < columns).then(|| blocking::band(self.column, columns))
    }

    /// Packs the columns that [`Packing::wanted`] named: `b` is `[inner, columns]`.
    ///
    /// # Panics
    /// If `b` is shorter than its extent, or no columns are wanted.
    pub fn push(&mut self, b: View) {
        let band = self.wanted().expect("GEMM: every column is packed already");
        let (inner, dispatch) = (self.packed.inner, self.packed.dispatch());
        b.check(inner, band.len(), "the right operand");
        self.offset = (dispatch.pack_band)([inner, band.len()], b, &mut self.packed.words, self.offset);
        self.column = band.end;
    }

    /// The complete operand.
    ///
    /// # Panics
    /// If columns are missing.
    pub fn finish(self) -> Packed {
        assert!(self.wanted().is_none(), "GEMM: columns are missing");
        self.packed
    }
}
