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
//! | input `attention_metadata` | int32 `[3]`, in plain memory | most rows of any one sequence, most tokens, and what the longest has at least |
//! | inputs `key_cache.L`, `value_cache.L` | T `[P, S, kv_num_heads, head_dim]` | P blocks of S tokens of layer L |
//! | output `hidden` | T `[R, hidden_size]` | the scored rows after the final norm |
//! | outputs `key_cache_out.L`, `value_cache_out.L` | as the inputs | must be the same buffers |
//!
//! With the last of the three numbers attention decides whether to split long sequences over more of the device.
//!
//! T is bf16 or f32. The residual stream is f32 with either: a bf16 product is cast before it is added, and the norm of the
//! sum after it is taken, four casts a layer. The output head is left to the caller: its products of bf16 numbers want sums
//! in f32, and a `MatMul` of bf16 would round each logit to eight bits, which moves log-probabilities by hundredths of a nat.
//!
//! `PagedAttention` is `com.microsoft`'s operator: query, key and value rows with biases added, or all three as one; RMS norms of query and key
//! heads, RoPE by halves with tables of T (in NoPE layers tables of no rotation, for the same kernels), the in-place
//! append, and causal attention with scale `head_dim^-0.5`. [`block_size`] is what its fastest kernel takes. LoRA
//! adapters add more inputs, see `stacked`.

use record::failure::Result;

use super::{Arithmetic, Builder, DOMAIN, Kind, MICROSOFT, element_of, file_name};
use crate::decoder::{Layer, Site, Target};
use crate::onnx::{Attribute, Element};
use crate::rope::Rope;
use crate::weights::TensorView;

/// Tokens of a block for heads of `head_dim`. A tile of FlashAttention's split kernel must not cross a block, and tiles
/// are the longer the narrower the heads.
pub fn block_size(head_dim: usize) -> usize {
    if head_dim <= 64 { 256 } else { 128 }
}

impl Builder<'_> {
    pub(super) fn paged_inputs(&mut self) {
        let (config, element, graph) = (self.config, self.element, &mut self.graph);
        graph.input("input_ids", Element::I64, &["N"]);
        graph.input("last_idx", Element::I64, &["R"]);
        graph.input("cumulative_sequence_length", Element::I32, &["B_1"]);
        graph.input("past_seqlens", Element::I32, &["B"]);
        graph.input("block_table", Element::I32, &["B", "M"]);
        graph.input("slot_mapping", Element::I32, &["N"]);
        graph.input("attention_metadata", Element::I32, &["3"]);
        graph.output("hidden", element, &["R", &config.hidden_size.to_string()]);
        let (heads, dim) = (config.num_kv_heads.to_string(), config.head_dim.to_string());
        for layer in 0..config.num_layers {
            for side in ["key", "value"] {
                let shape = ["P", "S", &heads, &dim];
                graph.input(&format!("{side}_cache.{layer}"), element, &shape);
                graph.output(&format!("{side}_cache_out.{layer}"), element, &shape);
            }
        }
        self.stack_inputs();
        for rope in config.ropes() {
            self.rope_tables(["cos", "sin"], config.max_positions, &rope);
            if self.decoder.layers.iter().any(|layer| layer.rope.is_none()) {
                let still = Rope { frequencies: vec![0.0; rope.frequencies.len()], attention_factor: 1.0 };
                self.rope_tables(["cos.nope", "sin.nope"], config.max_positions, &still);
            }
        }
    }

    /// From `normed.L` to `attention.L`.
    pub(super) fn paged_attention(&mut self, index: usize, layer: &Layer) -> Result<()> {
        let config = self.config;
        let value = |part: &str| format!("{part}.{index}");
        let rows = match self.packed(layer)? {
            Some(weight) => {
                self.matmul(&value("normed"), &weight, &value("qkv"));
                [value("qkv"), String::new(), String::new()]
            }
            None => {
                self.project(index, layer, Site::QueryKeyValue, &value("normed"))?;
                ["q", "k", "v"].map(value)
            }
        };
        let [cos, sin] = if layer.rope.is_some() { ["cos", "sin"] } else { ["cos.nope", "sin.nope"] };
        let mut inputs = rows.to_vec();
        inputs.extend(["key_cache", "value_cache"].map(value));
        let shared = ["cumulative_sequence_length", "past_seqlens", "block_table", cos, sin, "slot_mapping"];
        inputs.extend(shared.map(str::to_owned));
        let absent = String::new;
        inputs.push(absent());
        match &layer.qk_norm {
            Some(norms) => {
                for norm in norms {
                    inputs.push(self.weight(&norm.name)?);
                }
            }
            None => inputs.extend([absent(), absent()]),
        }
        inputs.extend([absent(), absent(), "attention_metadata".to_owned()]);
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let outputs = ["attention", "key_cache_out", "value_cache_out"].map(value);
        let attributes = [
            ("num_heads", Attribute::Int(config.num_heads as i64)),
            ("kv_num_heads", Attribute::Int(config.num_kv_heads as i64)),
            ("do_rotary", Attribute::Int(1)),
            ("qk_norm_epsilon", Attribute::Float(config.rms_norm_eps)),
        ];
        let domain = if self.kind == Kind::Paged(Arithmetic::F32) { DOMAIN } else { MICROSOFT };
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        self.graph.node(domain, "PagedAttention", &inputs, &outputs, &attributes);
        Ok(())
    }

    /// The weights of the query, key and value projections as one matrix, where their rows follow each other in a file and nothing
    /// is added to a part of the result: one product for three, two of which are too narrow to use a GPU.
    fn packed(&mut self, layer: &Layer) -> Result<Option<String>> {
        let projections = [Target::Query, Target::Key, Target::Value].map(|target| layer.projection(target));
        if projections.iter().any(|projection| projection.bias.is_some()) || self.adapts(Site::QueryKeyValue)
        {
            return Ok(None);
        }
        let names = projections.map(|projection| projection.weight.name.as_str());
        let [query, key, value] =
            [self.weights.tensor(names[0])?, self.weights.tensor(names[1])?, self.weights.tensor(names[2])?];
        let follows = |before: &TensorView, after: &TensorView| {
            after.file == before.file
                && after.dtype == before.dtype
                && after.offset == before.offset + before.bytes.len() as u64
        };
        if !follows(&query, &key) || !follows(&key, &value) {
            return Ok(None);
        }
        let shape = [query.shape[0] + key.shape[0] + value.shape[0], query.shape[1]];
        let bytes = query.bytes.len() + key.bytes.len() + value.bytes.len();
        let (name, element) = (format!("{}/packed", names[0]), element_of(self.weights, names[0])?);
        self.graph.external(&name, element, &shape, file_name(query.file)?, query.offset, bytes);
        if element == self.element {
            return Ok(Some(name));
        }
        let value = format!("{name}/cast");
        self.cast(&name, self.element, &value);
        Ok(Some(value))
    }
}
