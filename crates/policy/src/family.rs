//! The model families: one entry for each, of what its decoder does differently from Llama's.
//!
//! They share one skeleton (pre-norm, rotary positions, grouped-query attention, a gated MLP). A family that differs by the
//! parts named here is added by its entry and its golden checkpoints; a new part also needs a field in
//! [`crate::decoder`] and whoever computes it. `docs/families.md` has a row for each entry.

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::json::{flag, present, size};

/// Layers that have a sliding window, and the keys that enable it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Windowed {
    Never,
    /// Every layer, where `sliding_window` is set.
    Always,
    /// Every layer, but only with `use_sliding_window`.
    Switched,
    /// With `use_sliding_window`, the layers listed in `layer_types`, else all from `max_window_layers` on.
    Last,
    /// With `use_sliding_window`, the layers listed in `layer_types`, else the layers without rotary
    /// positions.
    Nope,
    /// The layers listed in `layer_types`, else all but every `sliding_window_pattern`-th.
    Pattern,
}

/// The behavior of a family's class in `transformers`.
pub(crate) struct Family {
    /// In `config.json`.
    model_type: &'static str,
    /// For people.
    pub name: &'static str,
    /// Query and key heads are RMS-normalized.
    pub qk_norm: bool,
    /// The query, key and value projections have biases.
    pub attention_bias: bool,
    /// The key `attention_bias` gives all four projections of attention biases.
    pub attention_bias_key: bool,
    /// The key `mlp_bias` enables biases of the MLP.
    pub mlp_bias_key: bool,
    windowed: Windowed,
    /// Some layers have no rotary positions, by `no_rope_layers` or `no_rope_layer_interval`.
    nope: bool,
    /// `partial_rotary_factor` is read.
    pub partial_rotary: bool,
    /// Rotary positions may be scaled by `linear`, `llama3` and `yarn`.
    pub scaled_rope: bool,
    /// Rotary positions may be scaled by `longrope`.
    pub long_rope: bool,
    /// Queries, keys and values are one tensor on disk, and so are gate and up.
    pub fused_projections: bool,
    /// Some layers have experts in place of the MLP.
    pub experts: bool,
    /// Gemma's parts: norm weights stored minus 1, norms also after attention and MLP, GELU instead of SiLU, embeddings
    /// times the square root of their width, `query_pre_attn_scalar`, and rotary positions with another base in layers with a
    /// window.
    pub gemma: bool,
    /// The class's defaults for absent keys: `head_dim` (else hidden / heads), `num_key_value_heads` (else
    /// the number of query heads), `sliding_window`, `tie_word_embeddings`, `rope_theta`, `rms_norm_eps`.
    pub head_dim: Option<usize>,
    pub num_kv_heads: Option<usize>,
    sliding_window: Option<usize>,
    pub tied: bool,
    pub rope_theta: f32,
    pub rms_norm_eps: f32,
}

/// Llama 2, 3 and relatives saved as `LlamaForCausalLM`.
const LLAMA: Family = Family {
    model_type: "llama",
    name: "Llama",
    qk_norm: false,
    attention_bias: false,
    attention_bias_key: true,
    mlp_bias_key: true,
    windowed: Windowed::Never,
    nope: false,
    partial_rotary: false,
    scaled_rope: true,
    long_rope: false,
    fused_projections: false,
    experts: false,
    gemma: false,
    head_dim: None,
    num_kv_heads: None,
    sliding_window: None,
    tied: false,
    rope_theta: 10_000.0,
    rms_norm_eps: 1e-6,
};

const FAMILIES: &[Family] = &[
    Family {
        model_type: "qwen3",
        name: "Qwen3",
        qk_norm: true,
        mlp_bias_key: false,
        windowed: Windowed::Last,
        head_dim: Some(128),
        sliding_window: Some(4096),
        ..LLAMA
    },
    // Also Qwen2.5.
    Family {
        model_type: "qwen2",
        name: "Qwen2",
        attention_bias: true,
        attention_bias_key: false,
        mlp_bias_key: false,
        windowed: Windowed::Last,
        sliding_window: Some(4096),
        ..LLAMA
    },
    LLAMA,
    Family {
        model_type: "mistral",
        name: "Mistral",
        attention_bias_key: false,
        mlp_bias_key: false,
        windowed: Windowed::Always,
        num_kv_heads: Some(8),
        sliding_window: Some(4096),
        ..LLAMA
    },
    Family {
        model_type: "smollm3",
        name: "SmolLM3",
        windowed: Windowed::Nope,
        nope: true,
        num_kv_heads: Some(4),
        tied: true,
        rope_theta: 2_000_000.0,
        ..LLAMA
    },
    // Also Phi-3.5, Phi-4 and Phi-4-mini.
    Family {
        model_type: "phi3",
        name: "Phi3",
        attention_bias_key: false,
        mlp_bias_key: false,
        windowed: Windowed::Always,
        partial_rotary: true,
        scaled_rope: false,
        long_rope: true,
        fused_projections: true,
        rms_norm_eps: 1e-5,
        ..LLAMA
    },
    Family {
        model_type: "gemma3_text",
        name: "Gemma3",
        qk_norm: true,
        mlp_bias_key: false,
        windowed: Windowed::Pattern,
        gemma: true,
        head_dim: Some(256),
        num_kv_heads: Some(4),
        sliding_window: Some(4096),
        tied: true,
        rope_theta: 1_000_000.0,
        ..LLAMA
    },
    Family {
        model_type: "qwen3_moe",
        name: "Qwen3MoE",
        qk_norm: true,
        mlp_bias_key: false,
        windowed: Windowed::Switched,
        experts: true,
        num_kv_heads: Some(4),
        sliding_window: Some(4096),
        ..LLAMA
    },
];

/// Hint for windows that contradict each other.
const WINDOWS: &str =
    "sliding_window, use_sliding_window and layer_types have to agree, as transformers saves them";

impl Family {
    pub(crate) fn of(json: &Value) -> Result<&'static Family> {
        let model_type = present(json, "model_type").and_then(Value::as_str).unwrap_or_default();
        let found = FAMILIES.iter().find(|family| family.model_type == model_type);
        found.ok_or_else(|| match model_type {
            "" => Failure::data("model_type is missing"),
            other => {
                let known: Vec<&str> = FAMILIES.iter().map(|family| family.model_type).collect();
                Failure::data(format!("model_type is {other:?}, which is not implemented"))
                    .hint(format!("families: {}; Qwen2.5 is qwen2, Phi-4 is phi3", known.join(", ")))
            }
        })
    }

    /// Every family: `model_type` in `config.json`, and name.
    pub(crate) fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        FAMILIES.iter().map(|family| (family.model_type, family.name))
    }

    /// Tokens that a query may attend to in each layer, itself included; `rope` says which layers have rotary positions.
    ///
    /// # Errors
    /// Settings that contradict each other: `transformers` would fail, or take one of them silently.
    pub(crate) fn windows(&self, json: &Value, rope: &[bool]) -> Result<Vec<Option<usize>>> {
        let layers = rope.len();
        let window = match json.get("sliding_window") {
            None => self.sliding_window,
            Some(Value::Null) => None,
            Some(_) => Some(size(json, "sliding_window")?),
        };
        let switched = flag(json, "use_sliding_window")?.unwrap_or(false);
        let window = match self.windowed {
            Windowed::Never => None,
            Windowed::Switched | Windowed::Last | Windowed::Nope => window.filter(|_| switched),
            Windowed::Always | Windowed::Pattern => window,
        };
        let listed = layer_types(json, layers)?;
        if let Some(listed) = &listed {
            let some = listed.contains(&true);
            let by_layer = matches!(self.windowed, Windowed::Last | Windowed::Nope | Windowed::Pattern);
            if some && (window.is_none() || !by_layer && listed.contains(&false)) {
                let cause = match window {
                    None => "there is no window",
                    Some(_) => "this family has its window in every layer",
                };
                return Err(Failure::data(format!("layer_types has \"sliding_attention\", but {cause}"))
                    .hint(WINDOWS));
            }
        }
        let inside: Vec<bool> = match (self.windowed, listed) {
            (Windowed::Never, _) => vec![false; layers],
            (Windowed::Always | Windowed::Switched, _) => vec![true; layers],
            (_, Some(listed)) => listed,
            (Windowed::Last, None) => {
                let first = present(json, "max_window_layers").and_then(Value::as_u64).unwrap_or(28);
                (0..layers as u64).map(|layer| layer >= first).collect()
            }
            (Windowed::Nope, None) => rope.iter().map(|rope| !rope).collect(),
            (Windowed::Pattern, None) => {
                let every = match present(json, "sliding_window_pattern") {
                    Some(_) => size(json, "sliding_window_pattern")?,
                    None => 6,
                };
                (1..=layers).map(|layer| layer % every != 0).collect()
            }
        };
        if self.windowed == Windowed::Pattern && window.is_none() && inside.contains(&true) {
            return Err(Failure::data("sliding_window is null, but layers have a window").hint(WINDOWS));
        }
        Ok(inside.into_iter().map(|inside| window.filter(|_| inside)).collect())
    }

    /// Returns true if each layer has rotary positions.
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

/// Returns true if `layer_types` gives each layer a window; `None` where it is absent.
fn layer_types(json: &Value, layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(types) = present(json, "layer_types") else { return Ok(None) };
    let types = types.as_array().ok_or_else(|| Failure::data("layer_types is not a list"))?;
    if types.len() != layers {
        return Err(Failure::data(format!("layer_types has {} entries for {layers} layers", types.len())));
    }
    let of = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(Failure::data(format!("layer_types has {kind}, which is not implemented"))
            .hint("layer types: full_attention, sliding_attention")),
    };
    types.iter().map(of).collect::<Result<_>>().map(Some)
}
