//! Weights and their gradients: one flat array, tensors by Hugging Face name, as [`policy::decoder`] lists them.
//!
//! The weights of projections that read the same input are adjacent, so that they are one matrix without a copy.

use policy::config::Config;
use policy::decoder::{Site, Tensor};
use record::failure::Result;
use std::ops::Range;
use std::sync::Arc;

/// Tensors of a layout, in memory or on disk, read piece by piece.
pub trait Source {
    /// Where each tensor lies in the flat array.
    fn layout(&self) -> &Arc<Layout>;

    /// Fills `values` with a tensor's, from index `from` on.
    fn read(&self, entry: &Entry, from: usize, values: &mut [f32]) -> Result<()>;

    /// True if a tensor is published in bf16, so that other programs read its values rounded to that.
    fn is_bf16(&self, _entry: &Entry) -> bool {
        false
    }

    /// Gives back the memory of values read so far, if a file has them.
    fn release(&self) {}
}

/// Location of one tensor in the flat array.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Hugging Face name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Row-major shape, `[outputs, inputs]` for a projection.
    pub shape: Vec<usize>,
    /// Range in the flat array.
    pub range: Range<usize>,
}

/// Names, shapes and offsets of a decoder's tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Every tensor, in the order of the flat array.
    pub entries: Vec<Entry>,
    /// Offsets of each layer's tensors.
    pub(crate) layers: Vec<LayerOffsets>,
    pub(crate) embedding: usize,
    pub(crate) final_norm: usize,
    pub(crate) head: usize,
}

/// Offsets of one layer's tensors in the flat array.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerOffsets {
    pub input_norm: usize,
    /// By [`Target`](policy::decoder::Target).
    pub weights: [usize; 7],
    pub biases: [Option<usize>; 7],
    /// Offsets of the norms of query and key heads.
    pub qk_norm: Option<[usize; 2]>,
    pub mlp_norm: usize,
    /// The router, which the experts follow, where they stand in place of the MLP's weights.
    pub experts: Option<usize>,
    /// Offsets of the norms after attention and after the MLP.
    pub post_norms: Option<[usize; 2]>,
}

impl Layout {
    /// The layout of a decoder.
    pub fn new(config: &Config) -> Layout {
        let decoder = config.decoder();
        let mut layout = Layout::of(Vec::new());
        layout.embedding = layout.add(&decoder.embedding);
        for layer in &decoder.layers {
            let input_norm = layout.add(&layer.input_norm);
            let (mut weights, mut biases) = ([0; 7], [None; 7]);
            let mut site = |layout: &mut Layout, site: Site| {
                for &target in site.targets() {
                    weights[target as usize] = layout.add(&layer.projection(target).weight);
                }
                for &target in site.targets() {
                    biases[target as usize] =
                        layer.projection(target).bias.as_ref().map(|bias| layout.add(bias));
                }
            };
            site(&mut layout, Site::QueryKeyValue);
            let qk_norm = layer.qk_norm.as_ref().map(|norms| norms.each_ref().map(|norm| layout.add(norm)));
            site(&mut layout, Site::Output);
            let mlp_norm = layout.add(&layer.mlp_norm);
            let experts = layer.experts.as_ref().map(|experts| {
                let router = layout.len();
                experts.tensors().for_each(|tensor| {
                    layout.add(tensor);
                });
                router
            });
            if experts.is_none() {
                site(&mut layout, Site::GateUp);
                site(&mut layout, Site::Down);
            }
            let post_norms = layer.attention_out_norm.as_ref().zip(layer.mlp_out_norm.as_ref());
            let post_norms = post_norms.map(|norms| <[_; 2]>::from(norms).map(|norm| layout.add(norm)));
            layout.layers.push(LayerOffsets {
                input_norm,
                weights,
                biases,
                qk_norm,
                mlp_norm,
                experts,
                post_norms,
            });
        }
        layout.final_norm = layout.add(&decoder.final_norm);
        layout.head = match config.tie_word_embeddings {
            true => layout.embedding,
            false => layout.add(decoder.head()),
        };
        layout
    }

    /// Ranges whose gradients are complete one after another, the last first: embedding, layers, final norm with an untied head.
    pub fn regions(&self) -> Vec<Range<usize>> {
        let layers = self.layers.iter().map(|layer| layer.input_norm);
        let mut starts: Vec<usize> = std::iter::once(0).chain(layers).collect();
        starts.extend([self.final_norm, self.len()]);
        starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// True if the embedding is also the head.
    pub fn is_tied(&self) -> bool {
        self.head == self.embedding
    }

    /// The layout of any tensors, which follow each other.
    pub(super) fn of(entries: Vec<Entry>) -> Layout {
        Layout { entries, layers: Vec::new(), embedding: 0, final_norm: 0, head: 0 }
    }

    /// A layout of one vector.
    #[cfg(test)]
    pub(crate) fn flat(length: usize) -> Layout {
        let name = "vector".to_owned();
        Layout::of(vec![Entry { name, shape: vec![length], range: 0..length }])
    }

    /// Appends a tensor; its offset.
    fn add(&mut self, tensor: &Tensor) -> usize {
        let start = self.len();
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        self.entries.push(Entry { name, shape, range: start..start + tensor.count() });
        start
    }

    /// Number of values in all tensors.
    pub fn len(&self) -> usize {
        self.entries.last().map_or(0, |entry| entry.range.end)
    }

    /// Returns true if there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
    pub fn zeros(layout: &Arc<Layout>) -> Parameters {
        Parameters { layout: layout.clone(), values: vec![0.0; layout.len()] }
    }

    /// All values of a source.
    pub fn of(source: &dyn Source) -> Result<Parameters> {
        let mut parameters = Parameters::zeros(source.layout());
        for entry in &source.layout().entries {
            source.read(entry, 0, &mut parameters.values[entry.range.clone()])?;
            source.release();
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
