//! pass@k: the chance that at least one of k samples solves the task (Chen et al., "Evaluating large language models
//! trained on code", arXiv 2107.03374, equation 1).

/// The unbiased estimate 1 - C(n - c, k) / C(n, k) from `samples` n of which `solved` c solved the task; none where
/// there are fewer than `k` samples, because a smaller sample knows nothing about a larger one.
pub fn pass_at(k: u64, samples: u64, solved: u64) -> Option<f64> {
    if k == 0 || k > samples || solved > samples {
        return None;
    }
    if samples - solved < k {
        return Some(1.0);
    }
    // The product of the paper's listing: no factorial, hence no overflow.
    let missed: f64 = (samples - solved + 1..=samples).map(|i| 1.0 - k as f64 / i as f64).product();
    Some(1.0 - missed)
}

/// The k that are reported for n samples a task: the powers of two below n, and n.
pub fn ks(samples: u64) -> Vec<u64> {
    let mut ks: Vec<u64> =
        std::iter::successors(Some(1), |k| Some(k * 2)).take_while(|&k| k < samples).collect();
    ks.push(samples.max(1));
    ks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of all subsets of k samples that hold a solved one, counted one by one.
    fn by_counting(k: u64, samples: u64, solved: u64) -> f64 {
        let (mut all, mut hit) = (0_u64, 0_u64);
        for subset in 0_u64..1 << samples {
            if u64::from(subset.count_ones()) == k {
                all += 1;
                hit += u64::from(subset & ((1 << solved) - 1) != 0);
            }
        }
        hit as f64 / all as f64
    }

    #[test]
    fn the_estimate_is_what_counting_gives() {
        for samples in 1..=10 {
            for solved in 0..=samples {
                for k in 1..=samples {
                    let (found, wanted) =
                        (pass_at(k, samples, solved).unwrap(), by_counting(k, samples, solved));
                    assert!(
                        (found - wanted).abs() < 1e-12,
                        "n {samples}, c {solved}, k {k}: {found}, {wanted}"
                    );
                }
            }
        }
        assert_eq!(pass_at(3, 2, 1), None);
        assert_eq!(pass_at(0, 2, 1), None);
        assert!((pass_at(100, 10_000, 100).unwrap() - 0.635_8).abs() < 1e-3);
    }

    #[test]
    fn the_reported_k() {
        assert_eq!(ks(1), [1]);
        assert_eq!(ks(8), [1, 2, 4, 8]);
        assert_eq!(ks(10), [1, 2, 4, 8, 10]);
    }
}
