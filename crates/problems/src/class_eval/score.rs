//! Scores the choice of methods: all of them, each once, shared equally.
//!
//! With V methods, s_i different ones written by agent i of N, S their sum, and c the share of V that anybody wrote:
//!
//! | part | points |
//! |---|---|
//! | coverage | 2 c, from c = 1/2 on |
//! | overlap | 2 - 3 (S - V)²/V² up to S = V, then a parabola through 2 at V, -1 at 2V + 1 and -2 at 2V + 2 |
//! | balance | 3.5 (1 - MSD/MSD_max) - 0.5, MSD the mean of (s_i - V/N)², MSD_max = V² (1 - 1/N)/N |
//!
//! An agent without a method: -2 in all. c below 0.35, or S above 2V + 2: -1 in all.
//!
//! From V = 7 on the parabola exceeds 2 between V and 2V, so writing methods twice pays. The published rule
//! does the same; `capped` limits the part to 2.

/// Points by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Up to 2.
    pub coverage: f64,
    /// Up to 2, or more where V is 7 or more.
    pub overlap: f64,
    /// -0.5 to 3.
    pub balance: f64,
    /// What takes the place of the sum.
    pub penalty: Option<f64>,
}

impl Score {
    /// The score of agents who wrote `counts` of `methods` methods, `union` different ones together.
    pub fn of(methods: usize, counts: &[usize], union: usize, capped: bool) -> Score {
        let refused = |penalty| Score { penalty: Some(penalty), ..Score::default() };
        let written: usize = counts.iter().sum();
        if counts.contains(&0) {
            return refused(-2.0);
        }
        let (v, n) = (methods as f64, counts.len() as f64);
        let share = union as f64 / v;
        if methods == 0 || share < 0.35 || written > 2 * methods + 2 {
            return refused(-1.0);
        }
        let coverage = if share < 0.5 { 0.0 } else { 2.0 * share };
        let overlap = overlap(methods, written);
        let msd = counts.iter().map(|count| (*count as f64 - v / n).powi(2)).sum::<f64>() / n;
        let most = v * v * (1.0 - 1.0 / n) / n;
        let balance = 3.5 * (1.0 - msd / (most + 1e-8)).max(0.0) - 0.5;
        Score { coverage, overlap: if capped { overlap.min(2.0) } else { overlap }, balance, penalty: None }
    }

    /// The sum.
    pub fn total(&self) -> f64 {
        self.penalty.unwrap_or(self.coverage + self.overlap + self.balance)
    }

    /// The sum of a class that passes this share of its tests: points take a class that works, penalties do not.
    pub fn earned(&self, tests: f64) -> f64 {
        let total = self.total();
        if total > 0.0 { tests * total } else { total }
    }

    /// The greatest total that there can be for so many methods and agents.
    pub fn most(methods: usize, agents: usize, capped: bool) -> f64 {
        let overlaps = (methods..=methods * agents.max(1)).map(|written| overlap(methods, written));
        let most = overlaps.filter(|_| !capped).fold(2.0, f64::max);
        2.0 + most + 3.0
    }
}

/// The second part, for `written` methods with repetitions.
fn overlap(methods: usize, written: usize) -> f64 {
    let (v, more) = (methods as f64, written as f64 - methods as f64);
    if written <= methods {
        return 2.0 - 3.0 * (more * more) / (v * v);
    }
    let linear = (v * v - 4.0 * v - 8.0) / (v * v + 3.0 * v + 2.0);
    let square = (2.0 - v) / ((v + 1.0) * (v + 2.0));
    2.0 + linear * more + square * more * more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-6, "{got}, not {want}");
    }

    #[test]
    fn published_values() {
        near(Score::of(5, &[3, 2], 5, false).total(), 6.86);
        for (written, want) in
            [(1, 0.08), (3, 1.52), (5, 2.0), (6, 1.857143), (8, 1.142857), (11, -1.0), (12, -2.0)]
        {
            near(overlap(5, written), want);
        }
        for (counts, union, want) in [
            (&[5, 0][..], 5, -2.0),
            (&[0, 0], 0, -2.0),
            (&[1], 1, -1.0),
            (&[1, 1], 1, -1.0),
            (&[1, 1], 2, 0.0 + (2.0 - 3.0 * 9.0 / 25.0) + 3.5 * (1.0 - 2.25 / 6.25) - 0.5),
            (&[5, 4, 4], 5, -1.0),
            (&[5], 5, 7.0),
        ] {
            near(Score::of(5, counts, union, false).total(), want);
        }
        near(Score::of(0, &[1, 1], 0, false).total(), -1.0);
    }

    #[test]
    fn earned_values() {
        for (counts, union, tests, want) in [
            (&[2, 2][..], 4, 1.0, 7.0),
            (&[2, 2], 4, 0.25, 1.75),
            (&[2, 2], 4, 0.0, 0.0),
            (&[4, 0], 4, 1.0, -2.0),
            (&[1, 1], 1, 0.5, -1.0),
        ] {
            near(Score::of(4, counts, union, false).earned(tests), want);
        }
    }

    /// Ten methods of which three are written twice pay more than ten written once, unless capped.
    #[test]
    fn overlap_pays_in_large_classes() {
        let (once, twice) = (Score::of(10, &[5, 5], 10, false), Score::of(10, &[7, 6], 10, false));
        assert!(twice.overlap > 2.6 && once.overlap == 2.0);
        assert_eq!(Score::of(10, &[7, 6], 10, true).overlap, 2.0);
        for methods in 1..40 {
            for left in 1..=methods {
                for right in 1..=methods {
                    for capped in [false, true] {
                        let score =
                            Score::of(methods, &[left, right], methods.min(left + right), capped).total();
                        assert!(
                            (-2.0..=Score::most(methods, 2, capped)).contains(&score),
                            "{methods} {left} {right}"
                        );
                    }
                }
            }
        }
    }
}
