//! The angles of rotary positions (arXiv 2104.09864), computed once a position.

/// Cosines and sines of every position seen so far, `[position, width / 2]` each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Angles {
    frequencies: Vec<f32>,
    pub(crate) cosines: Vec<f32>,
    pub(crate) sines: Vec<f32>,
}

impl Angles {
    /// A table without positions, of these frequencies in radians a position.
    pub(crate) fn new(frequencies: &[f32]) -> Angles {
        Angles { frequencies: frequencies.to_vec(), ..Angles::default() }
    }

    /// Extends the table to positions below `count`. Angles are rounded to f32 before their cosine is taken,
    /// as the reference implementation does.
    pub(crate) fn cover(&mut self, count: usize) {
        let half = self.frequencies.len();
        let known = self.cosines.len().checked_div(half).unwrap_or(count);
        for position in known..count {
            for &frequency in &self.frequencies {
                let angle = f64::from(frequency * position as f32);
                self.cosines.push(angle.cos() as f32);
                self.sines.push(angle.sin() as f32);
            }
        }
    }

    /// Those of one position.
    pub(crate) fn at(&self, position: u32) -> (&[f32], &[f32]) {
        let half = self.frequencies.len();
        let range = position as usize * half..(position as usize + 1) * half;
        (&self.cosines[range.clone()], &self.sines[range])
    }
}
