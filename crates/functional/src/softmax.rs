//! Sums of exponentials: the softmax of attention, whose keys may lie anywhere in memory, and the log-softmax
//! of logits, which may be computed chunk by chunk.

use crate::vector::{exp, maximum};
use crate::vectorized;

/// Rows that are summed in parallel, because the additions of a single row would wait for each other.
const SIDE_BY_SIDE: usize = 8;

vectorized! {
    /// Turns each row of `width` scores, `stride` apart, into `exp(score - largest)`. Writes each row's
    /// largest score to `largest`, and the sum of its exponentials to `sums`. Scores of negative infinity
    /// add exactly 0, and sums follow the order of the keys, so such scores may stand anywhere among the
    /// others without changing a bit.
    pub fn softmax(width: usize, stride: usize, scores: &mut [f32], largest: &mut [f32], sums: &mut [f32]) {
        let rows = scores.chunks_mut(SIDE_BY_SIDE * stride);
        let statistics = largest.chunks_mut(SIDE_BY_SIDE).zip(sums.chunks_mut(SIDE_BY_SIDE));
        for (scores, (largest, sums)) in rows.zip(statistics) {
            for (row, largest) in scores.chunks_mut(stride).zip(largest) {
                let row = &mut row[..width];
                let most = maximum(row);
                for score in row.iter_mut() {
                    *score = exp(*score - most);
                }
                *largest = most;
            }
            match <&mut [f32; SIDE_BY_SIDE]>::try_from(&mut *sums) {
                Ok(sums) => {
                    let rows: [&[f32]; SIDE_BY_SIDE] = std::array::from_fn(|row| &scores[row * stride..][..width]);
                    *sums = [0.0; SIDE_BY_SIDE];
                    for key in 0..width {
                        for (sum, row) in sums.iter_mut().zip(&rows) {
                            *sum += row[key];
                        }
                    }
                }
                Err(_) => {
                    for (row, sum) in scores.chunks(stride).zip(sums) {
                        *sum = 0.0;
                        for weight in &row[..width] {
                            *sum += weight;
                        }
                    }
                }
            }
        }
    }
}

/// Logits whose exponentials are summed together in f32.
pub const TILE: usize = 64;
/// Logits per chunk. Each chunk is summed relative to its largest logit, since a row may not
/// be in memory as a whole.
pub const CHUNK: usize = 4096;

/// Sums over a chunk of logits, in tiles of [`TILE`], relative to its largest logit.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogitChunk {
    /// The largest logit. A NaN may be skipped here, but makes the total NaN.
    pub largest: f32,
    /// `sum exp(scaled)`, where `scaled = (logit - largest) / temperature`.
    pub total: f64,
    /// `sum exp(scaled) * scaled`.
    moment: f64,
}

impl LogitChunk {
    /// Sums at most [`CHUNK`] logits; writes each tile's sum to `tiles`.
    pub fn new(logits: &[f32], temperature: f32, tiles: &mut [f32; CHUNK / TILE]) -> LogitChunk {
        let mut ends = (0.0, 0.0);
        sum_tiles(logits, 1.0 / temperature, tiles, &mut ends);
        let tiles = &tiles[..logits.len().div_ceil(TILE)];
        let total = tiles.iter().map(|&sum| f64::from(sum)).sum();
        LogitChunk { largest: ends.0, total, moment: f64::from(ends.1) }
    }

    /// The factor that makes the chunk's sums relative to `largest`, the largest logit of the row.
    pub fn factor(&self, largest: f32, temperature: f32) -> f64 {
        f64::from(exp((self.largest - largest) * (1.0 / temperature)))
    }
}

/// Adds lanes, folding halves.
#[inline(always)]
fn fold16(mut lanes: [f32; 16]) -> f32 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// `exp(scaled)`, and `moment + exp(scaled) * scaled`.
#[inline(always)]
fn exp_with_moment(scaled: f32, moment: f32) -> (f32, f32) {
    let weight = exp(scaled);
    // Avoids 0 × infinity for a logit of negative infinity.
    (weight, weight.mul_add(if weight == 0.0 { 0.0 } else { scaled }, moment))
}

vectorized! {
    /// Writes the sums of tiles, and the largest logit and the moment to `ends`.
    fn sum_tiles(logits: &[f32], scale: f32, tiles: &mut [f32; CHUNK / TILE], ends: &mut (f32, f32)) {
        let largest = maximum(logits);
        let shift = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        let mut moments = [0.0f32; 16];
        for (tile, sum) in logits.chunks(TILE).zip(tiles) {
            let mut lanes = [0.0f32; 16];
            let sixteens = tile.chunks_exact(16);
            let rest = sixteens.remainder();
            for logits in sixteens {
                for lane in 0..16 {
                    let (weight, moment) = exp_with_moment((logits[lane] - shift) * scale, moments[lane]);
                    (lanes[lane], moments[lane]) = (lanes[lane] + weight, moment);
                }
            }
            for lane in 0..rest.len() {
                let (weight, moment) = exp_with_moment((rest[lane] - shift) * scale, moments[lane]);
                (lanes[lane], moments[lane]) = (lanes[lane] + weight, moment);
            }
            *sum = fold16(lanes);
        }
        *ends = (largest, fold16(moments));
    }
}

vectorized! {
    /// exp((logit - shift) / temperature) of each logit: with the largest of its chunk, the same bits that a tile adds.
    pub fn exp_scaled(logits: &[f32], shift: f32, temperature: f32, weights: &mut Vec<f32>) {
        let scale = 1.0 / temperature;
        weights.clear();
        weights.resize(logits.len(), 0.0);
        for (weight, &logit) in weights.iter_mut().zip(logits) {
            *weight = exp((logit - shift) * scale);
        }
    }
}

/// A row of logits as a distribution.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSumExp {
    /// The largest logit.
    pub largest: f32,
    /// `sum exp(scaled)`, where `scaled = (logit - largest) / temperature`.
    pub total: f64,
    /// `sum exp(scaled) * scaled`.
    moment: f64,
    temperature: f32,
}

impl LogSumExp {
    /// Combines all chunks of a row, in order.
    pub fn new<'a>(chunks: impl Iterator<Item = &'a LogitChunk> + Clone, temperature: f32) -> LogSumExp {
        let largest = chunks.clone().map(|chunk| chunk.largest).fold(f32::NEG_INFINITY, f32::max);
        let mut all = LogSumExp { largest, total: 0.0, moment: 0.0, temperature };
        for chunk in chunks {
            let factor = chunk.factor(largest, temperature);
            all.total += chunk.total * factor;
            if factor > 0.0 {
                let scaled = (f64::from(chunk.largest) - f64::from(largest)) / f64::from(temperature);
                all.moment += factor * (chunk.moment + chunk.total * scaled);
            }
        }
        all
    }

    /// Returns true if no logit was NaN and at least one was finite.
    pub fn is_distribution(&self) -> bool {
        self.total.is_finite() && self.total > 0.0
    }

    /// log-softmax(logits / temperature) of one of the logits, in nats.
    pub fn logprob(&self, logit: f32) -> f32 {
        let scaled = (f64::from(logit) - f64::from(self.largest)) / f64::from(self.temperature);
        (scaled - self.total.ln()) as f32
    }

    /// `log sum exp(logit / temperature)`.
    pub fn log_sum(&self) -> f32 {
        (f64::from(self.largest) / f64::from(self.temperature) + self.total.ln()) as f32
    }

    /// The entropy of the distribution in nats.
    pub fn entropy(&self) -> f32 {
        (self.total.ln() - self.moment / self.total) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(logits: &[f32], temperature: f32) -> LogSumExp {
        let mut tiles = [0.0; CHUNK / TILE];
        let chunks: Vec<LogitChunk> =
            logits.chunks(CHUNK).map(|chunk| LogitChunk::new(chunk, temperature, &mut tiles)).collect();
        LogSumExp::new(chunks.iter(), temperature)
    }

    #[test]
    fn a_distribution_of_several_chunks_is_that_of_f64() {
        for (length, temperature) in [(1, 1.0), (97, 0.7), (4096, 1.0), (9000, 1.3)] {
            // The largest logit is in the second chunk, if there is one, and some tokens are impossible.
            let logit = |i: usize| match i % 50 {
                7 => f32::NEG_INFINITY,
                _ => (i as f32 * 0.7).sin() * 12.0 + if i > 4096 { 3.0 } else { 0.0 },
            };
            let logits: Vec<f32> = (0..length).map(logit).collect();
            let all = distribution(&logits, temperature);
            let scaled: Vec<f64> =
                logits.iter().map(|&logit| f64::from(logit) / f64::from(temperature)).collect();
            let lse = scaled.iter().map(|scaled| scaled.exp()).sum::<f64>().ln();
            let entropy: f64 = scaled
                .iter()
                .filter(|scaled| scaled.is_finite())
                .map(|scaled| (lse - scaled) * (scaled - lse).exp())
                .sum();
            assert!((f64::from(all.log_sum()) - lse).abs() < 2e-6, "{length}: {} not {lse}", all.log_sum());
            assert!((f64::from(all.entropy()) - entropy).abs() < 1e-5, "{length}: {}", all.entropy());
            assert!((f64::from(all.logprob(logits[0])) - (scaled[0] - lse)).abs() < 3e-6);
            assert!(all.is_distribution());
        }
        for bad in [f32::NAN, f32::INFINITY] {
            for at in [0, 70, 5000] {
                let mut logits = vec![0.5; 5001];
                logits[at] = bad;
                assert!(!distribution(&logits, 1.0).is_distribution(), "{bad} at {at}");
            }
        }
        assert!(!distribution(&[f32::NEG_INFINITY; 5000], 1.0).is_distribution());
    }

    #[test]
    fn hidden_keys_change_no_bit_of_a_softmax() {
        let seen: Vec<f32> = (0..45).map(|i| (i as f32 * 1.3).cos() * 4.0).collect();
        for rows in [1, 3, 8, 19] {
            let stride = 3 * seen.len();
            let (mut apart, mut largest, mut sums) =
                (vec![f32::NEG_INFINITY; rows * stride], vec![0.0; rows], vec![0.0; rows]);
            for (row, scores) in apart.chunks_mut(stride).enumerate() {
                for (key, &score) in seen.iter().enumerate() {
                    scores[2 * key + row % 3] = score;
                }
            }
            softmax(stride, stride, &mut apart, &mut largest, &mut sums);
            let (mut alone, mut own_largest, mut own_sum) = (seen.clone(), [0.0], [0.0]);
            softmax(seen.len(), seen.len(), &mut alone, &mut own_largest, &mut own_sum);
            let truth: f64 = seen.iter().map(|&score| f64::from(score - own_largest[0]).exp()).sum();
            assert!((f64::from(own_sum[0]) - truth).abs() < 1e-5 * truth);
            for (row, scores) in apart.chunks(stride).enumerate() {
                assert_eq!((largest[row], sums[row]), (own_largest[0], own_sum[0]), "{row} of {rows}");
                assert!((0..seen.len()).all(|key| scores[2 * key + row % 3] == alone[key]));
                assert_eq!(scores.iter().filter(|&&weight| weight > 0.0).count(), seen.len());
            }
        }
    }
}
