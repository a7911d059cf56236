//! A right operand that is packed once and multiplied many times: the weights of a linear layer while they decode.

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
    /// Packs `b` `[inner, columns]` for the fastest kernel of this processor.
    ///
    /// # Panics
    /// If `b` is shorter than its extent.
    pub fn new(precision: Precision, extent: [usize; 2], b: View) -> Packed {
        Packed::new_with(Instructions::best(), precision, extent, b)
    }

    /// [`Packed::new`] for a kernel named by the caller, who must have found it
    /// [available](Instructions::available).
    pub fn new_with(instructions: Instructions, precision: Precision, extent: [usize; 2], b: View) -> Packed {
        let [inner, columns] = extent;
        b.check(inner, columns, "the right operand");
        let (words, start) = (Routines::of(instructions, precision).pack)(extent, b);
        Packed { instructions, precision, inner, columns, words, start }
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
