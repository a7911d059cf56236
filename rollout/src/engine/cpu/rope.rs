//! The cos/sin cache of the rotary embedding (RoPE, Su et al., arXiv 2104.09864).

/// Tables of `[positions][head_size / 2]`, which grow with the longest sequence.
#[derive(Debug, Clone)]
pub struct Rope {
    frequencies: Vec<f32>,
    cosines: Vec<f32>,
    sines: Vec<f32>,
    layers: Vec<bool>,
}

impl Rope {
    /// `frequencies`: radians per position for each pair of dimensions, `head_size / 2` of them; `layers`: whether each
    /// layer rotates (the others are NoPE).
    pub fn new(frequencies: Vec<f32>, layers: Vec<bool>) -> Self {
        Rope { frequencies, cosines: Vec::new(), sines: Vec::new(), layers }
    }

    /// Makes positions `0..count` available. The angle is rounded to f32 before its cosine is taken, as the reference
    /// implementations do.
    pub fn reserve(&mut self, count: usize) {
        let have = self.cosines.len() / self.frequencies.len();
        for position in have..count.next_multiple_of(64).max(have) {
            for &frequency in &self.frequencies {
                let angle = f64::from(position as f32 * frequency);
                self.cosines.push(angle.cos() as f32);
                self.sines.push(angle.sin() as f32);
            }
        }
    }

    /// The cosines and sines of a reserved position in a layer. Without rotation they are those of position 0: 1 and 0.
    #[inline(always)]
    pub fn at(&self, layer: usize, position: usize) -> (*const f32, *const f32) {
        let half = self.frequencies.len();
        let position = if self.layers[layer] { position } else { 0 };
        let range = position * half..(position + 1) * half;
        (self.cosines[range.clone()].as_ptr(), self.sines[range].as_ptr())
    }
}
