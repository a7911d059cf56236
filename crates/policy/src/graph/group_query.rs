//! [`Kind::GroupQuery`](super::Kind::GroupQuery): the portable graph and the oracle.
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
//! The model holds cosine and sine tables of the first [`GROUP_QUERY_POSITIONS`] positions.

use record::failure::Result;

use super::{Builder, MICROSOFT, ONNX};
use crate::decoder::{Layer, Site};
use crate::onnx::{Attribute, Element};

/// Positions that the cosine and sine tables of the portable graph cover, at most.
pub const GROUP_QUERY_POSITIONS: usize = 4096;

/// Names of the tables of each of [`Config::ropes`](crate::config::Config::ropes).
const ROPES: [[&str; 2]; 2] = [["cos", "sin"], ["cos.local", "sin.local"]];

impl Builder<'_> {
    pub(super) fn group_query_inputs(&mut self) {
        let config = self.config;
        let graph = &mut self.graph;
        graph.input("input_ids", Element::I64, &["B", "S"]);
        graph.input("seqlens_k", Element::I32, &["B"]);
        graph.input("total_len", Element::I32, &[]);
        graph.output("logits", Element::F32, &["R", &config.vocab_size.to_string()]);
        graph.input("last_idx", Element::I64, &["R"]);
        let (heads, dim) = (config.num_kv_heads.to_string(), config.head_dim.to_string());
        for layer in 0..config.num_layers {
            for side in ["k", "v"] {
                graph.input(&format!("past_{side}.{layer}"), Element::F32, &["B", &heads, "C", &dim]);
                graph.output(&format!("present_{side}.{layer}"), Element::F32, &["B", &heads, "C", &dim]);
            }
        }
        for (rope, names) in config.ropes().iter().zip(ROPES) {
            self.rope_tables(names, config.max_positions.min(GROUP_QUERY_POSITIONS), rope);
        }
        let graph = &mut self.graph;
        graph.integers("rows", &[-1, config.hidden_size as i64]);
        let normed = [("q", config.num_heads), ("k", config.num_kv_heads)];
        for (side, heads) in normed.into_iter().filter(|_| config.qk_norm) {
            graph.integers(&format!("{side}_split"), &[0, 0, heads as i64, config.head_dim as i64]);
            graph.integers(&format!("{side}_join"), &[0, 0, (heads * config.head_dim) as i64]);
        }
    }

    /// From `normed.L` to `attention.L`.
    pub(super) fn group_query_attention(&mut self, index: usize, layer: &Layer) -> Result<()> {
        let config = self.config;
        let value = |part: &str| format!("{part}.{index}");
        self.project(index, layer, Site::QueryKeyValue, &value("normed"))?;
        let (mut queries, mut keys) = (value("q"), value("k"));
        if let Some([query_norm, key_norm]) = &layer.qk_norm {
            // GroupQueryAttention takes the norms' weights itself on other devices, but refuses them on CPU.
            for (side, norm, last) in [("q", query_norm, &mut queries), ("k", key_norm, &mut keys)] {
                let step = |what: &str| format!("{side}_{what}.{index}");
                let (split, join) = (format!("{side}_split"), format!("{side}_join"));
                self.graph.node(ONNX, "Reshape", &[last, &split], &[&step("heads")], &[]);
                self.norm(&step("heads"), &norm.name, &step("normed"))?;
                self.graph.node(ONNX, "Reshape", &[&step("normed"), &join], &[&step("joined")], &[]);
                *last = step("joined");
            }
        }
        let (v, past_k, past_v) = (value("v"), value("past_k"), value("past_v"));
        let [cos, sin] = layer.rope.map_or([""; 2], |rope| ROPES[rope]);
        let inputs = [&queries, &keys, &v, &past_k, &past_v, "seqlens_k", "total_len", cos, sin];
        let outputs = [&value("attention")[..], &value("present_k"), &value("present_v")];
        let mut attributes = vec![
            ("num_heads", Attribute::Int(config.num_heads as i64)),
            ("kv_num_heads", Attribute::Int(config.num_kv_heads as i64)),
            ("do_rotary", Attribute::Int(i64::from(layer.rope.is_some()))),
        ];
        attributes.extend(config.variant.attention_scale.map(|scale| ("scale", Attribute::Float(scale))));
        // With the token itself.
        attributes.extend(layer.window.map(|window| ("local_window_size", Attribute::Int(window as i64))));
        self.graph.node(MICROSOFT, "GroupQueryAttention", &inputs, &outputs, &attributes);
        Ok(())
    }
}
