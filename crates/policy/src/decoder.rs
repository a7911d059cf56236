//! The decoder as a table: each layer's parts, and every tensor's name, shape and initial values.
//!
//! This file alone knows what the layers of a supported model consist of and what Hugging Face calls their tensors. The
//! graph writers, the checks of a checkpoint, random initialization, LoRA adapters and training all read the table.

use std::ops::Range;

use crate::config::{Config, Variant};

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
    Query,
    Key,
    Value,
    Output,
    /// The gate of the SwiGLU.
    Gate,
    /// Its other half.
    Up,
    /// Back to the residual stream.
    Down,
    /// Queries, keys and values, where they are one layer (Phi-3).
    FusedQueryKeyValue,
    /// Both halves of the SwiGLU, where they are one layer (Phi-3).
    FusedGateUp,
}

impl Target {
    /// The linear layers of attention.
    pub const ATTENTION: [Target; 4] = [Target::Query, Target::Key, Target::Value, Target::Output];
    /// All of them where projections are fused.
    pub const FUSED: [Target; 4] =
        [Target::FusedQueryKeyValue, Target::Output, Target::FusedGateUp, Target::Down];
    /// All of them elsewhere, in the order of the computation.
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
            Target::FusedQueryKeyValue => "qkv_proj",
            Target::FusedGateUp => "gate_up_proj",
        }
    }

    pub fn named(name: &str) -> Option<Target> {
        Target::ALL.into_iter().chain(Target::FUSED).find(|target| target.name() == name)
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
            Target::FusedQueryKeyValue => (hidden, queries + 2 * config.key_width()),
            Target::FusedGateUp => (hidden, 2 * config.intermediate_size),
        }
    }

    /// Returns true if it is part of the MLP, not of attention.
    pub fn is_mlp(self) -> bool {
        matches!(self, Target::Gate | Target::Up | Target::Down | Target::FusedGateUp)
    }

    /// The module of a layer, as a checkpoint names it; `.weight` and `.bias` follow.
    pub fn module(self, layer: usize) -> String {
        let block = if self.is_mlp() { "mlp" } else { "self_attn" };
        format!("model.layers.{layer}.{block}.{}", self.name())
    }
}

/// Projections that read the same input, and so can be one matrix product (vLLM: packed modules).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Queries, keys and values.
    QueryKeyValue,
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

    /// Its name among the inputs of a graph.
    pub fn name(self) -> &'static str {
        match self {
            Site::QueryKeyValue => "qkv",
            Site::Output => "o",
            Site::GateUp => "gate_up",
            Site::Down => "down",
        }
    }

    /// The name of its projections where they are one layer.
    pub fn fused(self) -> Option<Target> {
        match self {
            Site::QueryKeyValue => Some(Target::FusedQueryKeyValue),
            Site::GateUp => Some(Target::FusedGateUp),
            Site::Output | Site::Down => None,
        }
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

/// The experts of a layer: `out = sum of probability · down(silu(gate(x)) * up(x))` over those that a token takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// `[experts, hidden]`; the softmax of its products with a token are the probabilities.
    pub router: Tensor,
    /// Gate and up `[width, hidden]` and down `[hidden, width]` of each.
    pub experts: Vec<[Tensor; 3]>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// RMS norm before attention.
    pub input_norm: Tensor,
    /// By [`Target`]; only attention's if the layer has experts.
    projections: Vec<Projection>,
    /// In place of the last three projections.
    pub experts: Option<Experts>,
    /// RMS norms of query heads and key heads.
    pub qk_norm: Option<[Tensor; 2]>,
    /// RMS norm of attention's output, before it joins the residual stream.
    pub attention_out_norm: Option<Tensor>,
    /// RMS norm before the MLP.
    pub mlp_norm: Tensor,
    /// RMS norm of the MLP's output, before it joins the residual stream.
    pub mlp_out_norm: Option<Tensor>,
    /// Index in [`Config::ropes`] of the rotation of queries and keys; a layer without one is called NoPE.
    pub rope: Option<usize>,
    /// Tokens that a query may attend to, itself included; `None`: all before it.
    pub window: Option<usize>,
}

impl Layer {
    fn new(config: &Config, layer: usize) -> Layer {
        let norm =
            |part: &str, width: usize| norm(format!("model.layers.{layer}.{part}.weight"), width, config);
        let of_stream = |part: &str| norm(part, config.hidden_size);
        let head_norm = |part: &str| norm(&format!("self_attn.{part}_norm"), config.head_dim);
        let post_norms = config.variant.post_norms;
        Layer {
            input_norm: of_stream("input_layernorm"),
            projections: match config.experts(layer) {
                None => Target::ALL.map(|target| Projection::new(config, layer, target)).to_vec(),
                Some(_) => Target::ATTENTION.map(|target| Projection::new(config, layer, target)).to_vec(),
            },
            experts: config.experts(layer).map(|_| Experts::new(config, layer)),
            qk_norm: config.qk_norm.then(|| ["q", "k"].map(head_norm)),
            attention_out_norm: post_norms.then(|| of_stream("post_attention_layernorm")),
            mlp_norm: of_stream(match post_norms {
                true => "pre_feedforward_layernorm",
                false => "post_attention_layernorm",
            }),
            mlp_out_norm: post_norms.then(|| of_stream("post_feedforward_layernorm")),
            rope: config.rope(layer),
            window: config.window(layer),
        }
    }

    /// One of the linear layers. Layers with experts have no MLP projections.
    pub fn projection(&self, target: Target) -> &Projection {
        &self.projections[target as usize]
    }

    /// Its tensors in the order of the computation.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let of = |targets: Range<usize>| {
            self.projections
                .get(targets)
                .unwrap_or_default()
                .iter()
                .flat_map(|one| [Some(&one.weight), one.bias.as_ref()])
        };
        [Some(&self.input_norm)]
            .into_iter()
            .chain(of(0..3))
            .chain(self.qk_norm.iter().flatten().map(Some))
            .chain(of(3..4))
            .chain([self.attention_out_norm.as_ref(), Some(&self.mlp_norm)])
            .chain(of(4..7))
            .chain(self.experts.iter().flat_map(Experts::tensors).map(Some))
            .chain([self.mlp_out_norm.as_ref()])
            .flatten()
    }
}

impl Experts {
    fn new(config: &Config, layer: usize) -> Experts {
        let (count, width) = config.experts(layer).map_or((0, 0), |experts| (experts.count, experts.width));
        let hidden = config.hidden_size;
        let adders = (2.0 * config.num_layers as f64).sqrt();
        let matrix = |name: &str, outputs: usize, inputs: usize, adders: f64| Tensor {
            name: format!("model.layers.{layer}.mlp.{name}.weight"),
            shape: vec![outputs, inputs],
            init: Init::Normal(1.0 / ((inputs as f64).sqrt() * adders)),
        };
        let expert = |expert: usize| {
            [
                ("gate_proj", width, hidden, 1.0),
                ("up_proj", width, hidden, 1.0),
                ("down_proj", hidden, width, adders),
            ]
            .map(|(part, outputs, inputs, adders)| {
                matrix(&format!("experts.{expert}.{part}"), outputs, inputs, adders)
            })
        };
        Experts { router: matrix("gate", count, hidden, 1.0), experts: (0..count).map(expert).collect() }
    }

    /// The router, then each expert.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.router).chain(self.experts.iter().flatten())
    }
}

impl Projection {
    fn new(config: &Config, layer: usize, target: Target) -> Projection {
        let (inputs, outputs) = target.extent(config);
        let module = target.module(layer);
        // Additions to the residual stream are smaller, so that its size does not grow with depth (GPT-2's
        // rule).
        let adders = match target {
            Target::Output | Target::Down => (2.0 * config.num_layers as f64).sqrt(),
            _ => 1.0,
        };
        let init = Init::Normal(1.0 / ((inputs as f64).sqrt() * adders));
        let bias = Tensor { name: format!("{module}.bias"), shape: vec![outputs], init: Init::Zeros };
        let biased = match target {
            Target::Query | Target::Key | Target::Value => config.attention_bias,
            Target::Output => config.variant.output_bias,
            _ => config.variant.mlp_bias,
        };
        Projection {
            weight: Tensor { name: format!("{module}.weight"), shape: vec![outputs, inputs], init },
            bias: biased.then_some(bias),
        }
    }
}

fn norm(name: String, width: usize, config: &Config) -> Tensor {
    let init = if config.variant.norms_minus_one { Init::Zeros } else { Init::Ones };
    Tensor { name, shape: vec![width], init }
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
    /// True if a checkpoint has some sites as one tensor.
    fused: bool,
}

/// A tensor as a checkpoint has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<'a> {
    pub name: String,
    pub shape: Vec<usize>,
    /// The decoder's tensors that it consists of, one under the other; mostly one, of the same name.
    pub parts: Vec<&'a Tensor>,
}

impl<'a> From<&'a Tensor> for Stored<'a> {
    fn from(tensor: &'a Tensor) -> Stored<'a> {
        Stored { name: tensor.name.clone(), shape: tensor.shape.clone(), parts: vec![tensor] }
    }
}

impl Config {
    /// The modules that an adapter may target, in the order of the computation.
    pub fn targets(&self) -> &'static [Target] {
        match &self.variant {
            Variant { fused_projections: true, .. } => &Target::FUSED,
            // PEFT adapts experts in another way.
            Variant { experts: Some(_), .. } => &Target::ATTENTION,
            _ => &Target::ALL,
        }
    }

    /// The decoder as a table of layers and tensors.
    pub fn decoder(&self) -> Decoder {
        Decoder::new(self)
    }

    /// Every tensor of the model, in the order of the computation.
    pub fn tensors(&self) -> Vec<Tensor> {
        self.decoder().tensors().cloned().collect()
    }
}

impl Decoder {
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
            final_norm: norm("model.norm.weight".to_owned(), config.hidden_size, config),
            lm_head: (!config.tie_word_embeddings).then(lm_head),
            fused: config.variant.fused_projections,
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

    /// Every tensor of a checkpoint, in the order of the computation.
    pub fn stored(&self) -> Vec<Stored<'_>> {
        let mut stored: Vec<Stored> = Vec::new();
        for tensor in self.tensors() {
            let fused = if self.fused { fused_name(&tensor.name) } else { None };
            match (fused, stored.last_mut()) {
                (Some(name), Some(last)) if last.name == name => {
                    last.shape[0] += tensor.shape[0];
                    last.parts.push(tensor);
                }
                (Some(name), _) => stored.push(Stored { name, ..Stored::from(tensor) }),
                (None, _) => stored.push(Stored::from(tensor)),
            }
        }
        stored
    }
}

/// The name of the tensor of which a projection's weight is a part.
fn fused_name(name: &str) -> Option<String> {
    let (block, module) = name.strip_suffix(".weight")?.rsplit_once('.')?;
    let site =
        Site::ALL.into_iter().find(|site| site.targets().iter().any(|target| target.name() == module))?;
    Some(format!("{block}.{}.weight", site.fused()?.name()))
}
