//! The decoder as an ONNX model that is never exported: it is built in memory from the table of [`crate::decoder`] and the
//! safetensors header.
//!
//! Each kind of graph has a file with its inputs and its layers: `shared_prefix` (what `rollout` runs on CPU),
//! `group_query` (portable, and the oracle of tests), `paged` (CUDA; `stacked` adds its LoRA adapters), `decode` (the same
//! with our attention, and for newest tokens alone). Arithmetic is f32, for devices also bf16 or f16 with a residual stream of
//! f32. Operator sets: ONNX 23, `com.microsoft` 1, and `troupe` 1 for custom operators.
//!
//! The shared-prefix graph and the paged one hold no weights, so that one session serves every version of them. In the portable
//! one every weight is external data: a file name, an offset and a length inside the safetensors, with
//! `session.model_external_initializers_file_folder_path` = [`Weights::folder`](crate::weights::Weights::folder); those
//! stored in another type pass a `Cast` that ONNX Runtime folds when it loads the model.

mod decode;
mod device;
mod group_query;
mod paged;
mod shared_prefix;
mod stacked;

use std::collections::BTreeSet;
use std::path::Path;

use record::failure::{Failure, Result};

use crate::config::Config;
use crate::decoder::{Decoder, Layer, Projection, Site, Target, Tensor};
use crate::files::show;
use crate::onnx::{Attribute, Element, Graph};
use crate::rope::Rope;
use crate::weights::{ElementType, Weights};

pub use crate::decoder::SITES;
pub use device::{for_device, unsupported_on_devices};
pub use group_query::GROUP_QUERY_POSITIONS;
pub use paged::{Parameter, block_size, parameters};
pub use shared_prefix::fed_tensors;
pub use stacked::{Factor, Stack};

/// The graph to write; each is described in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Matrix products, and attention that shares prompt prefixes, by custom operators.
    SharedPrefix {
        /// With a custom operator after each projection that adds LoRA adapters.
        adapted: bool,
    },
    /// Attention by `com.microsoft.GroupQueryAttention`.
    GroupQuery,
    /// Attention over a KV cache in blocks, which sequences may share.
    Paged(Arithmetic),
    /// With our attention over the same cache.
    Prefill(Arithmetic),
    /// For newest tokens alone, over the cache of [`Kind::Paged`]; attention reads shared blocks once.
    Decode(Arithmetic),
}

impl Kind {
    /// The element type of a graph for devices.
    pub fn arithmetic(self) -> Option<Arithmetic> {
        match self {
            Kind::SharedPrefix { .. } | Kind::GroupQuery => None,
            Kind::Paged(arithmetic) | Kind::Prefill(arithmetic) | Kind::Decode(arithmetic) => {
                Some(arithmetic)
            }
        }
    }
}

/// Element type of a graph for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// bf16 with `com.microsoft.PagedAttention`, which ONNX Runtime has for CUDA.
    BF16,
    /// f16 with the same.
    F16,
    /// f32 with the same operator as `troupe.PagedAttention`, by whoever loads the model: ONNX Runtime has none for CPU.
    F32,
}

/// The domain of the custom operators.
pub const DOMAIN: &str = "troupe";

const ONNX: &str = "";
const MICROSOFT: &str = "com.microsoft";

/// The decoder's `ModelProto`, serialized. External data, if any, is in
/// [`Weights::folder`](crate::weights::Weights::folder).
///
/// # Errors
/// Weights that do not fit the configuration, or external data in several directories.
pub fn decoder(config: &Config, weights: &Weights, kind: Kind) -> Result<Vec<u8>> {
    adapted_decoder(config, weights, kind, &Stack::default())
}

/// [`decoder`] with LoRA adapters, which the graphs for devices take.
pub fn adapted_decoder(config: &Config, weights: &Weights, kind: Kind, stack: &Stack) -> Result<Vec<u8>> {
    weights.check(config)?;
    if kind == Kind::GroupQuery {
        weights.folder()?;
    }
    if kind == Kind::GroupQuery && config.variant.experts.is_some() {
        return Err(Failure::usage("experts have no portable graph").hint("look at --kind shared-prefix"));
    }
    if let (Some(_), Some(what)) = (kind.arithmetic(), unsupported_on_devices(config)) {
        return Err(Failure::usage(format!(
            "a paged graph of {}: {what} is not implemented on devices",
            config.family
        )));
    }
    let element = match kind.arithmetic() {
        Some(Arithmetic::BF16) => Element::BF16,
        Some(Arithmetic::F16) => Element::F16,
        Some(Arithmetic::F32) | None => Element::F32,
    };
    let (decoder, graph, present) = (&config.decoder(), Graph::default(), BTreeSet::new());
    let mut builder = Builder { config, decoder, weights, kind, stack, element, graph, present };
    match kind {
        Kind::SharedPrefix { .. } => builder.shared_prefix_inputs()?,
        Kind::GroupQuery => builder.group_query_inputs(),
        Kind::Paged(_) | Kind::Prefill(_) | Kind::Decode(_) => builder.paged_inputs(),
    }
    match kind {
        Kind::SharedPrefix { adapted } => builder.shared_prefix_layers(adapted)?,
        Kind::GroupQuery => builder.layers()?,
        Kind::Paged(_) | Kind::Prefill(_) | Kind::Decode(_) => builder.paged_layers()?,
    }
    let mut operator_sets = vec![(ONNX, 23), (MICROSOFT, 1)];
    if kind != Kind::GroupQuery {
        operator_sets.push((DOMAIN, 1));
    }
    Ok(builder.graph.into_model("decoder", &operator_sets))
}

struct Builder<'a> {
    config: &'a Config,
    decoder: &'a Decoder,
    weights: &'a Weights,
    kind: Kind,
    /// Adapters of the paged kind.
    stack: &'a Stack,
    /// Type of all activations except the residual stream. The stream is f32, because every layer adds to it
    /// and 16 bits would round each sum.
    element: Element,
    graph: Graph,
    /// Initializers and casts already written: a tied head uses the embedding twice.
    present: BTreeSet<String>,
}

impl Builder<'_> {
    /// The layers of the portable graph.
    fn layers(&mut self) -> Result<()> {
        let decoder = self.decoder;
        self.embedded("x.0")?;
        self.norm("x.0", &decoder.layers[0].input_norm.name, "normed.0")?;
        let mut stream = "x.0".to_owned();
        let mut feed_forward = String::new();
        for (index, layer) in decoder.layers.iter().enumerate() {
            let value = |name: &str| format!("{name}.{index}");
            self.group_query_attention(index, layer)?;
            self.project(index, layer, Site::Output, &value("attention"))?;
            let (post_attention, post_attention_normed) = (value("middle"), value("middle_normed"));
            let attention_out = self.post_norm(value("attention_out"), layer.attention_out_norm.as_ref())?;
            let norm = &layer.mlp_norm.name;
            self.add_norm(&stream, &attention_out, norm, &post_attention, &post_attention_normed)?;
            self.project(index, layer, Site::GateUp, &post_attention_normed)?;
            self.glu(index);
            self.project(index, layer, Site::Down, &value("gated"))?;
            feed_forward = self.post_norm(value("feed_forward"), layer.mlp_out_norm.as_ref())?;
            stream = format!("x.{}", index + 1);
            if let Some(next) = decoder.layers.get(index + 1) {
                let (norm, normed) = (&next.input_norm.name, format!("normed.{}", index + 1));
                self.add_norm(&post_attention, &feed_forward, norm, &stream, &normed)?;
            }
        }
        // Only the rows to be scored pass the final norm and the head, the largest matrix of a small model.
        let middle = format!("middle.{}", decoder.layers.len() - 1);
        self.graph.node(ONNX, "Add", &[&middle, &feed_forward], &["x.last"], &[]);
        self.graph.node(ONNX, "Reshape", &["x.last", "rows"], &["x.rows"], &[]);
        let scored = self.scored("x.rows");
        self.norm(&scored, &decoder.final_norm.name, "normed.scored")?;
        self.linear("normed.scored", &decoder.head().name, "logits")
    }

    /// The embeddings of `input_ids`.
    fn embedded(&mut self, output: &str) -> Result<()> {
        let Some(scale) = self.config.variant.embedding_scale else { return self.looked_up(output) };
        let unscaled = format!("{output}.unscaled");
        self.looked_up(&unscaled)?;
        self.graph.numbers("embedding_scale", self.element, &[1], [scale].into_iter());
        self.graph.node(ONNX, "Mul", &[&unscaled, "embedding_scale"], &[output], &[]);
        Ok(())
    }

    /// The rows of the embedding table.
    fn looked_up(&mut self, output: &str) -> Result<()> {
        let name = &self.decoder.embedding.name;
        let rows = [("axis", Attribute::Int(0))];
        if let Kind::SharedPrefix { .. } = self.kind
            && element_of(self.weights, name)? != self.element
        {
            // Only the rows that are read are converted, not the table.
            let stored = format!("{output}.stored");
            self.graph.node(ONNX, "Gather", &[name, "input_ids"], &[&stored], &rows);
            self.cast(&stored, self.element, output);
            return Ok(());
        }
        let table = self.weight(name)?;
        self.graph.node(ONNX, "Gather", &[&table, "input_ids"], &[output], &rows);
        Ok(())
    }

    /// The value, normalized if there is a norm for it.
    fn post_norm(&mut self, value: String, norm: Option<&Tensor>) -> Result<String> {
        let Some(norm) = norm else { return Ok(value) };
        let normed = format!("{value}.normed");
        self.norm(&value, &norm.name, &normed)?;
        Ok(normed)
    }

    /// The rows of a value that are to be scored.
    fn scored(&mut self, value: &str) -> String {
        let scored = format!("{value}.scored");
        self.graph.node(ONNX, "Gather", &[value, "last_idx"], &[&scored], &[("axis", Attribute::Int(0))]);
        scored
    }

    /// The projections of a site from `input`, biases included: a value for each target (`q.L`, `k.L`, ...).
    fn project(&mut self, index: usize, layer: &Layer, site: Site, input: &str) -> Result<()> {
        for &target in site.targets() {
            let (name, Projection { weight, bias }) = (value_name(target), layer.projection(target));
            let output = format!("{name}.{index}");
            let Some(bias) = bias else {
                self.linear(input, &weight.name, &output)?;
                continue;
            };
            let unbiased = format!("{name}_unbiased.{index}");
            self.linear(input, &weight.name, &unbiased)?;
            let bias = self.weight(&bias.name)?;
            self.graph.node(ONNX, "Add", &[&unbiased, &bias], &[&output], &[]);
        }
        Ok(())
    }

    /// To `gated.L`: `silu(gate) * up` (SwiGLU, arXiv 2002.05202), or with GELU by its tanh formula instead (GEGLU).
    fn glu(&mut self, layer: usize) {
        let value = |part: &str| format!("{part}.{layer}");
        let (operator, alpha) = match self.config.variant.gelu {
            true => ("FastGelu", vec![]),
            false => ("QuickGelu", vec![("alpha", Attribute::Float(1.0))]),
        };
        self.graph.node(MICROSOFT, operator, &[&value("gate")], &[&value("activated")], &alpha);
        self.graph.node(ONNX, "Mul", &[&value("activated"), &value("up")], &[&value("gated")], &[]);
    }

    /// Cosine and sine tables of the first positions, f32 `[positions, pairs]` each, as two initializers.
    fn rope_tables(&mut self, [cos, sin]: [&str; 2], positions: usize, rope: &Rope) {
        let Rope { frequencies, attention_factor } = rope;
        let shape = [positions, frequencies.len()];
        let angles = || (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        self.graph.numbers(cos, Element::F32, &shape, angles().map(|angle| angle.cos() * attention_factor));
        self.graph.numbers(sin, Element::F32, &shape, angles().map(|angle| angle.sin() * attention_factor));
    }

    /// `output = input · weightᵀ`, with the weight as Hugging Face stores it, `[out, in]`.
    fn linear(&mut self, input: &str, weight: &str, output: &str) -> Result<()> {
        let weight = self.weight(weight)?;
        let transposed = [("transB", Attribute::Int(1))];
        self.graph.node(MICROSOFT, "FusedMatMul", &[input, &weight], &[output], &transposed);
        Ok(())
    }

    /// RMS norm (arXiv 1910.07467).
    fn norm(&mut self, input: &str, weight: &str, output: &str) -> Result<()> {
        let weight = self.norm_weight(weight)?;
        let attributes =
            [("epsilon", Attribute::Float(self.config.rms_norm_eps)), ("axis", Attribute::Int(-1))];
        self.graph.node(ONNX, "RMSNormalization", &[input, &weight], &[output], &attributes);
        Ok(())
    }

    /// `sum = left + right`, and its RMS norm.
    fn add_norm(&mut self, left: &str, right: &str, weight: &str, sum: &str, normed: &str) -> Result<()> {
        let weight = self.norm_weight(weight)?;
        let attributes = [("epsilon", Attribute::Float(self.config.rms_norm_eps))];
        let (inputs, outputs) = ([left, right, &weight], [normed, "", "", sum]);
        self.graph.node(MICROSOFT, "SkipSimplifiedLayerNormalization", &inputs, &outputs, &attributes);
        Ok(())
    }

    /// The name of a weight's value in f32; in the graphs that hold none it is an input.
    fn weight(&mut self, name: &str) -> Result<String> {
        if self.kind != Kind::GroupQuery || self.stored(name)? == Element::F32 {
            return Ok(name.to_owned());
        }
        let value = format!("{name}/cast");
        if self.present.insert(value.clone()) {
            self.cast(name, Element::F32, &value);
        }
        Ok(value)
    }

    /// A norm's weight, plus 1 if it is stored minus 1.
    fn norm_weight(&mut self, name: &str) -> Result<String> {
        if !self.config.variant.norms_minus_one {
            return self.weight(name);
        }
        let value = format!("{name}/plus_one");
        if self.present.insert(value.clone()) {
            let values = norm_values(self.config, self.weights, name)?;
            let shape = [values.len()];
            self.graph.numbers(&value, Element::F32, &shape, values.into_iter());
        }
        Ok(value)
    }

    /// Writes a weight's initializer on its first use; the type that it is stored in.
    fn stored(&mut self, name: &str) -> Result<Element> {
        let (tensor, element) = (self.weights.tensor(name)?, element_of(self.weights, name)?);
        if self.present.insert(name.to_owned()) {
            let file = file_name(tensor.file)?;
            self.graph.external(name, element, tensor.shape, file, tensor.offset, tensor.bytes.len());
        }
        Ok(element)
    }

    /// `output = input` in another type.
    fn cast(&mut self, input: &str, to: Element, output: &str) {
        self.graph.node(ONNX, "Cast", &[input], &[output], &[("to", Attribute::Int(to as i64))]);
    }
}

/// The type that a weight is stored in.
fn element_of(weights: &Weights, name: &str) -> Result<Element> {
    let tensor = weights.tensor(name)?;
    match tensor.dtype {
        ElementType::F32 => Ok(Element::F32),
        ElementType::BF16 => Ok(Element::BF16),
        ElementType::F16 => Ok(Element::F16),
        _ => Err(Failure::data(format!("{}: tensor {name:?} is of no floating type", show(tensor.file)))),
    }
}

/// The factor of a decoder's norm.
pub fn norm_values(config: &Config, weights: &Weights, name: &str) -> Result<Vec<f32>> {
    let mut values = weights.to_f32(name)?;
    if config.variant.norms_minus_one {
        values.iter_mut().for_each(|value| *value += 1.0);
    }
    Ok(values)
}

/// The stem of the value that a projection gives.
fn value_name(target: Target) -> &'static str {
    match target {
        Target::Query => "q",
        Target::Key => "k",
        Target::Value => "v",
        Target::Output => "attention_out",
        Target::Gate => "gate",
        Target::Up => "up",
        Target::Down => "feed_forward",
        Target::FusedQueryKeyValue => "qkv",
        Target::FusedGateUp => "gate_up",
    }
}

fn file_name(path: &Path) -> Result<&str> {
    path.file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| Failure::data(format!("{}: the file's name is not UTF-8", show(path))))
}
