//! The cos/sin caches of the rotary embedding (RoPE, Su et al., arXiv 2104.09864).

use policy::config::Config;
use policy::rope;

/// A table of `[positions][pairs]` for each kind of rotary positions, which grow with the longest sequence.
#[derive(Debug, Clone)]
pub struct Rope {
    tables: Vec<Table>,
    /// The table of each layer.
    layers: Vec<Option<usize>>,
}

#[derive(Debug, Clone)]
struct Table {
    rope: rope::Rope,
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl Rope {
    /// The tables of a model, without positions.
    pub fn new(config: &Config) -> Self {
        let table = |rope| Table { rope, cosines: Vec::new(), sines: Vec::new() };
        let layers = (0..config.num_layers).map(|layer| config.rope(layer)).collect();
        Rope { tables: config.ropes().into_iter().map(table).collect(), layers }
    }

    /// Makes positions `0..count` available. The angle is rounded to f32 before its cosine is taken, as the reference
    /// implementations do.
    pub fn reserve(&mut self, count: usize) {
        for Table { rope, cosines, sines } in &mut self.tables {
            let have = cosines.len() / rope.frequencies.len();
            for position in have..count.next_multiple_of(64).max(have) {
                for &frequency in &rope.frequencies {
                    let angle = f64::from(position as f32 * frequency);
                    cosines.push(angle.cos() as f32 * rope.attention_factor);
                    sines.push(angle.sin() as f32 * rope.attention_factor);
                }
            }
        }
    }

    /// Cosines and sines of a reserved position in a layer, one of each per pair of elements; empty without
    /// rotary positions (NoPE).
    #[inline(always)]
    pub fn at(&self, layer: usize, position: usize) -> [&[f32]; 2] {
        let Some(table) = self.layers[layer] else { return [&[], &[]] };
        let Table { rope, cosines, sines } = &self.tables[table];
        let pairs = rope.frequencies.len();
        let range = position * pairs..(position + 1) * pairs;
        [&cosines[range.clone()], &sines[range]]
    }
}
