//! The decoder as an ONNX model whose initializers lie in the checkpoint itself.
//!
//! The model is built in memory from `config.json` and the safetensors header. Every weight is external data: a file
//! name, an offset and a length inside the safetensors. Nothing is exported, and a new version of the weights is a
//! new session. ONNX Runtime must be told the folder: `session.model_external_initializers_file_folder_path` =
//! [`Weights::folder`](crate::weights::Weights::folder).
//!
//! All arithmetic is f32; weights stored in 16 bits pass a `Cast` that ONNX Runtime folds when it loads. Operator sets:
//! ONNX 23, `com.microsoft` 1, and for [`Kind::SharedPrefix`] `troupe` 1.
//!
//! # [`Kind::SharedPrefix`]: what `rollout` runs on CPU
//!
//! Tensors are `[rows, width]`; a row is one token of any sequence, and which rows belong together is known only to the
//! attention operator, so prompts of any lengths are packed without padding and one graph serves prefill and decode.
//!
//! | value | type and shape | meaning |
//! |---|---|---|
//! | input `input_ids` | int64 `[N]` | one token a row |
//! | input `last_idx` | int64 `[R]` | rows to score |
//! | output `logits` | f32 `[R, vocab_size]` | next-token logits of those rows, in that order |
//!
//! Custom operator `troupe.SharedPrefixAttention`, one a layer:
//!
//! | | |
//! |---|---|
//! | input 0 | f32 `[N, (num_heads + 2 * kv_num_heads) * head_dim]`: query heads, then key heads, then value heads of each row; biases are added already, nothing is normalised or rotated |
//! | inputs 1, 2 | f32 `[head_dim]`: weights of the query and key RMS norms, stored in the model; absent when `qk_norm` is 0 |
//! | output 0 | f32 `[N, num_heads * head_dim]`; in the last layer only the rows of `last_idx` are read |
//! | integer attributes | `layer` (from 0), `num_heads`, `kv_num_heads`, `head_dim`, `qk_norm` (0 or 1) |
//! | float attribute | `epsilon` (of the norms) |
//!
//! It does, for each row: the norms, the rotation at the row's position with
//! [`Config::inverse_frequencies`](crate::config::Config::inverse_frequencies), appending key and value to the cache,
//! and attention with scale `head_dim^-0.5`. Positions, caches and the grouping of rows are the operator's own state.
//!
//! Custom operator `troupe.SwiGlu`, one a layer, no attributes: input 0 f32 `[N, 2 * intermediate_size]`, gate then up;
//! output 0 f32 `[N, intermediate_size]` = silu(gate) * up.
//!
//! # [`Kind::GroupQuery`]: the portable graph and the oracle
//!
//! Runs in any ONNX Runtime, through `com.microsoft.GroupQueryAttention`:
//!
//! | value | type and shape | meaning |
//! |---|---|---|
//! | input `input_ids` | int64 `[B, S]` | new tokens; shorter rows are padded on the right |
//! | input `seqlens_k` | int32 `[B]` | each row's tokens so far, the new ones included, minus 1 |
//! | input `total_len` | int32 `[]` | the largest of those, plus 1 |
//! | input `last_idx` | int64 `[R]` | positions in the flattened `[B * S]` to score |
//! | inputs `past_k.L`, `past_v.L` | f32 `[B, kv_num_heads, C, head_dim]` | cache of layer L |
//! | output `logits` | f32 `[R, vocab_size]` | |
//! | outputs `present_k.L`, `present_v.L` | as the past | may be the same buffers |
//!
//! The rotation's tables are stored in the model for the first [`GROUP_QUERY_POSITIONS`] positions.

use std::collections::BTreeSet;
use std::path::Path;

use record::failure::{Failure, Result};

use crate::config::Config;
use crate::files::show;
use crate::onnx::{Attribute, Element, Graph};
use crate::weights::{ElementType, Weights};

/// Which decoder to write; see the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Attention by our own operator, which shares prompt prefixes.
    SharedPrefix,
    /// Attention by `com.microsoft.GroupQueryAttention`.
    GroupQuery,
}

/// The domain of our own operators.
pub const DOMAIN: &str = "troupe";
/// Positions that the rotation tables inside the portable graph cover, at most.
pub const GROUP_QUERY_POSITIONS: usize = 4096;

const ONNX: &str = "";
const MICROSOFT: &str = "com.microsoft";

/// The decoder's `ModelProto`, serialised. Its external data is looked for in
/// [`Weights::folder`](crate::weights::Weights::folder).
///
/// # Errors
/// Weights that do not fit the configuration, or that lie in several directories.
pub fn decoder(config: &Config, weights: &Weights, kind: Kind) -> Result<Vec<u8>> {
    weights.check(config)?;
    weights.folder()?;
    let mut builder = Builder { config, weights, kind, graph: Graph::default(), present: BTreeSet::new() };
    builder.inputs();
    builder.layers()?;
    let mut operator_sets = vec![(ONNX, 23), (MICROSOFT, 1)];
    if kind == Kind::SharedPrefix {
        operator_sets.push((DOMAIN, 1));
    }
    Ok(builder.graph.into_model("decoder", &operator_sets))
}

struct Builder<'a> {
    config: &'a Config,
    weights: &'a Weights,
    kind: Kind,
    graph: Graph,
    /// Initializers already written: a tied head uses the embedding twice.
    present: BTreeSet<String>,
}

impl Builder<'_> {
    fn inputs(&mut self) {
        let config = self.config;
        let graph = &mut self.graph;
        graph.output("logits", Element::F32, &["R", &config.vocab_size.to_string()]);
        if self.kind == Kind::SharedPrefix {
            graph.input("input_ids", Element::I64, &["N"]);
            graph.input("last_idx", Element::I64, &["R"]);
            return;
        }
        graph.input("input_ids", Element::I64, &["B", "S"]);
        graph.input("seqlens_k", Element::I32, &["B"]);
        graph.input("total_len", Element::I32, &[]);
        graph.input("last_idx", Element::I64, &["R"]);
        let (heads, dim) = (config.num_kv_heads.to_string(), config.head_dim.to_string());
        for layer in 0..config.num_layers {
            for side in ["k", "v"] {
                graph.input(&format!("past_{side}.{layer}"), Element::F32, &["B", &heads, "C", &dim]);
                graph.output(&format!("present_{side}.{layer}"), Element::F32, &["B", &heads, "C", &dim]);
            }
        }
        let frequencies = config.inverse_frequencies();
        let positions = config.max_positions.min(GROUP_QUERY_POSITIONS);
        let angles =
            || (0..positions).flat_map(|at| frequencies.iter().map(move |frequency| at as f32 * frequency));
        let shape = [positions, frequencies.len()];
        graph.floats("cos", &shape, &angles().map(f32::cos).collect::<Vec<f32>>());
        graph.floats("sin", &shape, &angles().map(f32::sin).collect::<Vec<f32>>());
        graph.integers("rows", &[-1, config.hidden_size as i64]);
        let normed = [("q", config.num_heads), ("k", config.num_kv_heads)];
        for (side, heads) in normed.into_iter().filter(|_| config.qk_norm) {
            graph.integers(&format!("{side}_split"), &[0, 0, heads as i64, config.head_dim as i64]);
            graph.integers(&format!("{side}_join"), &[0, 0, (heads * config.head_dim) as i64]);
        }
    }

    fn layers(&mut self) -> Result<()> {
        let config = self.config;
        let embedding = self.weight("model.embed_tokens.weight")?;
        self.graph.node(ONNX, "Gather", &[&embedding, "input_ids"], &["x.0"], &[("axis", Attribute::Int(0))]);
        self.norm("x.0", "model.layers.0.input_layernorm.weight", "normed.0")?;
        let last = config.num_layers - 1;
        for layer in 0..config.num_layers {
            let value = |name: &str| format!("{name}.{layer}");
            let weight = |name: &str| format!("model.layers.{layer}.{name}.weight");
            self.attention(layer)?;
            let (mut residual, mut attention) = (value("x"), value("attention"));
            if layer == last && self.kind == Kind::SharedPrefix {
                // Every row has its keys and values now; only those to be scored go on.
                residual = self.scored(&residual);
                attention = self.scored(&attention);
            }
            self.linear(&attention, &weight("self_attn.o_proj"), &value("attention_out"))?;
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
        self.graph.node(ONNX, "Add", &[&middle, &feed_forward], &["x.last"], &[]);
        let scored = if self.kind == Kind::GroupQuery {
            self.graph.node(ONNX, "Reshape", &["x.last", "rows"], &["x.rows"], &[]);
            self.scored("x.rows")
        } else {
            "x.last".to_owned()
        };
        self.norm(&scored, "model.norm.weight", "normed.scored")?;
        self.linear("normed.scored", config.head_name(), "logits")
    }

    /// The rows of a value that are to be scored.
    fn scored(&mut self, value: &str) -> String {
        let scored = format!("{value}.scored");
        self.graph.node(ONNX, "Gather", &[value, "last_idx"], &[&scored], &[("axis", Attribute::Int(0))]);
        scored
    }

    /// From `normed.L` to `attention.L`.
    fn attention(&mut self, layer: usize) -> Result<()> {
        let config = self.config;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let value = |part: &str| format!("{part}.{layer}");
        if self.kind == Kind::GroupQuery {
            return self.group_query_attention(layer);
        }
        let projections = ["q", "k", "v"];
        let packed = projections.map(|side| name(&format!("{side}_proj.weight")));
        self.concatenated(&packed, &value("qkv_weight"))?;
        let bare = if config.attention_bias { value("qkv_unbiased") } else { value("qkv") };
        self.matmul(&value("normed"), &value("qkv_weight"), &bare);
        if config.attention_bias {
            let biases = projections.map(|side| name(&format!("{side}_proj.bias")));
            self.concatenated(&biases, &value("qkv_bias"))?;
            self.graph.node(ONNX, "Add", &[&bare, &value("qkv_bias")], &[&value("qkv")], &[]);
        }
        let mut inputs = vec![value("qkv")];
        if config.qk_norm {
            // Stored in the model: the operator reads them when it is created, before any 16-bit weight is cast.
            for side in ["q", "k"] {
                let norm = name(&format!("{side}_norm.weight"));
                self.graph.floats(&norm, &[config.head_dim], &self.weights.to_f32(&norm)?);
                inputs.push(norm);
            }
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let attributes = [
            ("layer", Attribute::Int(layer as i64)),
            ("num_heads", Attribute::Int(config.num_heads as i64)),
            ("kv_num_heads", Attribute::Int(config.num_kv_heads as i64)),
            ("head_dim", Attribute::Int(config.head_dim as i64)),
            ("qk_norm", Attribute::Int(i64::from(config.qk_norm))),
            ("epsilon", Attribute::Float(config.rms_norm_eps)),
        ];
        self.graph.node(DOMAIN, "SharedPrefixAttention", &inputs, &[&value("attention")], &attributes);
        Ok(())
    }

    fn group_query_attention(&mut self, layer: usize) -> Result<()> {
        let config = self.config;
        let name = |part: String| format!("model.layers.{layer}.self_attn.{part}");
        let value = |part: &str| format!("{part}.{layer}");
        for side in ["q", "k", "v"] {
            let bare = if config.attention_bias { format!("{side}_unbiased.{layer}") } else { value(side) };
            self.linear(&value("normed"), &name(format!("{side}_proj.weight")), &bare)?;
            if config.attention_bias {
                let bias = self.weight(&name(format!("{side}_proj.bias")))?;
                self.graph.node(ONNX, "Add", &[&bare, &bias], &[&value(side)], &[]);
            }
        }
        let (mut queries, mut keys) = (value("q"), value("k"));
        if config.qk_norm {
            // GroupQueryAttention takes the norms' weights itself on other devices, but refuses them on CPU.
            for (side, last) in [("q", &mut queries), ("k", &mut keys)] {
                let step = |what: &str| format!("{side}_{what}.{layer}");
                self.graph.node(ONNX, "Reshape", &[last, &format!("{side}_split")], &[&step("heads")], &[]);
                self.norm(&step("heads"), &name(format!("{side}_norm.weight")), &step("normed"))?;
                self.graph.node(
                    ONNX,
                    "Reshape",
                    &[&step("normed"), &format!("{side}_join")],
                    &[&step("joined")],
                    &[],
                );
                *last = step("joined");
            }
        }
        let (past_k, past_v) = (value("past_k"), value("past_v"));
        let v = value("v");
        let inputs = [&queries, &keys, &v, &past_k, &past_v, "seqlens_k", "total_len", "cos", "sin"];
        let outputs = [&value("attention")[..], &value("present_k"), &value("present_v")];
        let attributes = [
            ("num_heads", Attribute::Int(config.num_heads as i64)),
            ("kv_num_heads", Attribute::Int(config.num_kv_heads as i64)),
            ("do_rotary", Attribute::Int(1)),
        ];
        self.graph.node(MICROSOFT, "GroupQueryAttention", &inputs, &outputs, &attributes);
        Ok(())
    }

    /// From `middle_normed.L` to `feed_forward.L`: `down(silu(gate(x)) * up(x))` (SwiGLU, arXiv 2002.05202).
    fn feed_forward(&mut self, layer: usize) -> Result<()> {
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}_proj.weight");
        let value = |part: &str| format!("{part}.{layer}");
        let normed = value("middle_normed");
        if self.kind == Kind::SharedPrefix {
            self.concatenated(&[name("gate"), name("up")], &value("gate_up_weight"))?;
            self.matmul(&normed, &value("gate_up_weight"), &value("gate_up"));
            self.graph.node(DOMAIN, "SwiGlu", &[&value("gate_up")], &[&value("gated")], &[]);
        } else {
            self.linear(&normed, &name("gate"), &value("gate"))?;
            self.linear(&normed, &name("up"), &value("up"))?;
            let silu = [("alpha", Attribute::Float(1.0))];
            self.graph.node(MICROSOFT, "QuickGelu", &[&value("gate")], &[&value("silu")], &silu);
            self.graph.node(ONNX, "Mul", &[&value("silu"), &value("up")], &[&value("gated")], &[]);
        }
        self.linear(&value("gated"), &name("down"), &value("feed_forward"))
    }

    /// `output = input · weightᵀ`, with the weight as Hugging Face stores it, `[out, in]`.
    fn linear(&mut self, input: &str, weight: &str, output: &str) -> Result<()> {
        let weight = self.weight(weight)?;
        self.matmul(input, &weight, output);
        Ok(())
    }

    fn matmul(&mut self, input: &str, weight: &str, output: &str) {
        self.graph.node(
            MICROSOFT,
            "FusedMatMul",
            &[input, weight],
            &[output],
            &[("transB", Attribute::Int(1))],
        );
    }

    /// RMS norm (arXiv 1910.07467).
    fn norm(&mut self, input: &str, weight: &str, output: &str) -> Result<()> {
        let weight = self.weight(weight)?;
        let attributes =
            [("epsilon", Attribute::Float(self.config.rms_norm_eps)), ("axis", Attribute::Int(-1))];
        self.graph.node(ONNX, "RMSNormalization", &[input, &weight], &[output], &attributes);
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

    /// Writes a weight's initializer on its first use; the name of its f32 value.
    fn weight(&mut self, name: &str) -> Result<String> {
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
        let value = if element == Element::F32 { name.to_owned() } else { format!("{name}/f32") };
        if self.present.insert(name.to_owned()) {
            let file = file_name(tensor.file)?;
            self.graph.external(name, element, tensor.shape, file, tensor.offset, tensor.bytes.len());
            if element != Element::F32 {
                self.graph.node(
                    ONNX,
                    "Cast",
                    &[name],
                    &[&value],
                    &[("to", Attribute::Int(Element::F32 as i64))],
                );
            }
        }
        Ok(value)
    }
}

fn file_name(path: &Path) -> Result<&str> {
    path.file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| Failure::data(format!("{}: the file's name is not UTF-8", show(path))))
}
