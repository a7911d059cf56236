//! The model families: one entry for each, of what its decoder does differently from Llama's.
//!
//! They share one skeleton (pre-norm, rotary positions, grouped-query attention, SwiGLU). A family that differs by the
//! parts named here is added by its entry and its golden checkpoints; a new part also needs a field in
//! [`crate::decoder`] and whoever computes it.

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::json::{flag, present, size};

/// What a family's class in `transformers` does.
pub(crate) struct Family {
    /// In `config.json`.
    model_type: &'static str,
    /// For people.
    pub name: &'static str,
    /// Query and key heads are RMS-normalized.
    pub qk_norm: bool,
    /// The query, key and value projections have biases.
    pub attention_bias: bool,
    /// `sliding_window` limits every layer; elsewhere only with `use_sliding_window` or `layer_types`.
    windowed: bool,
    /// Some layers have no rotary positions, by `no_rope_layers` or `no_rope_layer_interval`.
    nope: bool,
    /// The class's defaults for keys that are absent: `head_dim` (else hidden / heads), `num_key_value_heads` (else as many
    /// as query heads), `sliding_window`, `tie_word_embeddings`, `rope_theta`.
    pub head_dim: Option<usize>,
    pub num_kv_heads: Option<usize>,
    sliding_window: Option<usize>,
    pub tied: bool,
    pub rope_theta: f32,
}

/// Llama 2, 3 and relatives saved as `LlamaForCausalLM`.
const LLAMA: Family = Family {
    model_type: "llama",
    name: "Llama",
    qk_norm: false,
    attention_bias: false,
    windowed: false,
    nope: false,
    head_dim: None,
    num_kv_heads: None,
    sliding_window: None,
    tied: false,
    rope_theta: 10_000.0,
};

const FAMILIES: [Family; 5] = [
    Family { model_type: "qwen3", name: "Qwen3", qk_norm: true, head_dim: Some(128), ..LLAMA },
    // Also Qwen2.5.
    Family { model_type: "qwen2", name: "Qwen2", attention_bias: true, ..LLAMA },
    LLAMA,
    Family {
        model_type: "mistral",
        name: "Mistral",
        windowed: true,
        num_kv_heads: Some(8),
        sliding_window: Some(4096),
        ..LLAMA
    },
    Family {
        model_type: "smollm3",
        name: "SmolLM3",
        nope: true,
        num_kv_heads: Some(4),
        tied: true,
        rope_theta: 2_000_000.0,
        ..LLAMA
    },
];

impl Family {
    /// The family of a `config.json`.
    pub(crate) fn of(json: &Value) -> Result<&'static Family> {
        let model_type = present(json, "model_type").and_then(Value::as_str).unwrap_or_default();
        let found = FAMILIES.iter().find(|family| family.model_type == model_type);
        found.ok_or_else(|| match model_type {
            "" => Failure::data("model_type is missing"),
            other => {
                let known = FAMILIES.each_ref().map(|family| family.model_type).join(", ");
                Failure::data(format!("model_type is {other:?}, which is not implemented"))
                    .hint(format!("families: {known}; Qwen2.5 is qwen2"))
            }
        })
    }

    /// Tokens that a query may attend to, itself included, where a window limits them in every layer.
    ///
    /// # Errors
    /// A window that only some layers use.
    pub(crate) fn window(&self, json: &Value, layers: usize) -> Result<Option<usize>> {
        let refusal = |what: String| {
            Failure::data(format!("{what}: sliding-window attention is not implemented"))
                .hint("a window that no layer uses is accepted: set use_sliding_window to false")
        };
        if let Some(types) = present(json, "layer_types") {
            let types = types.as_array().ok_or_else(|| Failure::data("layer_types is not a list"))?;
            if let Some(other) = types.iter().find(|kind| kind.as_str() != Some("full_attention")) {
                return Err(refusal(format!("layer_types has {other}")));
            }
        }
        if self.windowed {
            return match json.get("sliding_window") {
                None => Ok(self.sliding_window),
                Some(Value::Null) => Ok(None),
                Some(_) => size(json, "sliding_window").map(Some),
            };
        }
        let from_layer = present(json, "max_window_layers").and_then(Value::as_u64).unwrap_or(0);
        let used = flag(json, "use_sliding_window")?.unwrap_or(false)
            && present(json, "layer_types").is_none()
            && present(json, "sliding_window").is_some()
            && from_layer < layers as u64;
        if used { Err(refusal("use_sliding_window is true".to_owned())) } else { Ok(None) }
    }

    /// Whether each layer has rotary positions.
    ///
    /// # Errors
    /// A list that is shorter than the layers, or of anything but 0 and 1.
    pub(crate) fn rope_layers(&self, json: &Value, layers: usize) -> Result<Vec<bool>> {
        if !self.nope {
            return Ok(vec![true; layers]);
        }
        let Some(list) = present(json, "no_rope_layers") else {
            let interval = match present(json, "no_rope_layer_interval") {
                Some(_) => size(json, "no_rope_layer_interval")?,
                None => 4,
            };
            return Ok((1..=layers).map(|layer| layer % interval != 0).collect());
        };
        // 1 stands for a layer with rotary positions, whatever the key's name suggests.
        let of = |value: &Value| value.as_u64().filter(|&one| one <= 1).map(|one| one == 1);
        let read: Option<Vec<bool>> = list.as_array().and_then(|list| list.iter().map(of).collect());
        match read {
            Some(read) if read.len() >= layers => Ok(read[..layers].to_vec()),
            _ => Err(Failure::data(format!("no_rope_layers is not a 0 or 1 for each of {layers} layers"))),
        }
    }
}
