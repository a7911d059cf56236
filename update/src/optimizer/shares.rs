//! The values of a layout that each of several ranks keeps: the sum of the gradient, moments, and on a device what completes
//! weights to their masters.
//!
//! Values are cut into regions, and each region into one range for each rank. The CPU has a single region. On a device a region
//! is a layer, so that its gradient can leave while the layer below is computed (ZeRO-2, arXiv 1910.02054).

use std::ops::Range;

use super::{PIECE, overlap};
use crate::model::{Layout, SQUARES};
use crate::ranks::{Communicator, gather};

/// The values of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// By region and rank, in the order of the layout.
    regions: Vec<Vec<Range<usize>>>,
}

/// The values of one rank, a range of each region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankShare {
    ranges: Vec<Range<usize>>,
}

impl Shares {
    #[cfg(test)]
    pub(crate) fn of(regions: Vec<Vec<Range<usize>>>) -> Shares {
        Shares { regions }
    }

    /// One region, cut into these consecutive ranges.
    pub fn consecutive(ranges: Vec<Range<usize>>) -> Shares {
        Shares { regions: vec![ranges] }
    }

    /// A region for the embedding, each layer, and the final norm with an untied head. Cuts are where the pieces of the
    /// gradient's norm end.
    pub fn by_layer(layout: &Layout, ranks: usize) -> Shares {
        let of_region = |region: Range<usize>| {
            let cut = |rank: usize| {
                let at = (region.len() * rank).div_ceil(ranks).next_multiple_of(SQUARES);
                region.start + at.min(region.len())
            };
            (0..ranks).map(|rank| cut(rank)..cut(rank + 1)).collect()
        };
        Shares { regions: layout.regions().into_iter().map(of_region).collect() }
    }

    /// Number of regions.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// A region's ranges, by rank.
    pub fn of_region(&self, region: usize) -> &[Range<usize>] {
        &self.regions[region]
    }

    /// The values of a rank.
    pub fn of_rank(&self, rank: usize) -> RankShare {
        RankShare { ranges: self.regions.iter().map(|ranges| ranges[rank].clone()).collect() }
    }

    /// The most values that a rank has. None has more pieces of the norm than rank 0.
    pub fn largest(&self) -> usize {
        let ranks = self.regions.first().map_or(0, Vec::len);
        (0..ranks).map(|rank| self.of_rank(rank).len()).max().unwrap_or(0)
    }
}

impl RankShare {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a region's values begin among this rank's.
    pub fn place(&self, region: usize) -> usize {
        self.ranges[..region].iter().map(Range::len).sum()
    }

    /// Pieces of the gradient's norm.
    pub fn pieces(&self) -> usize {
        self.ranges.iter().map(|range| range.len().div_ceil(SQUARES)).sum()
    }

    /// Its ranges, in the order of the layout.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Its values within a range of the layout, and where each run of them begins in the share.
    pub fn within(&self, wanted: &Range<usize>) -> Vec<(Range<usize>, usize)> {
        let (mut found, mut place) = (Vec::new(), 0);
        for range in &self.ranges {
            let common = overlap(range, wanted);
            if !common.is_empty() {
                found.push((common.clone(), place + common.start - range.start));
            }
            place += range.len();
        }
        found
    }
}

/// [`super::norm`] of a gradient of which each rank has one range of `values`, all in the order of ranks: the same bits. Each
/// rank sends the sums of its whole pieces, and the values of pieces that it shares.
pub fn norm_of_slices(ranks: &dyn Communicator, own: &Range<usize>, values: &[f32]) -> f64 {
    let square = |&g: &f32| f64::from(g) * f64::from(g);
    let whole = |own: &Range<usize>| {
        let start = own.start.next_multiple_of(PIECE).min(own.end);
        start..start + (own.end - start) / PIECE * PIECE
    };
    let pieces = whole(own);
    let sums: Vec<f64> =
        values[pieces.clone()].chunks(PIECE).map(|piece| piece.iter().map(square).sum()).collect();
    let shared = [&values[own.start..pieces.start], &values[pieces.end..own.end]].concat();
    let place = [own.start as u64, own.end as u64];
    let [places, sums, shared] =
        [bytemuck::cast_slice(&place), bytemuck::cast_slice(&sums), bytemuck::cast_slice(&shared)]
            .map(|bytes: &[u8]| gather(ranks, bytes));
    let (mut total, mut piece, mut at) = (0.0, 0.0, 0);
    for ((place, sums), shared) in places.iter().zip(&sums).zip(&shared) {
        let mut place = place.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes) as usize);
        let own = place.next().unwrap_or(0)..place.next().unwrap_or(0);
        let pieces = whole(&own);
        let mut shared = shared.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        let mut add = |value: f32, total: &mut f64, at: &mut usize| {
            piece += square(&value);
            *at += 1;
            if at.is_multiple_of(PIECE) {
                *total += std::mem::take(&mut piece);
            }
        };
        shared.by_ref().take(pieces.start - own.start).for_each(|value| add(value, &mut total, &mut at));
        sums.as_chunks().0.iter().for_each(|bytes| total += f64::from_ne_bytes(*bytes));
        at += pieces.len();
        shared.for_each(|value| add(value, &mut total, &mut at));
    }
    (total + piece).sqrt()
}
