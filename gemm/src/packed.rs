//! A right operand that is packed once and multiplied many times: the weights of a linear layer while they decode.

use std::ops::Range;

use crate::blocks;
use crate::kernel::Word;
use crate::routines::Routines;
use crate::{Instructions, Precision, View};

/// A right operand, packed for this processor: as many words of 32 bits as it has values, half as many in bf16,
/// and its columns padded to whole panels.
#[derive(Debug)]
pub struct Packed {
    instructions: Instructions,
    precision: Precision,
    inner: usize,
    columns: usize,
    words: Vec<Word>,
    /// Where the first block begins, so that vectors lie in one cache line each.
    start: usize,
}

impl Packed {
    /// Packs `b` `[inner, columns]`, all of which is in memory, for a kernel named by the caller, who must have found it
    /// [available](Instructions::available).
    ///
    /// # Panics
    /// If `b` is shorter than its extent.
    pub fn new_with(instructions: Instructions, precision: Precision, extent: [usize; 2], b: View) -> Packed {
        let mut packing = Packing::new_with(instructions, precision, extent);
        while let Some(columns) = packing.wanted() {
            packing.push(View { data: &b.data[columns.start * b.column_stride..], ..b });
        }
        packing.finish()
    }

    /// Its rows: the length of the sums.
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// Its columns: the width of the result.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn routines(&self) -> Routines {
        Routines::of(self.instructions, self.precision)
    }

    pub(crate) fn words(&self) -> &[Word] {
        &self.words[self.start..]
    }
}

/// A right operand that is packed as it is read, a band of its columns at a time: of weights on disk no second copy needs
/// to be in memory.
#[derive(Debug)]
pub struct Packing {
    packed: Packed,
    /// The first column that is still to come, and where in the words it goes.
    column: usize,
    place: usize,
}

impl Packing {
    /// For the fastest kernel of this processor, an operand `[inner, columns]`.
    pub fn new(precision: Precision, extent: [usize; 2]) -> Packing {
        Packing::new_with(Instructions::best(), precision, extent)
    }

    /// [`Packing::new`] for a kernel named by the caller, who must have found it
    /// [available](Instructions::available).
    pub fn new_with(instructions: Instructions, precision: Precision, extent: [usize; 2]) -> Packing {
        let [inner, columns] = extent;
        let (words, start) = (Routines::of(instructions, precision).room)(extent);
        let packed = Packed { instructions, precision, inner, columns, words, start };
        Packing { packed, column: 0, place: start }
    }

    /// The columns that are wanted next; none when all are there.
    pub fn wanted(&self) -> Option<Range<usize>> {
        let columns = self.packed.columns;
        (self.column < columns).then(|| blocks::band(self.column, columns))
    }

    /// Packs the columns that [`Packing::wanted`] named, `b` `[inner, how many]`.
    ///
    /// # Panics
    /// If `b` is shorter than its extent, or no columns are wanted.
    pub fn push(&mut self, b: View) {
        let band = self.wanted().expect("matrix product: every column is packed already");
        let (inner, routines) = (self.packed.inner, self.packed.routines());
        b.check(inner, band.len(), "the right operand");
        self.place = (routines.pack_band)([inner, band.len()], b, &mut self.packed.words, self.place);
        self.column = band.end;
    }

    /// The whole operand.
    ///
    /// # Panics
    /// If columns are missing.
    pub fn finish(self) -> Packed {
        assert!(self.wanted().is_none(), "matrix product: columns are missing");
        self.packed
    }
}
