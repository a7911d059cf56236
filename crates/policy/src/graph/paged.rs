//! [`Kind::Paged`](super::Kind): what `rollout` runs on a device.
//!
//! Tensors are `[rows, width]`; a row is one new token of some sequence, the rows of a sequence follow each other, and
//! a run may mix whole prompts, pieces of prompts and single tokens. Keys and values lie in blocks of a pool that the
//! caller owns; a sequence is a list of blocks, and sequences with a common beginning name the same blocks.
//!
//! | value | type and shape | meaning |
//! |---|---|---|
//! | input `input_ids` | int64 `[N]` | one token a row |
//! | input `last_idx` | int64 `[R]` | rows to score |
//! | input `cumulative_sequence_length` | int32 `[B + 1]` | where each sequence's rows begin; last: N |
//! | input `past_seqlens` | int32 `[B]` | each sequence's tokens in the cache before this run |
//! | input `block_table` | int32 `[B, M]` | each sequence's blocks in order; entries after them are ignored |
//! | input `slot_mapping` | int32 `[N]` | where a row's key and value go: block times block size plus offset |
//! | input `positions` | int32 `[N]` | each row's position in its sequence |
//! | input `attention_metadata` | int32 `[3]`, in plain memory | most rows of any one sequence, most tokens, and what the longest has at least |
//! | inputs `key_cache.L`, `value_cache.L` | T `[P, S, kv_num_heads, head_dim]` | P blocks of S tokens of layer L |
//! | each of [`parameters`] | T | weights; those that read the same input are one matrix |
//! | output `hidden` | T `[R, hidden_size]` | the scored rows after the final norm |
//! | outputs `key_cache_out.L`, `value_cache_out.L` | as the inputs | must be the same buffers |
//!
//! With the last of the three numbers attention decides whether to split long sequences over more of the device.
//!
//! T is bf16, f16 or f32. The graph holds no weights: they are inputs, so a session serves every version of them, and the order of a
//! checkpoint's tensors does not matter. The output head is left to the caller: its products of 16-bit numbers want sums in f32.
//!
//! `PagedAttention` is `com.microsoft`'s operator: the in-place append, and causal attention with scale `head_dim^-0.5`.
//! [`block_size`] is what its fastest kernel takes. LoRA adapters add more inputs, see `stacked`. The other operators are ours,
//! in the domain `troupe`:
//!
//! | operator | inputs | output |
//! |---|---|---|
//! | `Linear` | T `[rows, inputs]`, T `[outputs, inputs]`, optional T `[rows, outputs]` | T: `input · weightᵀ`, with the third added before the sum is rounded |
//! | `ResidualLinear` | the same, with an f32 `[rows, outputs]` | f32: the residual stream, which every layer adds to and 16 bits would round each time |
//! | `RmsNorm` | f32 `[rows, width]`, T `[width]`; attribute `epsilon` | T |
//! | `Heads` | T `[rows, (num_heads + 2 * kv_num_heads) * head_dim]`, `positions`, f32 cosines and sines `[positions, head_dim / 2]`; optional T: bias, norms of query and key heads; attributes `num_heads`, `kv_num_heads`, `epsilon`, `rotary` (0: NoPE) | three T: queries, keys and values, after bias, norms and RoPE by halves |
//! | `SwiGlu` | T `[rows, 2 * intermediate_size]`, gate then up | T: silu(gate) * up |

use record::failure::Result;

use super::{Arithmetic, Builder, DOMAIN, Kind, MICROSOFT};
use crate::config::Config;
use crate::decoder::{Layer, Site, Tensor};
use crate::onnx::{Attribute, Element};

/// Tokens of a block for heads of `head_dim`. A tile of FlashAttention's split kernel must not cross a block, and tiles
/// are the longer the narrower the heads.
pub fn block_size(head_dim: usize) -> usize {
    if head_dim <= 64 { 256 } else { 128 }
}

/// An input of the paged graph that holds weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub shape: Vec<usize>,
    /// The checkpoint's tensors that it consists of, one under the other.
    pub parts: Vec<String>,
}

/// Every input of the paged graph that holds weights.
pub fn parameters(config: &Config) -> Vec<Parameter> {
    let decoder = config.decoder();
    let mut all = vec![Parameter::of(&decoder.embedding.name, &[&decoder.embedding])];
    for (index, layer) in decoder.layers.iter().enumerate() {
        for site in Site::ALL {
            let projections = site.targets().iter().map(|&target| layer.projection(target));
            let weights: Vec<&Tensor> = projections.clone().map(|projection| &projection.weight).collect();
            all.push(Parameter::of(&weight_of(site, index), &weights));
            let biases: Vec<&Tensor> =
                projections.filter_map(|projection| projection.bias.as_ref()).collect();
            if !biases.is_empty() {
                all.push(Parameter::of(&bias_of(site, index), &biases));
            }
        }
        let norms = [&layer.input_norm, &layer.mlp_norm].into_iter().chain(layer.qk_norm.iter().flatten());
        all.extend(norms.map(|norm| Parameter::of(&norm.name, &[norm])));
    }
    all.push(Parameter::of(&decoder.final_norm.name, &[&decoder.final_norm]));
    all
}

impl Parameter {
    fn of(name: &str, parts: &[&Tensor]) -> Parameter {
        let mut shape = parts[0].shape.clone();
        shape[0] = parts.iter().map(|part| part.shape[0]).sum();
        let parts = parts.iter().map(|part| part.name.clone()).collect();
        Parameter { name: name.to_owned(), shape, parts }
    }
}

fn weight_of(site: Site, layer: usize) -> String {
    format!("weight.{}.{layer}", site.name())
}

fn bias_of(site: Site, layer: usize) -> String {
    format!("bias.{}.{layer}", site.name())
}

impl Builder<'_> {
    pub(super) fn paged_inputs(&mut self) {
        let (config, element, graph) = (self.config, self.element, &mut self.graph);
        graph.input("input_ids", Element::I64, &["N"]);
        graph.input("slot_mapping", Element::I32, &["N"]);
        graph.input("positions", Element::I32, &["N"]);
        graph.output("hidden", element, &["R", &config.hidden_size.to_string()]);
        let (heads, dim) = (config.num_kv_heads.to_string(), config.head_dim.to_string());
        for layer in 0..config.num_layers {
            for side in ["key", "value"] {
                let shape = ["P", "S", &heads, &dim];
                graph.input(&format!("{side}_cache.{layer}"), element, &shape);
                graph.output(&format!("{side}_cache_out.{layer}"), element, &shape);
            }
        }
        for Parameter { name, shape, .. } in parameters(config) {
            let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
            let shape: Vec<&str> = shape.iter().map(String::as_str).collect();
            graph.input(&name, element, &shape);
        }
        self.stack_inputs();
        for rope in config.ropes() {
            self.rope_tables(["cos", "sin"], config.max_positions, &rope);
        }
        if self.decodes() {
            return self.decode_inputs();
        }
        let own = self.attends();
        let graph = &mut self.graph;
        graph.input("last_idx", Element::I64, &["R"]);
        graph.input("block_table", Element::I32, &["B", "M"]);
        if own {
            graph.input("query_tiles", Element::I32, &["U", "4"]);
            return;
        }
        graph.input("cumulative_sequence_length", Element::I32, &["B_1"]);
        graph.input("past_seqlens", Element::I32, &["B"]);
        graph.input("attention_metadata", Element::I32, &["3"]);
    }

    pub(super) fn paged_layers(&mut self) -> Result<()> {
        let decoder = self.decoder;
        let last = decoder.layers.len() - 1;
        self.embedded("embedded")?;
        let mut stream = self.widened("embedded");
        for (index, layer) in decoder.layers.iter().enumerate() {
            let value = |name: &str| format!("{name}.{index}");
            self.stream_norm(&stream, &layer.input_norm, &value("normed"));
            self.stacked_site(index, Site::QueryKeyValue, &value("normed"), None, &value("qkv"));
            match self.attends() {
                true => self.own_attention(index, layer),
                false => self.paged_attention(index, layer),
            }
            let mut attention = value("attention");
            if index == last && !self.decodes() {
                // Every row has its keys and values now; only those to be scored go on.
                (stream, attention) = (self.scored(&stream), self.scored(&attention));
            }
            let middle = value("middle");
            self.stacked_site(index, Site::Output, &attention, Some(&stream), &middle);
            self.stream_norm(&middle, &layer.mlp_norm, &value("middle_normed"));
            self.stacked_site(index, Site::GateUp, &value("middle_normed"), None, &value("gate_up"));
            self.graph.node(DOMAIN, "SwiGlu", &[&value("gate_up")], &[&value("gated")], &[]);
            stream = format!("x.{}", index + 1);
            self.stacked_site(index, Site::Down, &value("gated"), Some(&middle), &stream);
        }
        self.stream_norm(&stream, &decoder.final_norm, "hidden");
        Ok(())
    }

    /// Inputs and attributes of the operator that makes heads of `qkv.L`.
    pub(super) fn heads(&self, index: usize, layer: &Layer) -> (Vec<String>, Vec<(&'static str, Attribute)>) {
        let config = self.config;
        let bias = if config.attention_bias { bias_of(Site::QueryKeyValue, index) } else { String::new() };
        let norms = layer.qk_norm.as_ref().map_or(["", ""], |[query, key]| [&query.name, &key.name]);
        let inputs = [&format!("qkv.{index}"), "positions", "cos", "sin", &bias, norms[0], norms[1]];
        let attributes = vec![
            ("num_heads", Attribute::Int(config.num_heads as i64)),
            ("kv_num_heads", Attribute::Int(config.num_kv_heads as i64)),
            ("epsilon", Attribute::Float(config.rms_norm_eps)),
            ("rotary", Attribute::Int(i64::from(layer.rope.is_some()))),
        ];
        (inputs.map(str::to_owned).to_vec(), attributes)
    }

    /// From `qkv.L` to `attention.L`.
    fn paged_attention(&mut self, index: usize, layer: &Layer) {
        let value = |name: &str| format!("{name}.{index}");
        let (inputs, attributes) = self.heads(index, layer);
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let [query, key, rows] = ["q", "k", "v"].map(value);
        self.graph.node(DOMAIN, "Heads", &inputs, &[&query, &key, &rows], &attributes);
        let heads = &attributes[..2];
        let [keys, values] = ["key_cache", "value_cache"].map(value);
        let lengths = ["cumulative_sequence_length", "past_seqlens", "block_table"];
        let mut inputs = vec![&query[..], &key, &rows, &keys, &values];
        inputs.extend(lengths);
        inputs.extend(["", "", "slot_mapping", "", "", "", "", "", "attention_metadata"]);
        let outputs = ["attention", "key_cache_out", "value_cache_out"].map(value);
        let domain = if self.kind == Kind::Paged(Arithmetic::F32) { DOMAIN } else { MICROSOFT };
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        self.graph.node(domain, "PagedAttention", &inputs, &outputs, heads);
    }

    /// The projections of a site as one value, including adapters; added to the residual stream if one is
    /// given.
    fn stacked_site(&mut self, index: usize, site: Site, input: &str, stream: Option<&str>, output: &str) {
        // The small part first: where it is rounded before the sum, that costs least. Training does the same.
        let small = self.low_rank(index, site, input, stream, output);
        let addend = small.as_deref().or(stream);
        self.product(input, &weight_of(site, index), addend, stream.is_some(), output);
    }

    /// `output = addend + input · weightᵀ`, in f32 where it is the residual stream.
    pub(super) fn product(
        &mut self,
        input: &str,
        weight: &str,
        addend: Option<&str>,
        residual: bool,
        output: &str,
    ) {
        let operator = if residual { "ResidualLinear" } else { "Linear" };
        self.graph.node(DOMAIN, operator, &[input, weight, addend.unwrap_or("")], &[output], &[]);
    }

    fn stream_norm(&mut self, input: &str, norm: &Tensor, output: &str) {
        let epsilon = [("epsilon", Attribute::Float(self.config.rms_norm_eps))];
        self.graph.node(DOMAIN, "RmsNorm", &[input, &norm.name], &[output], &epsilon);
    }

    /// An activation in f32.
    fn widened(&mut self, value: &str) -> String {
        if self.element == Element::F32 {
            return value.to_owned();
        }
        let wide = format!("{value}.f32");
        self.cast(value, Element::F32, &wide);
        wide
    }
}
