//! What a token contributes to the loss, and the derivative of that by the token's log-probability.
//!
//! One function an objective, formula first. The model hands over `new = log π_θ(token | prefix)` and takes
//! back `dloss/dnew`; everything below a log-probability (softmax, layers) is the model's business, everything
//! above (how tokens are averaged) is [`crate::aggregate`]'s. All arithmetic is f64 per token: it is a handful of
//! operations per token against millions in the model, and it keeps `exp` of a difference exact to f32.
//!
//! Left out: the entropy term, whose derivative is by logits and not by the token's log-probability (`backend/`), and a critic
//! (the advantage arrives in the record).

/// A term of the loss for one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// Contribution to the loss, to be minimized.
    pub loss: f64,
    /// Derivative of `loss` by the token's log-probability under the policy in training.
    pub grad: f64,
}

/// The clipped surrogate of PPO on token ratios: Schulman et al. 2017 (arXiv 1707.06347), equation 7, with the
/// asymmetric range of DAPO (arXiv 2503.14476), equation 8.
///
/// ```text
/// ρ    = exp(new − old)
/// loss = −min(ρ·A, clip(ρ, 1 − low, 1 + high)·A)
/// ```
///
/// The grad is `−ρ·A` where the first argument of the minimum is chosen and 0 where the clipped one is. `old` is
/// the log-probability recorded when the token was sampled.
///
/// Returns the term, the ratio ρ, and whether the clipped branch was chosen.
pub fn clip(new: f64, old: f64, advantage: f64, low: f64, high: f64) -> (Term, f64, bool) {
    let ratio = (new - old).exp();
    let free = ratio * advantage;
    let held = ratio.clamp(1.0 - low, 1.0 + high) * advantage;
    if free <= held {
        (Term { loss: -free, grad: -free }, ratio, false)
    } else {
        (Term { loss: -held, grad: 0.0 }, ratio, true)
    }
}

/// CISPO: a policy gradient whose token ratio is held from above and not differentiated, so that no token loses its
/// gradient (MiniMax-M1, arXiv 2506.13585, equation 4).
///
/// ```text
/// ρ    = exp(new − old)
/// loss = −sg(min(ρ, cap))·A·new       dloss/dnew = −min(ρ, cap)·A
/// ```
///
/// The value of the loss has no meaning: it contains `new`. Returns the term, and whether the ratio was held.
pub fn cispo(new: f64, old: f64, advantage: f64, cap: f64) -> (Term, bool) {
    let ratio = (new - old).exp();
    let weight = ratio.min(cap) * advantage;
    (Term { loss: -weight * new, grad: -weight }, ratio > cap)
}

/// The most that the logarithm of a sequence's weight may be, either way: a long sequence would overflow.
const LOG_WEIGHT: f64 = 20.0;

/// The importance weight of a sequence, `exp(Σ (start − recorded))` over its tokens. The sum is held within ±20.
pub fn sequence_weight(difference: f64) -> f64 {
    difference.clamp(-LOG_WEIGHT, LOG_WEIGHT).exp()
}

/// Truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
/// training"; the truncation is from Ionides 2008, and IMPALA's, arXiv 1802.01561): a sampler whose numbers are not
/// quite the trainer's makes on-policy samples slightly off-policy. Each token's term is weighted by
///
/// ```text
/// w = min(exp(start − recorded), cap)
/// ```
///
/// a constant, where `start` is the trainer's own log-probability under the weights that were sampled from; the ratio of
/// [`clip`] is then taken to `start` and not to `recorded`.
///
/// Masked importance sampling drops what is outside of `[floor, cap]` instead (w = 0). Both are of a token, or of its whole
/// sequence ([`sequence_weight`]).
///
/// Returns the weight, and whether it was truncated or dropped.
pub fn importance(weight: f64, WeightBounds { floor, cap, mask }: WeightBounds) -> (f64, bool) {
    match mask {
        true if weight < floor || weight > cap => (0.0, true),
        false if weight > cap => (cap, true),
        _ => (weight, false),
    }
}

/// Where importance weights end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightBounds {
    /// The least weight that is kept, where others are dropped.
    pub floor: f64,
    /// The greatest.
    pub cap: f64,
    /// True if a weight outside becomes 0 rather than the nearest bound.
    pub mask: bool,
}

/// The unbiased, always positive estimator of KL(π_θ ‖ π_ref) of DeepSeekMath (arXiv 2402.03300), equation 4
/// (Schulman's "k3"):
///
/// ```text
/// d  = reference − new
/// kl = exp(d) − d − 1            dkl/dnew = 1 − exp(d)
/// ```
pub fn kl(new: f64, reference: f64) -> Term {
    let difference = reference - new;
    let ratio = difference.exp();
    Term { loss: difference.exp_m1() - difference, grad: 1.0 - ratio }
}

/// Weighted negative log-likelihood, the objective of a supervised warm-up:
///
/// ```text
/// loss = −w·new                  dloss/dnew = −w
/// ```
pub fn nll(new: f64, weight: f64) -> Term {
    Term { loss: -weight * new, grad: -weight }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand: ratio, advantage, range -> loss, grad, clipped.
    #[test]
    fn clip_takes_the_pessimistic_branch() {
        let cases: [(f64, f64, f64, f64, f64, f64, bool); 8] = [
            // Inside the range nothing is clipped.
            (1.0, 2.0, 0.2, 0.2, -2.0, -2.0, false),
            (1.1, -1.5, 0.2, 0.2, 1.65, 1.65, false),
            // A good token already more likely than the range allows: held, no grad.
            (1.5, 2.0, 0.2, 0.2, -2.4, 0.0, true),
            // A good token that became unlikely: the free branch is the smaller one, the grad brings it back.
            (0.5, 2.0, 0.2, 0.2, -1.0, -1.0, false),
            // A bad token already pushed far enough down: held.
            (0.5, -2.0, 0.2, 0.2, 1.6, 0.0, true),
            // A bad token that became likely: the grad pushes it down without a limit.
            (3.0, -2.0, 0.2, 0.2, 6.0, 6.0, false),
            // The upper bound is its own number.
            (1.25, 1.0, 0.2, 0.28, -1.25, -1.25, false),
            (1.5, 1.0, 0.2, 0.28, -1.28, 0.0, true),
        ];
        for (ratio, advantage, low, high, loss, grad, clipped) in cases {
            let (term, seen, was) = clip(-2.0 + ratio.ln(), -2.0, advantage, low, high);
            assert!((seen - ratio).abs() < 1e-12, "ratio {seen} instead of {ratio}");
            assert!((term.loss - loss).abs() < 1e-12, "{ratio} {advantage}: loss {} not {loss}", term.loss);
            assert!((term.grad - grad).abs() < 1e-12, "{ratio} {advantage}: grad {} not {grad}", term.grad);
            assert_eq!(was, clipped, "{ratio} {advantage}");
        }
    }

    #[test]
    fn importance_is_cut_above_its_cap_and_not_at_it() {
        let outside = |floor, cap, mask| WeightBounds { floor, cap, mask };
        assert_eq!(importance(1.0, outside(0.0, 1.0, false)), (1.0, false));
        assert_eq!(importance(2.7, outside(0.0, 2.0, false)), (2.0, true));
        assert_eq!(importance(0.3, outside(0.5, 2.0, false)), (0.3, false));
        assert_eq!(importance(2.7, outside(0.5, 2.0, true)), (0.0, true));
        assert_eq!(importance(0.3, outside(0.5, 2.0, true)), (0.0, true));
        assert_eq!(importance(0.5, outside(0.5, 2.0, true)), (0.5, false));
    }

    #[test]
    fn a_long_sequence_has_a_finite_weight() {
        assert_eq!(sequence_weight(900.0), 20.0f64.exp());
        assert_eq!(sequence_weight(-900.0), (-20.0f64).exp());
    }

    #[test]
    fn kl_is_zero_at_equality_and_positive_elsewhere() {
        assert_eq!(kl(-1.25, -1.25), Term { loss: 0.0, grad: 0.0 });
        let above = kl(-1.0, -2.0);
        assert!((above.loss - ((-1.0f64).exp() + 1.0 - 1.0)).abs() < 1e-15, "{above:?}");
        assert!((above.grad - (1.0 - (-1.0f64).exp())).abs() < 1e-15, "{above:?}");
        for reference in [-9.0, -1.3, -0.01] {
            assert!(kl(-1.0, reference).loss > 0.0);
        }
    }

    #[test]
    fn slopes_are_the_derivatives() {
        let step = 1e-6;
        let numeric = |f: &dyn Fn(f64) -> f64, at: f64| (f(at + step) - f(at - step)) / (2.0 * step);
        for new in [-3.0, -1.02, -0.99, -0.4] {
            for advantage in [-1.7, 0.9] {
                let f = |x: f64| clip(x, -1.0, advantage, 0.2, 0.28).0.loss;
                let difference = clip(new, -1.0, advantage, 0.2, 0.28).0.grad - numeric(&f, new);
                assert!(difference.abs() < 1e-8, "clip at {new}: off by {difference:e}");
            }
            let (term, capped) = cispo(new, -1.0, 0.9, 1.2);
            assert_eq!((term.grad, capped), (-0.9 * (new + 1.0).exp().min(1.2), new > -1.0 + 1.2f64.ln()));
            assert!((term.loss - term.grad * new).abs() < 1e-15, "the ratio is a constant");
            let difference = kl(new, -1.0).grad - numeric(&|x| kl(x, -1.0).loss, new);
            assert!(difference.abs() < 1e-8, "kl at {new}: off by {difference:e}");
            let difference = nll(new, 0.7).grad - numeric(&|x| nll(x, 0.7).loss, new);
            assert!(difference.abs() < 1e-8, "nll at {new}: off by {difference:e}");
        }
    }
}
