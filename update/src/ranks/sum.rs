//! The sum of all parts' gradients, of which each rank keeps its share.
//!
//! Parts are dealt to ranks in turn, so the parts of one round are a whole branch of the tree of sums: each rank adds up its share
//! of the branch at once. Only shares wait for the other half of their branch, log2(parts / ranks) of them at most. Gradients on a
//! device are added there ([`DeviceSum`]), in the same order.

mod on_device;

use std::ops::Range;

use record::failure::Result;

use super::{Checksum, Communicator, SUM_BYTES};
use crate::optimizer::shares::{RankShare, Shares};
use crate::parts::add;
pub use on_device::{DeviceSum, checksums as device_checksums, values_received};

/// The sum of the gradients of parts, a power of two.
pub struct PartSum<'a> {
    ranks: &'a dyn Communicator,
    shares: Shares,
    own: RankShare,
    rounds: usize,
    /// Complete rounds.
    round: usize,
    /// Regions of the current round that are added.
    added: usize,
    /// This rank's share of sums of 2^k rounds that wait for their other half, the largest first.
    waiting: Vec<Vec<f32>>,
    buffers: [Vec<f32>; 2],
    /// For the values sent to each rank, then for the values received from each.
    checksums: [Vec<Checksum>; 2],
}

impl<'a> PartSum<'a> {
    /// A sum of `parts` gradients; the number of ranks divides it.
    pub fn new(ranks: &'a dyn Communicator, shares: Shares, parts: usize) -> PartSum<'a> {
        let count = ranks.count();
        let checksums = [(); 2].map(|()| (0..count).map(|_| Checksum::default()).collect());
        let (own, rounds) = (shares.of_rank(ranks.rank()), parts / count);
        let (waiting, buffers) = (Vec::new(), [Vec::new(), Vec::new()]);
        PartSum { ranks, shares, own, rounds, round: 0, added: 0, waiting, buffers, checksums }
    }

    /// Shares that wait at once.
    pub fn waiting(rounds: usize) -> usize {
        rounds.ilog2() as usize
    }

    /// Bytes of the buffers through which values pass.
    pub fn buffer_bytes() -> usize {
        2 * SUM_BYTES
    }

    /// The region to be added next: the last of the layout first, as a backward pass computes them. `None` at the end of a round.
    pub fn next(&self) -> Option<usize> {
        self.shares.regions().checked_sub(self.added + 1)
    }

    /// Adds the next region of this rank's part in this round; all ranks must do the same. `read` copies a range of the part's
    /// gradient. In the last round `write` takes a range of this rank's share of the sum, with its place in the share.
    pub fn add<T>(
        &mut self,
        state: &mut T,
        read: impl Fn(&mut T, Range<usize>, &mut [f32]) -> Result<()>,
        write: impl Fn(&mut T, Range<usize>, usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let Some(region) = self.next() else { return Ok(()) };
        let (count, rank) = (self.ranks.count(), self.ranks.rank());
        let ranges = self.shares.of_region(region);
        let longest = ranges.iter().map(Range::len).max().unwrap_or(0);
        let most = (SUM_BYTES / size_of::<f32>() / count).min(longest).max(1);
        let (completes, is_last) = (self.completes(), self.is_last());
        if !is_last && self.waiting.len() == completes.start {
            self.waiting.push(vec![0.0; self.own.len()]);
        }
        let [sent, received] = &mut self.buffers;
        let [of_sent, of_received] = &mut self.checksums;
        sent.resize(most * count, 0.0);
        received.resize(most * count, 0.0);
        for from in (0..longest).step_by(most) {
            let piece = |range: &Range<usize>| {
                let start = (range.start + from).min(range.end);
                start..(start + most).min(range.end)
            };
            for (to, range) in ranges.iter().enumerate() {
                let range = piece(range);
                let values = &mut sent[to * most..][..range.len()];
                if !range.is_empty() {
                    read(state, range, values)?;
                }
                if count > 1 {
                    of_sent[to].add(values);
                }
            }
            self.ranks.all_to_all(bytemuck::cast_slice(sent), bytemuck::cast_slice_mut(received));
            let mine = piece(&ranges[rank]);
            if count > 1 {
                let pieces = received.chunks(most).zip(of_received.iter_mut());
                pieces.for_each(|(values, checksum)| checksum.add(&values[..mine.len()]));
            }
            let mut apart = 1;
            while apart < count {
                for left in (0..count).step_by(2 * apart) {
                    let (sums, right) = received.split_at_mut((left + apart) * most);
                    add(&mut sums[left * most..][..mine.len()], &right[..mine.len()]);
                }
                apart *= 2;
            }
            let sum = &mut received[..mine.len()];
            let place = self.own.place(region) + from.min(ranges[rank].len());
            for half in completes.clone().rev() {
                add(sum, &self.waiting[half][place..][..mine.len()]);
            }
            if is_last {
                if !mine.is_empty() {
                    write(state, mine, place, sum)?;
                }
            } else {
                self.waiting[completes.start][place..][..mine.len()].copy_from_slice(sum);
            }
        }
        self.end_region();
        Ok(())
    }

    /// The waiting halves that this round completes, each with all that follow: one waits for each set bit of the round's number,
    /// and those at its trailing ones are completed. The result waits in the place of the first.
    fn completes(&self) -> Range<usize> {
        let halves = self.round.count_ones() as usize;
        halves - self.round.trailing_ones() as usize..halves
    }

    fn is_last(&self) -> bool {
        self.round + 1 == self.rounds
    }

    fn end_region(&mut self) {
        self.added += 1;
        if self.added == self.shares.regions() {
            self.waiting.truncate(self.completes().start + usize::from(!self.is_last()));
            self.added = 0;
            self.round += 1;
        }
    }

    #[cfg(test)]
    pub(super) fn shares_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Checksums of the values that this rank has sent to each rank, then of those received from each.
    pub fn checksums(&self) -> Vec<u64> {
        self.checksums.iter().flatten().map(|checksum| checksum.sum).collect()
    }
}
