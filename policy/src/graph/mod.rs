//! The decoder as an ONNX model whose initializers lie in the checkpoint itself.
//!
//! The model is built in memory from `config.json` and the safetensors header. Every weight is external data: a file
//! name, an offset and a length inside the safetensors. Nothing is exported, and a new version of the weights is a
//! new session. ONNX Runtime must be told the folder: `session.model_external_initializers_file_folder_path` =
//! [`Weights::folder`](crate::weights::Weights::folder).
//!
//! What all kinds share is here; a kind is a file with its inputs, its attention and the description of both:
//! `shared_prefix` (what `rollout` runs on CPU), `group_query` (portable, and the oracle), `paged` (CUDA; with adapters
//! `stacked`). Arithmetic is f32, in `paged` also bf16, and whatever an operator of our own does inside; weights stored
//! otherwise pass a `Cast` that ONNX Runtime folds when it loads. Operator sets: ONNX 23, `com.microsoft` 1, and `troupe`
//! 1 where an operator of our own is used.

mod group_query;
mod paged;
mod shared_prefix;
mod stacked;

use std::collections::BTreeSet;
use std::path::Path;

use record::failure::{Failure, Result};

use crate::adapter::Target;
use crate::config::Config;
use crate::files::show;
use crate::onnx::{Attribute, Element, Graph};
use crate::weights::{ElementType, Weights};

pub use group_query::GROUP_QUERY_POSITIONS;
pub use paged::block_size;
pub use shared_prefix::SITES;
use shared_prefix::Site;
pub use stacked::{Factor, HALF, Stack};

/// Which decoder to write; each is described in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Attention by our own operator, which shares prompt prefixes.
    SharedPrefix {
        /// Who multiplies.
        products: Products,
        /// With an operator after each projection that adds what low-rank adapters give.
        adapted: bool,
    },
    /// Attention by `com.microsoft.GroupQueryAttention`.
    GroupQuery,
    /// Attention over a cache in blocks, which sequences may share.
    Paged(Arithmetic),
}

impl Kind {
    /// The shared-prefix decoder that anybody who has its operators can run: its weights are in the model.
    pub const SHARED_PREFIX: Kind = Kind::SharedPrefix { products: Products::OnnxRuntime, adapted: false };
}

/// Who does the matrix products of a shared-prefix decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// ONNX Runtime, in f32, with the weights where they lie.
    OnnxRuntime,
    /// An operator of our own, which has the weights: ONNX Runtime cannot round operands to bf16 on CPU.
    Own,
}

/// What a paged decoder computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// bf16 with `com.microsoft.PagedAttention`, which ONNX Runtime has for CUDA.
    BF16,
    /// f32 with `troupe.PagedAttention`, the same operator by whoever loads the model: ONNX Runtime has none for CPU.
    F32,
}

/// The domain of our own operators.
pub const DOMAIN: &str = "troupe";

const ONNX: &str = "";
const MICROSOFT: &str = "com.microsoft";

/// The decoder's `ModelProto`, serialised. Its external data is looked for in
/// [`Weights::folder`](crate::weights::Weights::folder).
///
/// # Errors
/// Weights that do not fit the configuration, or that lie in several directories.
pub fn decoder(config: &Config, weights: &Weights, kind: Kind) -> Result<Vec<u8>> {
    build(config, weights, kind, &Stack::default())
}

/// The paged decoder with adapters, which may be none.
///
/// # Errors
/// As [`decoder`].
pub fn paged_decoder(
    config: &Config,
    weights: &Weights,
    arithmetic: Arithmetic,
    stack: &Stack,
) -> Result<Vec<u8>> {
    build(config, weights, Kind::Paged(arithmetic), stack)
}

fn build(config: &Config, weights: &Weights, kind: Kind, stack: &Stack) -> Result<Vec<u8>> {
    weights.check(config)?;
    weights.folder()?;
    let element = if kind == Kind::Paged(Arithmetic::BF16) { Element::BF16 } else { Element::F32 };
    let (graph, present) = (Graph::default(), BTreeSet::new());
    let mut builder = Builder { config, weights, kind, stack, element, graph, present };
    match kind {
        Kind::SharedPrefix { .. } => builder.shared_prefix_inputs(),
        Kind::GroupQuery => builder.group_query_inputs(),
        Kind::Paged(_) => builder.paged_inputs(),
    }
    builder.layers()?;
    let mut operator_sets = vec![(ONNX, 23), (MICROSOFT, 1)];
    if !matches!(kind, Kind::GroupQuery | Kind::Paged(Arithmetic::BF16)) {
        operator_sets.push((DOMAIN, 1));
    }
    Ok(builder.graph.into_model("decoder", &operator_sets))
}

struct Builder<'a> {
    config: &'a Config,
    weights: &'a Weights,
    kind: Kind,
    /// Adapters of the paged kind.
    stack: &'a Stack,
    /// Of all activations.
    element: Element,
    graph: Graph,
    /// Initializers and casts already written: a tied head uses the embedding twice.
    present: BTreeSet<String>,
}

impl Builder<'_> {
    fn layers(&mut self) -> Result<()> {
        let config = self.config;
        self.embedded("x.0")?;
        self.norm("x.0", "model.layers.0.input_layernorm.weight", "normed.0")?;
        let last = config.num_layers - 1;
        for layer in 0..config.num_layers {
            let value = |name: &str| format!("{name}.{layer}");
            let weight = |name: &str| format!("model.layers.{layer}.{name}.weight");
            match self.kind {
                Kind::SharedPrefix { .. } => self.shared_prefix_attention(layer)?,
                Kind::GroupQuery => self.group_query_attention(layer)?,
                Kind::Paged(_) => self.paged_attention(layer)?,
            }
            let (mut residual, mut attention) = (value("x"), value("attention"));
            if layer == last && self.kind != Kind::GroupQuery {
                // Every row has its keys and values now; only those to be scored go on.
                residual = self.scored(&residual);
                attention = self.scored(&attention);
            }
            if let Kind::SharedPrefix { .. } = self.kind {
                self.shared_prefix_projection(layer, Site::Output, &attention, &value("attention_out"))?;
            } else {
                let output = self.base_of(Target::Output, &value("attention_out"));
                self.linear(&attention, &weight("self_attn.o_proj"), &output)?;
                let projections = [(Target::Output, value("attention_out"))];
                self.add_stacked(layer, Site::Output, &attention, &projections);
            }
            let (middle, middle_normed) = (value("middle"), value("middle_normed"));
            let norm = weight("post_attention_layernorm");
            self.add_norm(&residual, &value("attention_out"), &norm, &middle, &middle_normed)?;
            self.feed_forward(layer)?;
            if layer < last {
                let next = |name: &str| format!("{name}.{}", layer + 1);
                let norm = format!("model.layers.{}.input_layernorm.weight", layer + 1);
                self.add_norm(&middle, &value("feed_forward"), &norm, &next("x"), &next("normed"))?;
            }
        }
        // Only the rows to be scored pass the final norm and the head, the largest matrix of a small model.
        let (middle, feed_forward) = (format!("middle.{last}"), format!("feed_forward.{last}"));
        if matches!(self.kind, Kind::Paged(_)) {
            return self.add_norm(&middle, &feed_forward, "model.norm.weight", "x.last", "hidden");
        }
        self.graph.node(ONNX, "Add", &[&middle, &feed_forward], &["x.last"], &[]);
        let scored = if self.kind == Kind::GroupQuery {
            self.graph.node(ONNX, "Reshape", &["x.last", "rows"], &["x.rows"], &[]);
            self.scored("x.rows")
        } else {
            "x.last".to_owned()
        };
        self.norm(&scored, "model.norm.weight", "normed.scored")?;
        if let Kind::SharedPrefix { products: Products::Own, .. } = self.kind {
            self.own_head("normed.scored", "logits");
            return Ok(());
        }
        self.linear("normed.scored", config.head_name(), "logits")
    }

    /// The embeddings of `input_ids`.
    fn embedded(&mut self, output: &str) -> Result<()> {
        let name = "model.embed_tokens.weight";
        let rows = [("axis", Attribute::Int(0))];
        let own = matches!(self.kind, Kind::SharedPrefix { products: Products::Own, .. });
        let multiplied = self.config.tie_word_embeddings && !own;
        // A cast that is folded is a copy of the whole table. Where no product needs it, rows are cast as they are read; on a
        // device the table is rather small than read cheaply.
        if multiplied || matches!(self.kind, Kind::Paged(_)) || self.stored(name)? == self.element {
            let table = self.weight(name)?;
            self.graph.node(ONNX, "Gather", &[&table, "input_ids"], &[output], &rows);
        } else {
            let stored = format!("{output}.stored");
            self.graph.node(ONNX, "Gather", &[name, "input_ids"], &[&stored], &rows);
            self.cast(&stored, output);
        }
        Ok(())
    }

    /// The rows of a value that are to be scored.
    fn scored(&mut self, value: &str) -> String {
        let scored = format!("{value}.scored");
        self.graph.node(ONNX, "Gather", &[value, "last_idx"], &[&scored], &[("axis", Attribute::Int(0))]);
        scored
    }

    /// From `middle_normed.L` to `feed_forward.L`: `down(silu(gate(x)) * up(x))` (SwiGLU, arXiv 2002.05202).
    fn feed_forward(&mut self, layer: usize) -> Result<()> {
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}_proj.weight");
        let value = |part: &str| format!("{part}.{layer}");
        let normed = value("middle_normed");
        if let Kind::SharedPrefix { .. } = self.kind {
            self.shared_prefix_projection(layer, Site::GateUp, &normed, &value("gate_up"))?;
            self.graph.node(DOMAIN, "SwiGlu", &[&value("gate_up")], &[&value("gated")], &[]);
            return self.shared_prefix_projection(layer, Site::Down, &value("gated"), &value("feed_forward"));
        }
        let projections = [(Target::Gate, value("gate")), (Target::Up, value("up"))];
        self.linear(&normed, &name("gate"), &self.base_of(Target::Gate, &value("gate")))?;
        self.linear(&normed, &name("up"), &self.base_of(Target::Up, &value("up")))?;
        self.add_stacked(layer, Site::GateUp, &normed, &projections);
        let silu = [("alpha", Attribute::Float(1.0))];
        self.graph.node(MICROSOFT, "QuickGelu", &[&value("gate")], &[&value("silu")], &silu);
        self.graph.node(ONNX, "Mul", &[&value("silu"), &value("up")], &[&value("gated")], &[]);
        let output = self.base_of(Target::Down, &value("feed_forward"));
        self.linear(&value("gated"), &name("down"), &output)?;
        let projections = [(Target::Down, value("feed_forward"))];
        self.add_stacked(layer, Site::Down, &value("gated"), &projections);
        Ok(())
    }

    /// From `normed.L` to the projection `output` of queries (`q`), keys or values, its bias added.
    fn projection(&mut self, layer: usize, side: &str, output: &str) -> Result<()> {
        let name = |what: &str| format!("model.layers.{layer}.self_attn.{side}_proj.{what}");
        let normed = format!("normed.{layer}");
        if !self.config.attention_bias {
            return self.linear(&normed, &name("weight"), output);
        }
        let unbiased = format!("{side}_unbiased.{layer}");
        self.linear(&normed, &name("weight"), &unbiased)?;
        let bias = self.weight(&name("bias"))?;
        self.graph.node(ONNX, "Add", &[&unbiased, &bias], &[output], &[]);
        Ok(())
    }

    /// `output = input · weightᵀ`, with the weight as Hugging Face stores it, `[out, in]`.
    fn linear(&mut self, input: &str, weight: &str, output: &str) -> Result<()> {
        let weight = self.weight(weight)?;
        self.matmul(input, &weight, output);
        Ok(())
    }

    fn matmul(&mut self, input: &str, weight: &str, output: &str) {
        let transposed = [("transB", Attribute::Int(1))];
        self.graph.node(MICROSOFT, "FusedMatMul", &[input, weight], &[output], &transposed);
    }

    /// RMS norm (arXiv 1910.07467).
    fn norm(&mut self, input: &str, weight: &str, output: &str) -> Result<()> {
        let weight = self.weight(weight)?;
        let attributes =
            [("epsilon", Attribute::Float(self.config.rms_norm_eps)), ("axis", Attribute::Int(-1))];
        // By ONNX Runtime's own name, under which it has a kernel for every type and device.
        let operator = if matches!(self.kind, Kind::Paged(_)) {
            "SimplifiedLayerNormalization"
        } else {
            "RMSNormalization"
        };
        self.graph.node(ONNX, operator, &[input, &weight], &[output], &attributes);
        Ok(())
    }

    /// `sum = left + right` and its RMS norm.
    fn add_norm(&mut self, left: &str, right: &str, weight: &str, sum: &str, normed: &str) -> Result<()> {
        let weight = self.weight(weight)?;
        let attributes = [("epsilon", Attribute::Float(self.config.rms_norm_eps))];
        let outputs = [normed, "", "", sum];
        let inputs = [left, right, &weight];
        self.graph.node(MICROSOFT, "SkipSimplifiedLayerNormalization", &inputs, &outputs, &attributes);
        Ok(())
    }

    /// One tensor of the given ones stacked along their first axis; constants, so done once when the model loads.
    fn concatenated(&mut self, names: &[String], output: &str) -> Result<()> {
        let parts = names.iter().map(|name| self.weight(name)).collect::<Result<Vec<String>>>()?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.graph.node(ONNX, "Concat", &parts, &[output], &[("axis", Attribute::Int(0))]);
        Ok(())
    }

    /// The name of a weight's value in the type of the activations.
    fn weight(&mut self, name: &str) -> Result<String> {
        if self.stored(name)? == self.element {
            return Ok(name.to_owned());
        }
        let value = format!("{name}/cast");
        if self.present.insert(value.clone()) {
            self.cast(name, &value);
        }
        Ok(value)
    }

    /// Writes a weight's initializer on its first use; the type that it is stored in.
    fn stored(&mut self, name: &str) -> Result<Element> {
        let tensor = self.weights.tensor(name)?;
        let element = match tensor.dtype {
            ElementType::F32 => Element::F32,
            ElementType::BF16 => Element::BF16,
            ElementType::F16 => Element::F16,
            _ => {
                return Err(Failure::data(format!(
                    "{}: tensor {name:?} is of no floating type",
                    show(tensor.file)
                )));
            }
        };
        if self.present.insert(name.to_owned()) {
            let file = file_name(tensor.file)?;
            self.graph.external(name, element, tensor.shape, file, tensor.offset, tensor.bytes.len());
        }
        Ok(element)
    }

    /// `output = input` in the type of the activations.
    fn cast(&mut self, input: &str, output: &str) {
        self.graph.node(ONNX, "Cast", &[input], &[output], &[("to", Attribute::Int(self.element as i64))]);
    }
}

fn file_name(path: &Path) -> Result<&str> {
    path.file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| Failure::data(format!("{}: the file's name is not UTF-8", show(path))))
}
