//! Scores a pair of texts in levels: a failed level ends the score, and points already earned remain.
//!
//! | level | condition | points |
//! |---|---|---|
//! | structure | both texts have a number of words in range | 0.5 |
//! | length | characters of the second by the first's, ρ | up to 1 |
//! | vocabulary | distinct words of the second by the first's, u | up to 0.5 |
//! | style | kinds of connectives, 0.4, and shared words, 0.6 | up to 1 |
//!
//! A ratio at the edge of its range earns 0 but passes the level.

/// Largest total of points.
pub const MOST: f64 = 3.0;

/// A share that rises from 0 at `from` to 1 at `least`, and falls from 1 at `most` to 0 at `to`.
#[derive(Clone, Copy, Debug)]
pub struct Ramp {
    /// Smallest ratio that passes.
    pub from: f64,
    /// Smallest ratio with share 1.
    pub least: f64,
    /// Largest ratio with share 1.
    pub most: f64,
    /// Largest ratio that passes.
    pub to: f64,
}

impl Ramp {
    /// The share at `ratio`; `None` if out of range.
    pub fn at(&self, ratio: f64) -> Option<f64> {
        let Ramp { from, least, most, to } = *self;
        match ratio {
            _ if (least..=most).contains(&ratio) => Some(1.0),
            _ if (from..least).contains(&ratio) => Some((ratio - from) / (least - from)),
            _ if ratio > most && ratio <= to => Some(1.0 - (ratio - most) / (to - most)),
            _ => None,
        }
    }
}

/// The conditions of the levels.
#[derive(Clone, Copy, Debug)]
pub struct Gates {
    /// Fewest and most words of a text.
    pub words: (usize, usize),
    /// ρ.
    pub length: Ramp,
    /// u.
    pub vocabulary: Ramp,
    /// Points for each kind of connective after the first, added to 0.4.
    pub kind: f64,
    /// The Jaccard index of the two word sets that earns the full points.
    pub overlap: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Words of each text.
    pub words: [usize; 2],
    /// The length of each text.
    pub length: [usize; 2],
    /// Different words of each text.
    pub vocabulary: [usize; 2],
    /// Kinds of connectives.
    pub kinds: usize,
    /// The Jaccard index.
    pub overlap: f64,
}

/// The share of each level, in [0, 1]; 0 from the first failed level on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Both texts have a number of words in range.
    pub structure: f64,
    /// ρ.
    pub length: f64,
    /// u.
    pub vocabulary: f64,
    pub connectives: f64,
    /// Shared words.
    pub overlap: f64,
}

impl Score {
    /// The score of `counts`.
    pub fn of(counts: &Counts, gates: &Gates) -> Score {
        let mut score = Score::default();
        let (least, most) = gates.words;
        if !counts.words.iter().all(|words| (least..=most).contains(words)) {
            return score;
        }
        score.structure = 1.0;
        let ratio = |[first, second]: [usize; 2]| (first > 0).then(|| second as f64 / first as f64);
        let Some(length) = ratio(counts.length).and_then(|ratio| gates.length.at(ratio)) else {
            return score;
        };
        score.length = length;
        let vocabulary = ratio(counts.vocabulary).and_then(|ratio| gates.vocabulary.at(ratio));
        let Some(vocabulary) = vocabulary else { return score };
        score.vocabulary = vocabulary;
        score.connectives = match counts.kinds {
            0 => 0.0,
            kinds => (0.4 + (gates.kind * (kinds - 1) as f64).min(0.6)).min(1.0),
        };
        score.overlap = counts.overlap.min(gates.overlap) / gates.overlap;
        score
    }

    /// The total of points, 0 to 3.
    pub fn total(&self) -> f64 {
        let style = 0.4 * self.connectives + 0.6 * self.overlap;
        0.5 * self.structure + self.length + 0.5 * self.vocabulary + style
    }

    /// The levels by name.
    pub fn components(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("structure", self.structure),
            ("length", self.length),
            ("vocabulary", self.vocabulary),
            ("connectives", self.connectives),
            ("overlap", self.overlap),
        ]
    }
}

/// The Jaccard index of two sets; 1 if both are empty.
pub fn jaccard<T: Eq + std::hash::Hash>(
    left: &std::collections::HashSet<T>,
    right: &std::collections::HashSet<T>,
) -> f64 {
    let shared = left.intersection(right).count();
    let all = left.len() + right.len() - shared;
    if all == 0 { 1.0 } else { shared as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATES: Gates = Gates {
        words: (8, 256),
        length: Ramp { from: 1.1, least: 1.6, most: 3.2, to: 5.0 },
        vocabulary: Ramp { from: 1.3, least: 2.0, most: f64::INFINITY, to: f64::INFINITY },
        kind: 0.05,
        overlap: 0.03,
    };

    fn total(length: [usize; 2], vocabulary: [usize; 2], kinds: usize, overlap: f64) -> f64 {
        Score::of(&Counts { words: [8, 256], length, vocabulary, kinds, overlap }, &GATES).total()
    }

    /// Worked out by hand from the published rules.
    #[test]
    fn levels_and_their_edges() {
        for (length, vocabulary, kinds, overlap, want) in [
            ([100, 135], [20, 33], 3, 0.015, 0.5 + 0.5 + 0.25 + 0.5),
            ([100, 200], [10, 20], 12, 0.03, 2.98),
            ([100, 600], [10, 20], 12, 1.0, 0.5),
            ([100, 110], [10, 20], 0, 0.0, 1.0),
            ([100, 500], [10, 20], 0, 0.0, 1.0),
            ([100, 109], [10, 20], 12, 1.0, 0.5),
            ([100, 200], [10, 13], 1, 0.0, 1.5 + 0.4 * 0.4),
            ([100, 200], [100, 129], 12, 1.0, 1.5),
            ([100, 200], [0, 20], 12, 1.0, 1.5),
            ([100, 410], [10, 20], 0, 0.0, 0.5 + 0.5 + 0.5),
        ] {
            let got = total(length, vocabulary, kinds, overlap);
            assert!((got - want).abs() < 1e-12, "{length:?} {vocabulary:?} {kinds} {overlap}: {got}");
        }
        let short =
            Counts { words: [7, 100], length: [50, 100], vocabulary: [7, 50], kinds: 12, overlap: 1.0 };
        assert_eq!(Score::of(&short, &GATES).total(), 0.0);
    }
}
