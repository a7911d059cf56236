//! [`Kind::SharedPrefix`](super::Kind::SharedPrefix): the graph that `rollout` runs on the CPU.
//!
//! Tensors are `[rows, width]`; a row is one token of any sequence, and only the attention operator knows which rows belong
//! together, so prompts of any lengths are packed without padding and one graph serves prefill and decode.
//!
//! | value | type and shape | meaning |
//! |---|---|---|
//! | input `input_ids` | int64 `[N]` | one token a row |
//! | input `last_idx` | int64 `[R]` | rows to score |
//! | the embedding, by its name in the checkpoint | as stored, `[vocab_size, hidden_size]` | rows are converted as they are read |
//! | each norm of the residual stream, by its name | f32 `[hidden_size]` | its weights ([`norm_values`](super::norm_values)) |
//! | output `logits` | f32 `[R, vocab_size]` | next-token logits of those rows, in that order |
//!
//! All other weights are the state of custom operators, packed for their kernels. So the graph depends on the architecture
//! and the embedding's type alone.
//!
//! Custom operator `troupe.SharedPrefixAttention`, one a layer:
//!
//! | | |
//! |---|---|
//! | input 0 | f32 `[N, (num_heads + 2 * kv_num_heads) * head_dim]`: query heads, then key heads, then value heads of each row, with biases, before norms and RoPE |
//! | output 0 | f32 `[N, num_heads * head_dim]`; in the last layer only the rows of `last_idx` are read |
//! | integer attributes | `layer` (from 0), `num_heads`, `kv_num_heads`, `head_dim`, `window` (tokens that a query may attend to, itself included; 0: all) |
//! | float attributes | `epsilon` (of the norms), `scale` (of the scores) |
//!
//! For each row it computes the RMS norms of queries and keys, if any, RoPE at the row's position with the
//! layer's [`Config::ropes`](crate::config::Config::ropes), if any, appends key and value to the cache, and
//! computes attention. Norms, positions, caches and the grouping of rows are state of the operator.
//!
//! Each site's projections and the head are a custom operator `troupe.Linear`. Its addend, if any, is the residual stream:
//! added here, it is added as in training:
//!
//! | | |
//! |---|---|
//! | input 0 | f32 `[rows, inputs]` |
//! | input 1, optional | f32 `[rows, outputs]`: an addend |
//! | output 0 | f32 `[rows, outputs]`: `addend + input · weightᵀ + bias` |
//! | integer attributes | `layer`, `site` ([`Site`]), whose outputs follow each other in a row; after the last layer, with `site` 0, the head |
//!
//! Custom operator `troupe.RmsNorm`: input 0 f32 `[rows, width]`, input 1 f32 `[width]`, output 0 f32 `[rows, width]`;
//! attribute `epsilon`.
//!
//! Custom operator `troupe.SwiGlu`, one a layer, no attributes: input 0 f32 `[N, 2 * intermediate_size]`, gate then up;
//! output 0 f32 `[N, intermediate_size]` = silu(gate) * up. `troupe.GeGlu` is the same with GELU by its tanh formula.
//!
//! Custom operator `troupe.Experts` takes the place of a layer's MLP: attribute `layer`, input 0 f32 `[rows,
//! hidden_size]`, input 1 the residual stream to which it adds, output 0 the sum. Router and experts are
//! state of the operator.
//!
//! If `adapted`, the addend of each site comes from the custom operator `troupe.LowRank`:
//!
//! | | |
//! |---|---|
//! | input 0 | f32 `[rows, inputs]`: the site's input |
//! | input 1, optional | f32 `[rows, outputs]`: the site's addend |
//! | output 0 | f32 `[rows, outputs]`: input 1 plus `scale · B·(A·x)` of each row's adapter |
//! | integer attributes | `layer`, `site`, `scored` (1 for the rows of `last_idx`) |
//!
//! Adapters, and their assignment to rows, are state of the operator.

use record::failure::Result;

use super::{Builder, DOMAIN, ONNX, element_of};
use crate::decoder::{Decoder, Layer, Site, Tensor};
use crate::onnx::{Attribute, Element};

/// The tensors that are inputs of the graph, after `input_ids` and `last_idx`: first the embedding, then the norms of the
/// residual stream.
pub fn fed_tensors(decoder: &Decoder) -> impl Iterator<Item = &Tensor> {
    let norms = decoder.layers.iter().flat_map(|layer| {
        let post_norms = [&layer.attention_out_norm, &layer.mlp_out_norm].into_iter().flatten();
        [&layer.input_norm, &layer.mlp_norm].into_iter().chain(post_norms)
    });
    [&decoder.embedding].into_iter().chain(norms).chain([&decoder.final_norm])
}

impl Builder<'_> {
    pub(super) fn shared_prefix_inputs(&mut self) -> Result<()> {
        self.graph.input("input_ids", Element::I64, &["N"]);
        self.graph.input("last_idx", Element::I64, &["R"]);
        let mut element = element_of(self.weights, &self.decoder.embedding.name)?;
        for tensor in fed_tensors(self.decoder) {
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let shape: Vec<&str> = shape.iter().map(String::as_str).collect();
            self.graph.input(&tensor.name, element, &shape);
            element = Element::F32;
        }
        self.graph.output("logits", Element::F32, &["R", &self.config.vocab_size.to_string()]);
        Ok(())
    }

    pub(super) fn shared_prefix_layers(&mut self, adapted: bool) -> Result<()> {
        let decoder = self.decoder;
        let last = decoder.layers.len() - 1;
        self.embedded("x.0")?;
        for (index, layer) in decoder.layers.iter().enumerate() {
            let value = |name: &str| format!("{name}.{index}");
            let (mut x, next, mut attention) = (value("x"), format!("x.{}", index + 1), value("attention"));
            self.rms_norm(&x, &layer.input_norm, &value("normed"));
            self.site(adapted, (index, Site::QueryKeyValue), &value("normed"), None, &value("qkv"));
            self.shared_prefix_attention(index, layer);
            if index == last {
                // Every row has its keys and values now; only those to be scored go on.
                (x, attention) = (self.scored(&x), self.scored(&attention));
            }
            let norm = layer.attention_out_norm.as_ref();
            self.branch(adapted, (index, Site::Output), &attention, norm, &x, &value("middle"));
            self.rms_norm(&value("middle"), &layer.mlp_norm, &value("middle_normed"));
            if layer.experts.is_some() {
                let attributes = [("layer", Attribute::Int(index as i64))];
                let inputs = [&value("middle_normed")[..], &value("middle")];
                self.graph.node(DOMAIN, "Experts", &inputs, &[&next], &attributes);
                continue;
            }
            let (gate_up, gated) = (value("gate_up"), value("gated"));
            self.site(adapted, (index, Site::GateUp), &value("middle_normed"), None, &gate_up);
            let glu = if self.config.variant.gelu { "GeGlu" } else { "SwiGlu" };
            self.graph.node(DOMAIN, glu, &[&gate_up], &[&gated], &[]);
            let norm = layer.mlp_out_norm.as_ref();
            self.branch(adapted, (index, Site::Down), &gated, norm, &value("middle"), &next);
        }
        self.rms_norm(&format!("x.{}", last + 1), &decoder.final_norm, "normed.scored");
        self.own_linear((last + 1, 0), "normed.scored", None, "logits");
        Ok(())
    }

    /// `sum = residual + the projections of a site from input`, normalized before they are added if there is a norm for them.
    fn branch(
        &mut self,
        adapted: bool,
        site: (usize, Site),
        input: &str,
        norm: Option<&Tensor>,
        residual: &str,
        sum: &str,
    ) {
        let Some(norm) = norm else { return self.site(adapted, site, input, Some(residual), sum) };
        let (output, normed) = (format!("{sum}.branch"), format!("{sum}.branch_normed"));
        self.site(adapted, site, input, None, &output);
        self.rms_norm(&output, norm, &normed);
        self.graph.node(ONNX, "Add", &[residual, &normed], &[sum], &[]);
    }

    fn rms_norm(&mut self, input: &str, norm: &Tensor, output: &str) {
        let epsilon = [("epsilon", Attribute::Float(self.config.rms_norm_eps))];
        self.graph.node(DOMAIN, "RmsNorm", &[input, &norm.name], &[output], &epsilon);
    }

    /// The projections of a layer's site as one value, adapters included.
    fn site(
        &mut self,
        adapted: bool,
        (index, site): (usize, Site),
        input: &str,
        addend: Option<&str>,
        output: &str,
    ) {
        let place = (index, site as usize);
        if !adapted {
            return self.own_linear(place, input, addend, output);
        }
        let low_rank = format!("{output}.low_rank");
        let scored = index + 1 == self.config.num_layers && site != Site::QueryKeyValue;
        let attributes = [
            ("layer", Attribute::Int(index as i64)),
            ("site", Attribute::Int(site as i64)),
            ("scored", Attribute::Int(i64::from(scored))),
        ];
        self.graph.node(DOMAIN, "LowRank", &[input, addend.unwrap_or("")], &[&low_rank], &attributes);
        self.own_linear(place, input, Some(&low_rank), output);
    }

    /// A product by the custom operator; the layer after the last, with site 0, is the head.
    fn own_linear(&mut self, (layer, site): (usize, usize), input: &str, addend: Option<&str>, output: &str) {
        let attributes = [("layer", Attribute::Int(layer as i64)), ("site", Attribute::Int(site as i64))];
        self.graph.node(DOMAIN, "Linear", &[input, addend.unwrap_or("")], &[output], &attributes);
    }

    /// From `qkv.L` to `attention.L`.
    fn shared_prefix_attention(&mut self, index: usize, layer: &Layer) {
        let config = self.config;
        let value = |part: &str| format!("{part}.{index}");
        let attributes = [
            ("layer", Attribute::Int(index as i64)),
            ("num_heads", Attribute::Int(config.num_heads as i64)),
            ("kv_num_heads", Attribute::Int(config.num_kv_heads as i64)),
            ("head_dim", Attribute::Int(config.head_dim as i64)),
            ("epsilon", Attribute::Float(config.rms_norm_eps)),
            ("scale", Attribute::Float(config.attention_scale())),
            ("window", Attribute::Int(layer.window.unwrap_or(0) as i64)),
        ];
        let (qkv, attention) = (value("qkv"), value("attention"));
        self.graph.node(DOMAIN, "SharedPrefixAttention", &[&qkv], &[&attention], &attributes);
    }
}
