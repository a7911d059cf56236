//! The gradient of some trees, added to the learner's, with the statistics of their tokens.

use record::failure::{Failure, Result};
use record::stage;

use crate::learner::Learner;
use crate::loss::{BatchLoss, LossInputs, TokenStats};
use crate::model::Scores;
use crate::ranks::{self, Communicator, PartSum};
use crate::tree::Tree;

/// Statistics of some trees.
#[derive(Clone, Debug, Default)]
pub struct TreeStats {
    /// Sum of the entropies of each tree.
    pub entropies: Vec<f64>,
    /// Sums over the scored tokens.
    pub tokens: TokenStats,
}

impl TreeStats {
    /// Adds the statistics of the trees that follow.
    pub fn add(&mut self, other: &TreeStats) {
        self.entropies.extend(&other.entropies);
        self.tokens.add(&other.tokens);
    }

    /// The statistics of the spans of all parts, in the order of the parts. Parts were dealt to the ranks in turn.
    pub fn of_all(ranks: &dyn Communicator, own: &[Vec<TreeStats>]) -> Vec<Vec<TreeStats>> {
        let words = |tree_stats: &TreeStats| {
            let entropies = tree_stats.entropies.iter().map(|entropy| entropy.to_bits());
            let words: Vec<u64> = std::iter::once(tree_stats.entropies.len() as u64)
                .chain(entropies)
                .chain(tree_stats.tokens.words())
                .collect();
            words
        };
        let of_part = |spans: &Vec<TreeStats>| {
            std::iter::once(spans.len() as u64).chain(spans.iter().flat_map(words)).collect::<Vec<_>>()
        };
        let told: Vec<u64> = own.iter().flat_map(of_part).collect();
        let mut all = vec![Vec::new(); own.len() * ranks.count()];
        for (rank, bytes) in ranks::gather(ranks, bytemuck::cast_slice(&told)).iter().enumerate() {
            let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
            for part in all.iter_mut().skip(rank).step_by(ranks.count()) {
                for _ in 0..words.next().unwrap_or(0) {
                    let trees = words.next().unwrap_or(0) as usize;
                    let entropies = words.by_ref().take(trees).map(f64::from_bits).collect();
                    let tokens = TokenStats::of_words(&std::array::from_fn(|_| words.next().unwrap_or(0)));
                    part.push(TreeStats { entropies, tokens });
                }
            }
        }
        all
    }
}

/// Trees of one temperature, and the samples in each.
#[derive(Clone, Copy)]
pub struct TreeSlice<'a> {
    /// The divisor of the logits.
    pub temperature: f32,
    pub trees: &'a [Tree],
    pub members: &'a [Vec<usize>],
}

/// Adds the gradient of some trees to the learner's, weighted but not yet scaled ([`crate::aggregate`]). `sum` is given if they are
/// a whole part.
pub fn accumulate(
    inputs: LossInputs,
    slice: TreeSlice,
    learner: &mut dyn Learner,
    sum: Option<&mut PartSum>,
) -> Result<TreeStats> {
    if stage::interrupted() {
        return Err(Failure::interrupted());
    }
    let TreeSlice { temperature, trees, members } = slice;
    let loss = BatchLoss::new(inputs, members);
    let scores = match sum {
        Some(sum) => learner.accumulate_part(trees, temperature, &loss, sum)?,
        None => learner.accumulate(trees, temperature, &loss)?,
    };
    let of_tree = |scores: &Scores| scores.entropies.iter().map(|&entropy| f64::from(entropy)).sum();
    let with_scores = trees.iter().zip(&scores).enumerate();
    let spread: f64 =
        with_scores.map(|(index, (tree, scores))| loss.entropy_term(index, tree, &scores.entropies)).sum();
    let mut tokens = loss.token_stats();
    tokens.loss += spread;
    Ok(TreeStats { entropies: scores.iter().map(of_tree).collect(), tokens })
}
