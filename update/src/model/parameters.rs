//! Weights and their gradients: one flat array, tensors by Hugging Face name.
//!
//! The order makes what is multiplied together adjacent: a layer's query, key and value projections are one
//! matrix, its gate and up projections another, without a copy.

use super::Shape;
use record::failure::Result;
use std::ops::Range;
use std::sync::Arc;

/// Tensors of a layout wherever they lie, read piece by piece.
pub trait Source {
    /// Where each tensor lies in the flat array.
    fn layout(&self) -> &Arc<Layout>;

    /// Fills `values` with a tensor's, from the one of index `from` on.
    ///
    /// # Errors
    /// Those of where they lie.
    fn read(&self, entry: &Entry, from: usize, values: &mut [f32]) -> Result<()>;
}

/// Where one tensor lies in the flat array.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Hugging Face name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Row-major shape, `[outputs, inputs]` for a projection.
    pub shape: Vec<usize>,
    /// Place in the flat array.
    pub range: Range<usize>,
}

/// Names, shapes and places of a decoder's tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Every tensor, in the order of the flat array.
    pub entries: Vec<Entry>,
    /// Where the tensors of each layer begin.
    pub(crate) layers: Vec<LayerPlaces>,
    pub(crate) embedding: usize,
    pub(crate) final_norm: usize,
    pub(crate) head: usize,
    length: usize,
}

/// Places of one layer's tensors in the flat array.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LayerPlaces {
    pub input_norm: usize,
    pub qkv: usize,
    pub qkv_bias: usize,
    pub query_norm: usize,
    pub key_norm: usize,
    pub output: usize,
    pub post_norm: usize,
    pub gate_up: usize,
    pub down: usize,
}

impl Layout {
    /// The layout of a decoder of this shape.
    pub fn new(shape: &Shape) -> Layout {
        let mut entries: Vec<Entry> = Vec::new();
        let mut length = 0;
        let mut add = |name: String, dimensions: &[usize]| {
            let start = length;
            length += dimensions.iter().product::<usize>();
            entries.push(Entry { name, shape: dimensions.to_vec(), range: start..length });
            start
        };
        let (hidden, queries, keys) = (shape.hidden, shape.query_width(), shape.key_width());
        let embedding = add("model.embed_tokens.weight".into(), &[shape.vocabulary, hidden]);
        let mut layers = Vec::with_capacity(shape.layers);
        for layer in 0..shape.layers {
            let name = |rest: &str| format!("model.layers.{layer}.{rest}");
            let mut places = LayerPlaces {
                input_norm: add(name("input_layernorm.weight"), &[hidden]),
                qkv: add(name("self_attn.q_proj.weight"), &[queries, hidden]),
                ..LayerPlaces::default()
            };
            add(name("self_attn.k_proj.weight"), &[keys, hidden]);
            add(name("self_attn.v_proj.weight"), &[keys, hidden]);
            if shape.attention_bias {
                places.qkv_bias = add(name("self_attn.q_proj.bias"), &[queries]);
                add(name("self_attn.k_proj.bias"), &[keys]);
                add(name("self_attn.v_proj.bias"), &[keys]);
            }
            if shape.qk_norm {
                places.query_norm = add(name("self_attn.q_norm.weight"), &[shape.head_dim]);
                places.key_norm = add(name("self_attn.k_norm.weight"), &[shape.head_dim]);
            }
            places.output = add(name("self_attn.o_proj.weight"), &[hidden, queries]);
            places.post_norm = add(name("post_attention_layernorm.weight"), &[hidden]);
            places.gate_up = add(name("mlp.gate_proj.weight"), &[shape.intermediate, hidden]);
            add(name("mlp.up_proj.weight"), &[shape.intermediate, hidden]);
            places.down = add(name("mlp.down_proj.weight"), &[hidden, shape.intermediate]);
            layers.push(places);
        }
        let final_norm = add("model.norm.weight".into(), &[hidden]);
        let head = match shape.tied {
            true => embedding,
            false => add("lm_head.weight".into(), &[shape.vocabulary, hidden]),
        };
        Layout { entries, layers, embedding, final_norm, head, length }
    }

    /// The layout of any tensors, which follow each other.
    pub(super) fn of(entries: Vec<Entry>) -> Layout {
        let length = entries.last().map_or(0, |entry| entry.range.end);
        Layout { entries, layers: Vec::new(), embedding: 0, final_norm: 0, head: 0, length }
    }

    /// Number of values in all tensors.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// A decoder's tensors in f32: its weights, or one value for each of them (a gradient, a moment).
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    layout: Arc<Layout>,
    /// All tensors, back to back in the layout's order.
    pub values: Vec<f32>,
}

/// The gradient of a loss with respect to each weight.
pub type Gradients = Parameters;

impl Parameters {
    /// All zeros.
    pub fn zeros(layout: &Arc<Layout>) -> Parameters {
        Parameters { layout: layout.clone(), values: vec![0.0; layout.len()] }
    }

    /// All values of a source.
    ///
    /// # Errors
    /// The source's.
    pub fn of(source: &dyn Source) -> Result<Parameters> {
        let mut parameters = Parameters::zeros(source.layout());
        for entry in &source.layout().entries {
            source.read(entry, 0, &mut parameters.values[entry.range.clone()])?;
        }
        Ok(parameters)
    }

    /// Where each tensor lies.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Every tensor: its entry and its values.
    pub fn tensors(&self) -> impl Iterator<Item = (&Entry, &[f32])> {
        self.layout.entries.iter().map(|entry| (entry, &self.values[entry.range.clone()]))
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        let entry = self.layout.entries.iter().find(|entry| entry.name == name)?;
        Some(&self.values[entry.range.clone()])
    }

    /// The tensor of this name, to be written.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut [f32]> {
        let entry = self.layout.entries.iter().find(|entry| entry.name == name)?;
        Some(&mut self.values[entry.range.clone()])
    }
}

impl Source for Parameters {
    fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    fn read(&self, entry: &Entry, from: usize, values: &mut [f32]) -> Result<()> {
        values.copy_from_slice(&self.values[entry.range.start + from..][..values.len()]);
        Ok(())
    }
}
