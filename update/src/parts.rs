//! The parts of an optimizer batch (`--parts`), and the tree of their gradients' sums.
//!
//! The data alone decides which trees belong to which part. Each part's gradient is summed from zero, and parts are added as a
//! balanced binary tree in their order ([`crate::ranks::PartSum`]): whichever rank computes which of them, and however many ranks
//! there are, the sum has the same bits. One part is the plain sum over all trees.

use std::ops::Range;

use record::failure::{Failure, Result};

use crate::minibatch::TreeBatch;
use crate::tree::Tree;

/// Consecutive trees of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSpan {
    /// Index of the batch.
    pub batch: usize,
    pub trees: Range<usize>,
}

/// Splits the trees of all batches, in their order, into parts of about equal tokens; a tree belongs to the
/// part of its middle. With fewer trees than parts some parts are empty.
pub fn split_by_tokens(batches: &[TreeBatch], parts: usize) -> Vec<Vec<TreeSpan>> {
    let total = batches.iter().map(TreeBatch::unique_tokens).sum::<usize>().max(1);
    let mut split = vec![Vec::new(); parts];
    let mut before = 0;
    for (batch, TreeBatch { trees, .. }) in batches.iter().enumerate() {
        for (tree, length) in trees.iter().map(Tree::len).enumerate() {
            let part: &mut Vec<TreeSpan> =
                &mut split[((2 * before + length) * parts / (2 * total)).min(parts - 1)];
            match part.last_mut().filter(|span| span.batch == batch) {
                Some(span) => span.trees.end = tree + 1,
                None => part.push(TreeSpan { batch, trees: tree..tree + 1 }),
            }
            before += length;
        }
    }
    split
}

/// Fails unless `ranks` processes can share the parts equally.
pub fn check_ranks(parts: usize, ranks: usize) -> Result<()> {
    if parts.is_multiple_of(ranks) {
        return Ok(());
    }
    let least = ranks.next_power_of_two();
    Err(Failure::usage(format!(
        "--parts {parts} cannot be dealt to {ranks} ranks: each computes as many of them"
    ))
    .hint(match least == ranks {
        true => format!("--parts {least}, or more; the bytes of the result depend on it"),
        false => "as many ranks as a power of two, and no more than --parts".to_owned(),
    }))
}

/// Adds values to a sum.
pub fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lengths: &[usize]) -> TreeBatch {
        let tree = |&length: &usize| Tree { ids: vec![0; length], ..Tree::default() };
        TreeBatch { temperature: 1.0, trees: lengths.iter().map(tree).collect(), members: Vec::new() }
    }

    fn spans(batches: &[TreeBatch], parts: usize) -> Vec<Vec<(usize, Range<usize>)>> {
        let plain = |part: Vec<TreeSpan>| part.into_iter().map(|span| (span.batch, span.trees)).collect();
        split_by_tokens(batches, parts).into_iter().map(plain).collect()
    }

    #[test]
    fn parts_have_all_trees_in_order_and_about_as_many_tokens() {
        let batches = [batch(&[10, 10, 10]), batch(&[10])];
        assert_eq!(spans(&batches, 1), [[(0, 0..3), (1, 0..1)]]);
        assert_eq!(spans(&batches, 2), [vec![(0, 0..2)], vec![(0, 2..3), (1, 0..1)]]);
        assert_eq!(spans(&batches, 4), [[(0, 0..1)], [(0, 1..2)], [(0, 2..3)], [(1, 0..1)]]);
        // Fewer trees than parts; trees without tokens; no trees at all.
        let few = spans(&[batch(&[7])], 4);
        assert_eq!(few.concat(), [(0, 0..1)]);
        assert_eq!(spans(&[batch(&[0, 0])], 2).concat(), [(0, 0..2)]);
        assert_eq!(spans(&[], 2), [vec![], vec![]]);
    }
}
