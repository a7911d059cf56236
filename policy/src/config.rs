//! What `config.json` says about a model: its geometry and the variants of the decoder it needs.
//!
//! Reads both spellings that `transformers` has written: `rope_theta` with `rope_scaling`, and `rope_parameters`;
//! `torch_dtype` and `dtype`. Whatever would change the arithmetic and is not implemented is refused by name,
//! because a model that runs with a setting ignored gives wrong numbers, not an error.
//! Left out: families other than Qwen3, Qwen2 and Llama, and everything that only concerns generation
//! (stop tokens live in [`crate::tokenizer`]).

use std::path::Path;

use record::failure::Result;
use serde_json::Value;

use crate::files::read_json;
use crate::setting::{Checked, Refusal, flag, positive, present, size};

/// Architectures whose decoder is implemented. They share one skeleton (pre-RMSNorm, rotary positions,
/// grouped-query attention, SwiGLU) and differ in the flags of [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Query and key heads are RMS-normalised, no biases.
    Qwen3,
    /// Also Qwen2.5: biases on the query, key and value projections.
    Qwen2,
    /// Llama 2, 3 and relatives saved as `LlamaForCausalLM`: neither.
    Llama,
}

/// How rotary frequencies are stretched for contexts longer than the model was first trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Plain rotary embedding (RoFormer, arXiv 2104.09864).
    None,
    /// Every frequency divided by `factor` (arXiv 2306.15595).
    Linear {
        /// Divisor of every frequency.
        factor: f32,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a linear ramp between (arXiv 2407.21783).
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f32,
        /// A wavelength above `original_max_positions / low_freq_factor` is stretched fully.
        low_freq_factor: f32,
        /// A wavelength below `original_max_positions / high_freq_factor` is kept.
        high_freq_factor: f32,
        /// Context length before stretching, in tokens.
        original_max_positions: usize,
    },
}

/// Element types a checkpoint's weights may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// IEEE single.
    F32,
    /// bfloat16.
    BF16,
    /// IEEE half.
    F16,
}

/// The decoder described by a `config.json`. Sizes are element counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Architecture.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer (one of its two halves).
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Elements per head; a multiple of 16, at most 256.
    pub head_dim: usize,
    /// Rows of the embedding and of the output head.
    pub vocab_size: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Stretching of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// The output head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Query and key heads are RMS-normalised before the rotation.
    pub qk_norm: bool,
    /// The query, key and value projections have biases (the output projection never does here).
    pub attention_bias: bool,
    /// Longest context, in tokens.
    pub max_positions: usize,
    /// Type the checkpoint says it was saved in; the safetensors header decides for each tensor.
    pub dtype: DataType,
}

/// Largest head the attention kernels are written for.
pub const LARGEST_HEAD: usize = 256;
/// More layers are a damaged or hostile file: each costs a dozen table entries before a weight is looked at.
const LARGEST_DEPTH: usize = 4096;

/// What runs, for whoever has something else.
const HINT: &str =
    "Qwen3, Qwen2 (also Qwen2.5) and Llama run as published; a setting ignored would give wrong numbers";

impl Config {
    /// Reads `config.json` of a Hugging Face directory.
    ///
    /// # Errors
    /// A missing or unreadable file, a family or setting that is not implemented, sizes that do not fit together.
    pub fn load(directory: &Path) -> Result<Config> {
        let path = directory.join("config.json");
        let value = read_json(&path)?;
        Config::from_json(&value).map_err(|refusal| refusal.into_failure(&path, HINT))
    }

    /// The same from a value already parsed, for `policy init --config`.
    ///
    /// # Errors
    /// As [`Config::load`]; `place` is named in the message.
    pub fn from_value(value: &Value, place: &Path) -> Result<Config> {
        Config::from_json(value).map_err(|refusal| refusal.into_failure(place, HINT))
    }

    fn from_json(json: &Value) -> std::result::Result<Config, Refusal> {
        let family = family(json)?;
        refuse_unsupported(json, family)?;

        let hidden_size = size(json, "hidden_size")?;
        let num_layers = size(json, "num_hidden_layers")?;
        if num_layers > LARGEST_DEPTH {
            return Err(Refusal::new(format!(
                "num_hidden_layers is {num_layers}, more than {LARGEST_DEPTH}"
            )));
        }
        let num_heads = size(json, "num_attention_heads")?;
        let num_kv_heads = match present(json, "num_key_value_heads") {
            Some(_) => size(json, "num_key_value_heads")?,
            None => num_heads,
        };
        let head_dim = match present(json, "head_dim") {
            Some(_) => size(json, "head_dim")?,
            // Qwen3 configurations written without the key mean the class default, which is not hidden / heads.
            None if family == Family::Qwen3 => 128,
            None => hidden_size / num_heads,
        };
        if num_heads % num_kv_heads != 0 {
            return Err(Refusal::new(format!(
                "num_attention_heads is {num_heads}, which is not a multiple of num_key_value_heads {num_kv_heads}"
            )));
        }
        if head_dim == 0 || head_dim % 16 != 0 || head_dim > LARGEST_HEAD {
            return Err(Refusal::new(format!(
                "head_dim is {head_dim}, which the attention kernels cannot run"
            ))
            .hint(format!("head sizes are multiples of 16 up to {LARGEST_HEAD}")));
        }
        refuse_sliding_window(json, num_layers)?;

        let (rope_theta, rope_scaling) = rope(json)?;
        Ok(Config {
            family,
            hidden_size,
            intermediate_size: size(json, "intermediate_size")?,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size: size(json, "vocab_size")?,
            rms_norm_eps: match present(json, "rms_norm_eps") {
                Some(_) => positive(json, "rms_norm_eps")?,
                None => 1e-6,
            },
            rope_theta,
            rope_scaling,
            tie_word_embeddings: flag(json, "tie_word_embeddings")?.unwrap_or(false),
            qk_norm: family == Family::Qwen3,
            attention_bias: family == Family::Qwen2,
            max_positions: size(json, "max_position_embeddings")?,
            dtype: data_type(json)?,
        })
    }

    /// Rotary frequencies, `head_dim / 2` of them, in radians a position: pair `i` (elements `i` and
    /// `i + head_dim / 2` of a head) turns by `position * frequency[i]`. `theta^(-2i / head_dim)` (RoFormer,
    /// arXiv 2104.09864, eq. 15) after [`RopeScaling`], with the operations of `transformers` in their order.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let half = self.head_dim / 2;
        let plain = (0..half).map(|pair| {
            let exponent = (2 * pair) as f32 / self.head_dim as f32;
            1.0 / (f64::from(self.rope_theta).powf(f64::from(exponent)) as f32)
        });
        match self.rope_scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                let original = original_max_positions as f32;
                let longest_kept = original / high_freq_factor;
                let shortest_stretched = original / low_freq_factor;
                plain
                    .map(|frequency| {
                        let wavelength = 2.0 * std::f32::consts::PI / frequency;
                        if wavelength < longest_kept {
                            frequency
                        } else if wavelength > shortest_stretched {
                            frequency / factor
                        } else {
                            let smooth = (original / wavelength - low_freq_factor)
                                / (high_freq_factor - low_freq_factor);
                            (1.0 - smooth) * frequency / factor + smooth * frequency
                        }
                    })
                    .collect()
            }
        }
    }

    /// Names and shapes of every tensor of the model, Hugging Face's names, in the order of the computation.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let hidden = self.hidden_size;
        let queries = self.num_heads * self.head_dim;
        let keys = self.num_kv_heads * self.head_dim;
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, hidden])];
        for layer in 0..self.num_layers {
            let mut add =
                |name: &str, shape: Vec<usize>| all.push((format!("model.layers.{layer}.{name}"), shape));
            add("input_layernorm.weight", vec![hidden]);
            for (projection, rows) in [("q", queries), ("k", keys), ("v", keys)] {
                add(&format!("self_attn.{projection}_proj.weight"), vec![rows, hidden]);
                if self.attention_bias {
                    add(&format!("self_attn.{projection}_proj.bias"), vec![rows]);
                }
            }
            if self.qk_norm {
                add("self_attn.q_norm.weight", vec![self.head_dim]);
                add("self_attn.k_norm.weight", vec![self.head_dim]);
            }
            add("self_attn.o_proj.weight", vec![hidden, queries]);
            add("post_attention_layernorm.weight", vec![hidden]);
            add("mlp.gate_proj.weight", vec![self.intermediate_size, hidden]);
            add("mlp.up_proj.weight", vec![self.intermediate_size, hidden]);
            add("mlp.down_proj.weight", vec![hidden, self.intermediate_size]);
        }
        all.push(("model.norm.weight".to_owned(), vec![hidden]));
        if !self.tie_word_embeddings {
            all.push(("lm_head.weight".to_owned(), vec![self.vocab_size, hidden]));
        }
        all
    }

    /// Name of the matrix that turns hidden states into logits.
    pub fn head_name(&self) -> &'static str {
        if self.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" }
    }
}

fn family(json: &Value) -> Checked<Family> {
    let model_type = present(json, "model_type").and_then(Value::as_str).unwrap_or_default();
    match model_type {
        "qwen3" => Ok(Family::Qwen3),
        "qwen2" => Ok(Family::Qwen2),
        "llama" => Ok(Family::Llama),
        "" => Err(Refusal::new("model_type is missing".to_owned())),
        other => Err(Refusal::new(format!("model_type is {other:?}, which is not implemented"))
            .hint("families: qwen3, qwen2 (also Qwen2.5), llama".to_owned())),
    }
}

fn refuse_unsupported(json: &Value, family: Family) -> Checked<()> {
    if let Some(activation) = present(json, "hidden_act").filter(|value| value.as_str() != Some("silu")) {
        return Err(Refusal::new(format!("hidden_act is {activation}; only \"silu\" is implemented")));
    }
    // In Llama and Qwen3 the key adds a bias to the output projection as well; no published model of them sets it.
    for key in ["attention_bias", "mlp_bias"] {
        if family != Family::Qwen2 && flag(json, key)?.unwrap_or(false) {
            return Err(Refusal::new(format!("{key} is true, which is not implemented for this family")));
        }
    }
    if let Some(quantization) = present(json, "quantization_config") {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed");
        return Err(Refusal::new(format!("the weights are quantized ({method})"))
            .hint("use the unquantized checkpoint: training needs real-valued weights".to_owned()));
    }
    if let Some(ratio) = present(json, "partial_rotary_factor").filter(|value| value.as_f64() != Some(1.0)) {
        return Err(Refusal::new(format!("partial_rotary_factor is {ratio}; only 1.0 is implemented")));
    }
    Ok(())
}

fn refuse_sliding_window(json: &Value, num_layers: usize) -> Checked<()> {
    let refusal = |what: String| {
        Refusal::new(format!("{what}: sliding-window attention is not implemented"))
            .hint("a window that no layer uses is accepted: set use_sliding_window to false".to_owned())
    };
    if let Some(types) = present(json, "layer_types") {
        let types = types.as_array().ok_or_else(|| Refusal::new("layer_types is not a list".to_owned()))?;
        if let Some(other) = types.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            return Err(refusal(format!("layer_types has {other}")));
        }
        return Ok(());
    }
    let window = present(json, "sliding_window");
    let from_layer = present(json, "max_window_layers").and_then(Value::as_u64).unwrap_or(0);
    if flag(json, "use_sliding_window")?.unwrap_or(false)
        && window.is_some()
        && from_layer < num_layers as u64
    {
        return Err(refusal("use_sliding_window is true".to_owned()));
    }
    Ok(())
}

/// Base and stretching, from `rope_parameters` (new) or `rope_theta` and `rope_scaling` (old).
fn rope(json: &Value) -> Checked<(f32, RopeScaling)> {
    let parameters = present(json, "rope_parameters").or_else(|| present(json, "rope_scaling"));
    let empty = Value::Object(serde_json::Map::new());
    let parameters = parameters.unwrap_or(&empty);
    if !parameters.is_object() {
        return Err(Refusal::new(format!("the rope settings are {parameters}, not an object")));
    }
    if let Some((kind, _)) = parameters.as_object().into_iter().flatten().find(|(_, value)| value.is_object())
    {
        return Err(Refusal::new(format!(
            "the rope settings differ between layers ({kind}), which is not implemented"
        )));
    }
    let theta = match (present(parameters, "rope_theta"), present(json, "rope_theta")) {
        (Some(_), _) => positive(parameters, "rope_theta")?,
        (None, Some(_)) => positive(json, "rope_theta")?,
        (None, None) => 10_000.0,
    };
    if let Some(ratio) =
        present(parameters, "partial_rotary_factor").filter(|value| value.as_f64() != Some(1.0))
    {
        return Err(Refusal::new(format!("partial_rotary_factor is {ratio}; only 1.0 is implemented")));
    }
    let kind = present(parameters, "rope_type").or_else(|| present(parameters, "type"));
    let scaling = match kind.map(|kind| kind.as_str().unwrap_or_default()) {
        None if present(parameters, "factor").is_some() => {
            return Err(Refusal::new("the rope settings have a factor but no rope_type".to_owned()));
        }
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: positive(parameters, "factor")? },
        Some("llama3") => {
            let low = positive(parameters, "low_freq_factor")?;
            let high = positive(parameters, "high_freq_factor")?;
            if high <= low {
                return Err(Refusal::new(format!(
                    "high_freq_factor {high} is not above low_freq_factor {low} in the rope settings"
                )));
            }
            RopeScaling::Llama3 {
                factor: positive(parameters, "factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_positions: size(parameters, "original_max_position_embeddings")?,
            }
        }
        Some(other) => {
            return Err(Refusal::new(format!("rope_type is {other:?}, which is not implemented"))
                .hint("rope types: default, linear, llama3".to_owned()));
        }
    };
    Ok((theta, scaling))
}

fn data_type(json: &Value) -> Checked<DataType> {
    let Some(value) = present(json, "dtype").or_else(|| present(json, "torch_dtype")) else {
        return Ok(DataType::F32);
    };
    match value.as_str().map(|name| name.trim_start_matches("torch.")) {
        Some("float32") => Ok(DataType::F32),
        Some("bfloat16") => Ok(DataType::BF16),
        Some("float16") => Ok(DataType::F16),
        _ => Err(Refusal::new(format!("dtype is {value}; float32, bfloat16 and float16 are implemented"))),
    }
}
