//! [`Kind::Prefill`](super::Kind) and [`Kind::Decode`](super::Kind): the graphs for a device with our attention.
//!
//! The first is the [`paged`](super::paged) graph with other operators in the place of `Heads` and `PagedAttention`. The second
//! is for the newest tokens of sequences, one each: all rows are scored, and attention reads shared blocks once. All three work on
//! the same KV cache.
//!
//! | value | type and shape | meaning |
//! |---|---|---|
//! | inputs `input_ids`, `slot_mapping`, `positions`, caches, weights, `adapter` and factors | as in the paged graph | |
//! | `Prefill`: inputs `last_idx`, `block_table` | as in the paged graph | |
//! | `Prefill`: input `query_tiles` | int32 `[U, 4]` | rows of one sequence: the first one, their number, the position of the first one, and the sequence |
//! | `Prefill`: output `hidden` | as in the paged graph | |
//! | `Decode`: input `tasks` | int32 `[N * M, 4]` | a block to read; the rows that read it, as the first one plus 65,536 times their number; the block's place in their sequences; keys to read |
//! | `Decode`: input `task_count` | int32 `[1]` | the number of tasks; later entries are ignored |
//! | `Decode`: input `scratch` | f32 `[S]` | room for partial results |
//! | `Decode`: output `hidden` | T `[N, hidden_size]` | all rows after the final norm |
//!
//! M is the most blocks of a sequence. The operators:
//!
//! | operator | inputs | output |
//! |---|---|---|
//! | `AppendHeads` | the inputs and attributes of `Heads`, then the caches and `slot_mapping` | queries as from `Heads`; both caches, in place, with the keys and values of all rows |
//! | `PrefillAttention` | queries, both caches, `query_tiles`, `block_table`; attributes `num_heads`, `kv_num_heads` | T `[N, num_heads * head_dim]`: attention of each row to its sequence up to its position, scale `head_dim^-0.5` |
//! | `DecodeAttention` | queries, both caches, `tasks`, `task_count`, `positions`, `scratch`; the same attributes | the same |

use super::{Builder, DOMAIN, Kind};
use crate::decoder::Layer;
use crate::onnx::{Attribute, Element};

impl Builder<'_> {
    /// True if each row is the newest token of a sequence.
    pub(super) fn decodes(&self) -> bool {
        matches!(self.kind, Kind::Decode(_))
    }

    /// True for a graph with our attention.
    pub(super) fn attends(&self) -> bool {
        matches!(self.kind, Kind::Prefill(_) | Kind::Decode(_))
    }

    pub(super) fn decode_inputs(&mut self) {
        self.graph.input("tasks", Element::I32, &["U", "4"]);
        self.graph.input("task_count", Element::I32, &["1"]);
        self.graph.input("scratch", Element::F32, &["S"]);
    }

    /// From `qkv.L` to `attention.L`.
    pub(super) fn own_attention(&mut self, index: usize, layer: &Layer) {
        let value = |part: &str| format!("{part}.{index}");
        let [keys, values] = ["key_cache", "value_cache"].map(value);
        let [query, new_keys, new_values] = ["q", "key_cache_out", "value_cache_out"].map(value);
        let (own, attributes) = self.heads(index, layer);
        let mut inputs: Vec<&str> = own.iter().map(String::as_str).collect();
        inputs.extend([&keys[..], &values, "slot_mapping"]);
        self.graph.node(DOMAIN, "AppendHeads", &inputs, &[&query, &new_keys, &new_values], &attributes);
        let (operator, more) = match self.decodes() {
            true => ("DecodeAttention", &["tasks", "task_count", "positions", "scratch"][..]),
            false => ("PrefillAttention", &["query_tiles", "block_table"][..]),
        };
        let inputs = [&[&query[..], &new_keys, &new_values], more].concat();
        let heads = [
            ("num_heads", Attribute::Int(self.config.num_heads as i64)),
            ("kv_num_heads", Attribute::Int(self.config.num_kv_heads as i64)),
        ];
        self.graph.node(DOMAIN, operator, &inputs, &[&value("attention")], &heads);
    }
}
