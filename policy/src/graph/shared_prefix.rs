//! [`Kind::SharedPrefix`](super::Kind::SharedPrefix): what `rollout` runs on CPU.
//!
//! Tensors are `[rows, width]`; a row is one token of any sequence, and only the attention operator knows which rows belong
//! together, so prompts of any lengths are packed without padding and one graph serves prefill and decode.
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
//! | input 0 | f32 `[N, (num_heads + 2 * kv_num_heads) * head_dim]`: query heads, then key heads, then value heads of each row, with biases, before norms and RoPE |
//! | inputs 1, 2 | f32 `[head_dim]`: weights of the query and key RMS norms, stored in the model; absent when `qk_norm` is 0 |
//! | output 0 | f32 `[N, num_heads * head_dim]`; in the last layer only the rows of `last_idx` are read |
//! | integer attributes | `layer` (from 0), `num_heads`, `kv_num_heads`, `head_dim`, `qk_norm` (0 or 1), `window` (tokens that a query may attend to, itself included; 0: all) |
//! | float attributes | `epsilon` (of the norms), `scale` (of the scores) |
//!
//! For each row it computes the norms, RoPE at the row's position with the layer's
//! [`Config::ropes`](crate::config::Config::ropes), if any, appends key and value to the cache, and computes attention.
//! Positions, caches and the grouping of rows are the operator's own state.
//!
//! With [`Products::Own`](super::Products::Own) each site's projections and the head are a custom operator `troupe.Linear`:
//!
//! | | |
//! |---|---|
//! | input 0 | f32 `[rows, inputs]` |
//! | output 0 | f32 `[rows, outputs]`: `input · weightᵀ + bias` |
//! | integer attributes | `layer`, `site` ([`Site`](crate::decoder::Site)), whose outputs follow each other in a row; after the last layer, with `site` 0, the head |
//!
//! The weights are the operator's own state, packed for its kernels; the model does not hold them.
//!
//! Custom operator `troupe.SwiGlu`, one a layer, no attributes: input 0 f32 `[N, 2 * intermediate_size]`, gate then up;
//! output 0 f32 `[N, intermediate_size]` = silu(gate) * up. `troupe.GeGlu` is the same with GELU by its tanh formula.
//!
//! Custom operator `troupe.Experts` takes the place of a layer's MLP: attribute `layer`, input 0 f32 `[rows, hidden_size]`,
//! output 0 the same. Router and experts are the operator's own state.
//!
//! If `adapted`, each site is followed by the custom operator `troupe.LowRank`:
//!
//! | | |
//! |---|---|
//! | input 0 | f32 `[rows, inputs]`: the site's input |
//! | input 1 | f32 `[rows, outputs]`: its output |
//! | output 0 | input 1 plus `scale · B·(A·x)` of each row's adapter |
//! | integer attributes | `layer`, `site`, `scored` (1 where the rows are those of `last_idx`) |
//!
//! Adapters, and which row uses which, are the operator's own state.

use record::failure::Result;

use super::{Builder, DOMAIN, ONNX, Products};
use crate::decoder::{Layer, Site};
use crate::onnx::{Attribute, Element};

impl Builder<'_> {
    pub(super) fn shared_prefix_inputs(&mut self) {
        self.graph.input("input_ids", Element::I64, &["N"]);
        self.graph.input("last_idx", Element::I64, &["R"]);
        self.graph.output("logits", Element::F32, &["R", &self.config.vocab_size.to_string()]);
    }

    /// The projections of a site as one value.
    pub(super) fn fused(
        &mut self,
        index: usize,
        layer: &Layer,
        site: Site,
        input: &str,
        (products, adapted): (Products, bool),
    ) -> Result<()> {
        let value = match site {
            Site::QueryKeyValue => "qkv",
            Site::Output => "attention_out",
            Site::GateUp => "gate_up",
            Site::Down => "feed_forward",
        };
        let value = format!("{value}.{index}");
        let base = if adapted { format!("{value}.base") } else { value.clone() };
        match products {
            Products::Own => self.own_linear(index, site as usize, input, &base),
            Products::OnnxRuntime => self.runtime_linear(layer, site, input, &base)?,
        }
        if adapted {
            let scored = index + 1 == self.config.num_layers && site != Site::QueryKeyValue;
            let attributes = [
                ("layer", Attribute::Int(index as i64)),
                ("site", Attribute::Int(site as i64)),
                ("scored", Attribute::Int(i64::from(scored))),
            ];
            self.graph.node(DOMAIN, "LowRank", &[input, &base], &[&value], &attributes);
        }
        Ok(())
    }

    /// The projections of a site as one product by ONNX Runtime.
    fn runtime_linear(&mut self, layer: &Layer, site: Site, input: &str, value: &str) -> Result<()> {
        let projections = site.targets().iter().map(|&target| layer.projection(target));
        let weights: Vec<&str> = projections.clone().map(|one| one.weight.name.as_str()).collect();
        let biases: Option<Vec<&str>> =
            projections.map(|one| one.bias.as_ref().map(|bias| bias.name.as_str())).collect();
        let packed = match (&weights[..], &biases) {
            ([weight], None) => return self.linear(input, weight, value),
            ([weight], Some(_)) => self.weight(weight)?,
            _ => {
                let packed = format!("{value}.weight");
                self.concatenated(&weights, &packed)?;
                packed
            }
        };
        let Some(biases) = biases else {
            self.matmul(input, &packed, value);
            return Ok(());
        };
        let (unbiased, bias) = (format!("{value}.unbiased"), format!("{value}.bias"));
        self.matmul(input, &packed, &unbiased);
        self.concatenated(&biases, &bias)?;
        self.graph.node(ONNX, "Add", &[&unbiased, &bias], &[value], &[]);
        Ok(())
    }

    /// A product by the custom operator; `layer` one after the last is the head.
    pub(super) fn own_linear(&mut self, layer: usize, site: usize, input: &str, value: &str) {
        let attributes = [("layer", Attribute::Int(layer as i64)), ("site", Attribute::Int(site as i64))];
        self.graph.node(DOMAIN, "Linear", &[input], &[value], &attributes);
    }

    /// From `normed.L` to `attention.L`.
    pub(super) fn shared_prefix_attention(&mut self, index: usize, layer: &Layer) -> Result<()> {
        let config = self.config;
        let value = |part: &str| format!("{part}.{index}");
        self.project(index, layer, Site::QueryKeyValue, &value("normed"))?;
        let qkv = value("qkv");
        let mut inputs = vec![qkv.as_str()];
        // Stored in the model: the operator reads them when it is created, before any 16-bit weight is cast.
        for norm in layer.qk_norm.iter().flatten() {
            let values = self.norm_values(&norm.name)?;
            self.graph.numbers(&norm.name, Element::F32, &norm.shape, values.into_iter());
            inputs.push(&norm.name);
        }
        let attributes = [
            ("layer", Attribute::Int(index as i64)),
            ("num_heads", Attribute::Int(config.num_heads as i64)),
            ("kv_num_heads", Attribute::Int(config.num_kv_heads as i64)),
            ("head_dim", Attribute::Int(config.head_dim as i64)),
            ("qk_norm", Attribute::Int(i64::from(layer.qk_norm.is_some()))),
            ("epsilon", Attribute::Float(config.rms_norm_eps)),
            ("scale", Attribute::Float(config.attention_scale())),
            ("window", Attribute::Int(layer.window.unwrap_or(0) as i64)),
        ];
        self.graph.node(DOMAIN, "SharedPrefixAttention", &inputs, &[&value("attention")], &attributes);
        Ok(())
    }
}
