//! [`Kind::SharedPrefix`](super::Kind::SharedPrefix): what `rollout` runs on CPU.
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
//! With [`Products::Own`](super::Products::Own) each projection and the head are a custom operator `troupe.Linear`:
//!
//! | | |
//! |---|---|
//! | input 0 | f32 `[rows, inputs]` |
//! | output 0 | f32 `[rows, outputs]`: `input · weightᵀ + bias` |
//! | integer attributes | `layer`, `site`: [`SITES`], whose outputs follow each other in a row; after the last layer, with `layer` and `site` 0, the head |
//!
//! The weights are the operator's own state, packed once for its kernels: of what is multiplied, the model holds nothing.
//!
//! Custom operator `troupe.SwiGlu`, one a layer, no attributes: input 0 f32 `[N, 2 * intermediate_size]`, gate then up;
//! output 0 f32 `[N, intermediate_size]` = silu(gate) * up.
//!
//! Where it is `adapted`, each projection is followed by the custom
//! operator `troupe.LowRank`:
//!
//! | | |
//! |---|---|
//! | input 0 | f32 `[rows, inputs]`: what the projection read |
//! | input 1 | f32 `[rows, outputs]`: what it gave |
//! | output 0 | input 1 and what the adapter of each row adds |
//! | integer attributes | `layer`, `site` ([`SITES`]), `scored` (1 where the rows are those of `last_idx`) |
//!
//! Adapters, and which row uses which, are the operator's own state.

use record::failure::Result;

use super::{Builder, DOMAIN, Kind, ONNX, Products};
use crate::adapter::Target;
use crate::onnx::{Attribute, Element};

/// Projections that read the same, and are adapted as one.
pub const SITES: [&[Target]; 4] = [
    &[Target::Query, Target::Key, Target::Value],
    &[Target::Output],
    &[Target::Gate, Target::Up],
    &[Target::Down],
];

/// A place in [`SITES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    QueryKeyValue,
    Output,
    GateUp,
    Down,
}

impl Site {
    pub(super) const ALL: [Site; 4] = [Site::QueryKeyValue, Site::Output, Site::GateUp, Site::Down];

    pub(super) fn targets(self) -> &'static [Target] {
        SITES[self as usize]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Site::QueryKeyValue => "qkv",
            Site::Output => "o",
            Site::GateUp => "gate_up",
            Site::Down => "down",
        }
    }
}

impl Builder<'_> {
    /// Projections of a site with their biases, and what the adapters of the rows add.
    pub(super) fn shared_prefix_projection(
        &mut self,
        layer: usize,
        site: Site,
        input: &str,
        value: &str,
    ) -> Result<()> {
        let Kind::SharedPrefix { products, adapted } = self.kind else { unreachable!("of this kind alone") };
        let base = if adapted { format!("{value}.base") } else { value.to_owned() };
        match products {
            Products::Own => self.own_linear(layer, site as usize, input, &base),
            Products::OnnxRuntime => self.runtime_linear(layer, site, input, &base)?,
        }
        if adapted {
            let scored = layer + 1 == self.config.num_layers && site != Site::QueryKeyValue;
            let attributes = [
                ("layer", Attribute::Int(layer as i64)),
                ("site", Attribute::Int(site as i64)),
                ("scored", Attribute::Int(i64::from(scored))),
            ];
            self.graph.node(DOMAIN, "LowRank", &[input, &base], &[value], &attributes);
        }
        Ok(())
    }

    /// The projections of a site as one product of ONNX Runtime's.
    fn runtime_linear(&mut self, layer: usize, site: Site, input: &str, value: &str) -> Result<()> {
        let names = |what: &str| -> Vec<String> {
            site.targets().iter().map(|target| format!("{}.{what}", target.module(layer))).collect()
        };
        let weights = names("weight");
        if let [weight] = &weights[..] {
            return self.linear(input, weight, value);
        }
        let packed = format!("{value}.weight");
        self.concatenated(&weights, &packed)?;
        if site != Site::QueryKeyValue || !self.config.attention_bias {
            self.matmul(input, &packed, value);
            return Ok(());
        }
        let (unbiased, bias) = (format!("{value}.unbiased"), format!("{value}.bias"));
        self.matmul(input, &packed, &unbiased);
        self.concatenated(&names("bias"), &bias)?;
        self.graph.node(ONNX, "Add", &[&unbiased, &bias], &[value], &[]);
        Ok(())
    }

    /// The output head by our own operator.
    pub(super) fn own_head(&mut self, input: &str, value: &str) {
        self.own_linear(self.config.num_layers, 0, input, value);
    }

    fn own_linear(&mut self, layer: usize, site: usize, input: &str, value: &str) {
        let attributes = [("layer", Attribute::Int(layer as i64)), ("site", Attribute::Int(site as i64))];
        self.graph.node(DOMAIN, "Linear", &[input], &[value], &attributes);
    }

    pub(super) fn shared_prefix_inputs(&mut self) {
        self.graph.input("input_ids", Element::I64, &["N"]);
        self.graph.input("last_idx", Element::I64, &["R"]);
        self.graph.output("logits", Element::F32, &["R", &self.config.vocab_size.to_string()]);
    }

    /// From `normed.L` to `attention.L`.
    pub(super) fn shared_prefix_attention(&mut self, layer: usize) -> Result<()> {
        let config = self.config;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let value = |part: &str| format!("{part}.{layer}");
        self.shared_prefix_projection(layer, Site::QueryKeyValue, &value("normed"), &value("qkv"))?;
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
}
