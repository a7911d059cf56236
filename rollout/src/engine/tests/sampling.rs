//! The sampler against its target distribution, and the vector functions against f64.

use super::support::tokens;
use crate::engine::SamplingParams;
use crate::engine::cpu::sampler::Sampler;
use record::philox::{Part, Stream};

/// Logits that look like a model's: a few likely tokens, many unlikely ones, some equal.
fn logits(count: usize) -> Vec<f32> {
    let numbers = tokens("logits", 0, count);
    numbers.iter().map(|&number| (number as f32 / 64.0 - 4.0).powi(3) / 16.0).collect()
}

/// softmax(logits / temperature) in f64.
fn probabilities(logits: &[f32], temperature: f32) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |&logit: &f32| (f64::from(logit - largest) / f64::from(temperature)).exp();
    let total: f64 = logits.iter().map(weight).sum();
    logits.iter().map(|logit| weight(logit) / total).collect()
}

/// The tokens that truncation keeps, by sorting everything.
fn kept(probabilities: &[f64], logits: &[f32], sampling: &SamplingParams) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k as usize);
    }
    let mass: f64 = order.iter().map(|&id| probabilities[id]).sum();
    let mut covered = 0.0;
    let mut kept = Vec::new();
    for id in order {
        if covered >= f64::from(sampling.top_p) * mass {
            break;
        }
        covered += probabilities[id];
        kept.push(id);
    }
    let largest = probabilities.iter().copied().fold(0.0, f64::max);
    kept.retain(|&id| probabilities[id] >= f64::from(sampling.min_p) * largest);
    kept
}

#[test]
fn draws_follow_the_distribution() {
    const DRAWS: u64 = 60_000;
    let settings = [
        (1.0, 1.0, 0, 0.0),
        (0.6, 1.0, 0, 0.0),
        (1.7, 1.0, 0, 0.0),
        (1.0, 1.0, 12, 0.0),
        (1.0, 0.8, 0, 0.0),
        (0.8, 0.7, 40, 0.0),
        (1.0, 0.05, 0, 0.0),
        (1.0, 1.0, 0, 0.11),
        (1.3, 0.95, 60, 0.02),
    ];
    for (size, (temperature, top_p, top_k, min_p)) in [(64, 0), (200, 1), (517, 2)]
        .iter()
        .flat_map(|&(size, _)| settings.iter().map(move |&setting| (size, setting)))
    {
        let sampling = SamplingParams { temperature, top_p, top_k, min_p, greedy: false };
        let logits = logits(size);
        let probabilities = probabilities(&logits, temperature);
        let kept = kept(&probabilities, &logits, &sampling);
        let mass: f64 = kept.iter().map(|&id| probabilities[id]).sum();
        let mut sampler = Sampler::default();
        let stream = Stream::named(9, &[Part::Number(size as u64)]);
        sampler.prepare(&logits, &sampling).expect("numbers");
        let mut counts = vec![0_u64; size];
        let mut worst = 0.0_f32;
        for position in 0..DRAWS {
            let draw = sampler.draw(&logits, &sampling, stream.uniform(position));
            counts[draw.id as usize] += 1;
            worst = std::cmp::max_by(
                worst,
                (draw.logprob - probabilities[draw.id as usize].ln() as f32).abs(),
                f32::total_cmp,
            );
        }
        assert!(worst < 1e-5, "{sampling:?}: log-probability off by {worst:.2e}");
        // Pearson's statistic over cells with at least five expected samples; the others share a cell.
        let (mut statistic, mut cells) = (0.0, 0);
        let (mut rest_expected, mut rest_seen) = (0.0, 0);
        for &id in &kept {
            let expected = probabilities[id] / mass * DRAWS as f64;
            if expected < 5.0 {
                rest_expected += expected;
                rest_seen += counts[id];
            } else {
                statistic += (counts[id] as f64 - expected).powi(2) / expected;
                cells += 1;
            }
        }
        if rest_expected >= 5.0 {
            statistic += (rest_seen as f64 - rest_expected).powi(2) / rest_expected;
            cells += 1;
        }
        let inside: u64 = kept.iter().map(|&id| counts[id]).sum();
        assert_eq!(inside, DRAWS, "{sampling:?}: a token was drawn that truncation removes");
        // The mean is cells - 1 and the variance twice that; five standard deviations do not occur by chance.
        let freedom = f64::from(cells - 1);
        println!("{size} {sampling:?}: {} kept, statistic {statistic:.1} of {freedom}", kept.len());
        assert!(statistic <= freedom + 5.0 * (2.0 * freedom).sqrt() + 1e-9, "{statistic} of {freedom}");
    }
}

#[test]
fn greedy_takes_the_lowest_of_the_likeliest() {
    let mut sampler = Sampler::default();
    let sampling = SamplingParams { temperature: 0.3, greedy: true, ..SamplingParams::PLAIN };
    for (first, second) in [(0, 1), (3, 40), (15, 16), (63, 64), (99, 100), (40, 100)] {
        let mut logits = logits(101);
        logits[first] = 30.0;
        logits[second] = 30.0;
        sampler.prepare(&logits, &sampling).expect("numbers");
        let draw = sampler.draw(&logits, &sampling, 0.999);
        assert_eq!(draw.id as usize, first);
        // The temperature has no effect.
        assert!((draw.logprob + 2.0_f32.ln()).abs() < 1e-4, "{}", draw.logprob);
    }
}

/// Rows that top-p 0.5 divides exactly: with equal logits, and with unequal logits of equal weight.
pub const HALVES: [[f32; 2]; 2] = [[0.0, 0.0], [0.0, -1e-10]];

#[test]
fn tokens_that_weigh_exactly_top_p_are_enough() {
    let mut sampler = Sampler::default();
    let sampling = SamplingParams { top_p: 0.5, ..SamplingParams::PLAIN };
    for logits in HALVES {
        sampler.prepare(&logits, &sampling).expect("numbers");
        for uniform in [0.0, 0.3, 0.6, 0.999] {
            assert_eq!(sampler.draw(&logits, &sampling, uniform).id, 0, "{logits:?} at {uniform}");
        }
    }
}

#[test]
fn the_ends_of_the_line_hit_tokens_that_can_occur() {
    let almost_one = 1.0 - 1.0 / 16_777_216.0;
    let mut sampler = Sampler::default();
    let mut logits = vec![-1e4_f32; 300];
    logits[70] = 1.0;
    logits[200] = 2.0;
    for top_p in [1.0, 0.999] {
        let sampling = SamplingParams { top_p, ..SamplingParams::PLAIN };
        sampler.prepare(&logits, &sampling).expect("numbers");
        assert_eq!(sampler.draw(&logits, &sampling, 0.0).id, 70);
        assert_eq!(sampler.draw(&logits, &sampling, almost_one).id, 200);
    }
}

#[test]
fn logits_that_are_not_numbers_are_an_error() {
    let mut sampler = Sampler::default();
    for bad in [f32::NAN, f32::INFINITY] {
        for place in [0, 15, 16, 77, 99] {
            let mut logits = logits(100);
            logits[place] = bad;
            assert!(sampler.prepare(&logits, &SamplingParams::PLAIN).is_err(), "{bad} at {place}");
        }
    }
    assert!(sampler.prepare(&[f32::NEG_INFINITY; 100], &SamplingParams::PLAIN).is_err());
}
