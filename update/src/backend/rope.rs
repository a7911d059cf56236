//! Cosines and sines of rotary position embeddings (RoPE, arXiv 2104.09864), computed once a position.

/// The cos/sin cache of every position seen so far, `[position, pairs]` each.
#[derive(Clone, Debug, Default)]
pub(crate) struct RopeCache {
    inverse_frequencies: Vec<f32>,
    attention_factor: f32,
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
}

impl RopeCache {
    /// A cache without positions; frequencies in radians a position.
    pub(crate) fn new(inverse_frequencies: &[f32]) -> RopeCache {
        let inverse_frequencies = inverse_frequencies.to_vec();
        RopeCache { inverse_frequencies, attention_factor: 1.0, ..RopeCache::default() }
    }

    /// Multiplies cosines and sines by a factor.
    pub(crate) fn scaled(self, attention_factor: f32) -> RopeCache {
        RopeCache { attention_factor, ..self }
    }

    /// Extends the cache to positions below `count`. Angles are rounded to f32 before their cosine is taken, as in the
    /// reference implementation.
    pub(crate) fn extend_to(&mut self, count: usize) {
        let half = self.inverse_frequencies.len();
        let known = self.cos.len().checked_div(half).unwrap_or(count);
        for position in known..count {
            for &frequency in &self.inverse_frequencies {
                let angle = f64::from(frequency * position as f32);
                self.cos.push(angle.cos() as f32 * self.attention_factor);
                self.sin.push(angle.sin() as f32 * self.attention_factor);
            }
        }
    }

    /// Cosines and sines of one position.
    pub(crate) fn row(&self, position: u32) -> (&[f32], &[f32]) {
        let half = self.inverse_frequencies.len();
        let range = position as usize * half..(position as usize + 1) * half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}
