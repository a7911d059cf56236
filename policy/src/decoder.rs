//! The decoder as a table: each layer's parts, and every tensor's name, shape and initial values.
//!
//! This file alone knows what the layers of a supported model consist of and what Hugging Face calls their tensors. The
//! graph writers, the checks of a checkpoint, random initialization, LoRA adapters and training all read the table.

use std::ops::Range;

use crate::config::Config;

/// Standard deviation of new embeddings. With the usual 0.02 the residual stream of a narrow model hardly tells tokens
/// apart, and training starts slowly.
const EMBEDDING_DEVIATION: f64 = 0.1;

/// How a tensor of a new model is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Norm weights.
    Ones,
    /// Biases, and the B of an adapter.
    Zeros,
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform within plus and minus this bound.
    Uniform(f32),
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its name in the checkpoint.
    pub name: String,
    /// Extents, outermost first; `[outputs, inputs]` for a projection.
    pub shape: Vec<usize>,
    /// Its values in a new model.
    pub init: Init,
}

impl Tensor {
    /// Number of values.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A linear layer inside a decoder layer, which a LoRA adapter may target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// Attention's output.
    Output,
    /// The gate of the SwiGLU.
    Gate,
    /// Its other half.
    Up,
    /// Back to the residual stream.
    Down,
}

impl Target {
    /// All of them, in the order of the computation.
    pub const ALL: [Target; 7] =
        [Target::Query, Target::Key, Target::Value, Target::Output, Target::Gate, Target::Up, Target::Down];

    /// The module's name, as in PEFT's `target_modules`.
    pub fn name(self) -> &'static str {
        match self {
            Target::Query => "q_proj",
            Target::Key => "k_proj",
            Target::Value => "v_proj",
            Target::Output => "o_proj",
            Target::Gate => "gate_proj",
            Target::Up => "up_proj",
            Target::Down => "down_proj",
        }
    }

    /// The module of this name.
    pub fn named(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Widths of its input and of its output.
    pub fn extent(self, config: &Config) -> (usize, usize) {
        let (hidden, queries) = (config.hidden_size, config.query_width());
        match self {
            Target::Query => (hidden, queries),
            Target::Key | Target::Value => (hidden, config.key_width()),
            Target::Output => (queries, hidden),
            Target::Gate | Target::Up => (hidden, config.intermediate_size),
            Target::Down => (config.intermediate_size, hidden),
        }
    }

    /// The module of a layer, as a checkpoint names it; `.weight` and `.bias` follow.
    pub fn module(self, layer: usize) -> String {
        let block = match self {
            Target::Gate | Target::Up | Target::Down => "mlp",
            _ => "self_attn",
        };
        format!("model.layers.{layer}.{block}.{}", self.name())
    }
}

/// Projections that read the same input, and so can be one matrix product (vLLM: packed modules).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Queries, keys and values.
    QueryKeyValue,
    /// Attention's output.
    Output,
    /// Both halves of the SwiGLU.
    GateUp,
    /// Back to the residual stream.
    Down,
}

/// The targets of each [`Site`], by its number.
pub const SITES: [&[Target]; 4] = [
    &[Target::Query, Target::Key, Target::Value],
    &[Target::Output],
    &[Target::Gate, Target::Up],
    &[Target::Down],
];

impl Site {
    /// All of them, in the order of the computation.
    pub const ALL: [Site; 4] = [Site::QueryKeyValue, Site::Output, Site::GateUp, Site::Down];

    /// Its projections, side by side in this order.
    pub fn targets(self) -> &'static [Target] {
        SITES[self as usize]
    }
}

/// One linear layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// `[outputs, inputs]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Option<Tensor>,
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// RMS norm before attention.
    pub input_norm: Tensor,
    /// By [`Target`].
    projections: Vec<Projection>,
    /// RMS norms of query heads and key heads.
    pub qk_norm: Option<[Tensor; 2]>,
    /// RMS norm before the SwiGLU.
    pub post_attention_norm: Tensor,
    /// Whether queries and keys are rotated; a layer that does not is called NoPE.
    pub rope: bool,
}

impl Layer {
    fn new(config: &Config, layer: usize) -> Layer {
        let norm = |part: &str, width: usize| norm(format!("model.layers.{layer}.{part}.weight"), width);
        let head_norm = |part: &str| norm(&format!("self_attn.{part}_norm"), config.head_dim);
        Layer {
            input_norm: norm("input_layernorm", config.hidden_size),
            projections: Target::ALL.map(|target| Projection::new(config, layer, target)).to_vec(),
            qk_norm: config.qk_norm.then(|| ["q", "k"].map(head_norm)),
            post_attention_norm: norm("post_attention_layernorm", config.hidden_size),
            rope: config.rope_layers[layer],
        }
    }

    /// One of its linear layers.
    pub fn projection(&self, target: Target) -> &Projection {
        &self.projections[target as usize]
    }

    /// Its tensors in the order of the computation.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let of = |targets: Range<usize>| {
            self.projections[targets].iter().flat_map(|one| [Some(&one.weight), one.bias.as_ref()])
        };
        [Some(&self.input_norm)]
            .into_iter()
            .chain(of(0..3))
            .chain(self.qk_norm.iter().flatten().map(Some))
            .chain(of(3..4))
            .chain([Some(&self.post_attention_norm)])
            .chain(of(4..7))
            .flatten()
    }
}

impl Projection {
    fn new(config: &Config, layer: usize, target: Target) -> Projection {
        let (inputs, outputs) = target.extent(config);
        let module = target.module(layer);
        // What is added to the residual stream is smaller, so that its size does not grow with depth (GPT-2's rule).
        let adders = match target {
            Target::Output | Target::Down => (2.0 * config.num_layers as f64).sqrt(),
            _ => 1.0,
        };
        let init = Init::Normal(1.0 / ((inputs as f64).sqrt() * adders));
        let bias = Tensor { name: format!("{module}.bias"), shape: vec![outputs], init: Init::Zeros };
        let biased = config.attention_bias && Site::QueryKeyValue.targets().contains(&target);
        Projection {
            weight: Tensor { name: format!("{module}.weight"), shape: vec![outputs, inputs], init },
            bias: biased.then_some(bias),
        }
    }
}

fn norm(name: String, width: usize) -> Tensor {
    Tensor { name, shape: vec![width], init: Init::Ones }
}

/// A pre-norm decoder with rotary positions, grouped-query attention and a SwiGLU.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    /// `[vocab_size, hidden_size]`.
    pub embedding: Tensor,
    /// From the embedding to the head.
    pub layers: Vec<Layer>,
    /// RMS norm before the head.
    pub final_norm: Tensor,
    lm_head: Option<Tensor>,
}

impl Decoder {
    /// The decoder of a configuration.
    pub fn new(config: &Config) -> Decoder {
        let table = |name: &str, deviation: f64| Tensor {
            name: name.to_owned(),
            shape: vec![config.vocab_size, config.hidden_size],
            init: Init::Normal(deviation),
        };
        let lm_head = || table("lm_head.weight", 1.0 / (config.hidden_size as f64).sqrt());
        Decoder {
            embedding: table("model.embed_tokens.weight", EMBEDDING_DEVIATION),
            layers: (0..config.num_layers).map(|layer| Layer::new(config, layer)).collect(),
            final_norm: norm("model.norm.weight".to_owned(), config.hidden_size),
            lm_head: (!config.tie_word_embeddings).then(lm_head),
        }
    }

    /// The matrix that turns hidden states into logits; the embedding where they are tied.
    pub fn head(&self) -> &Tensor {
        self.lm_head.as_ref().unwrap_or(&self.embedding)
    }

    /// Every tensor once, in the order of the computation.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.embedding]
            .into_iter()
            .chain(self.layers.iter().flat_map(Layer::tensors))
            .chain([&self.final_norm])
            .chain(&self.lm_head)
    }
}
