//! `config.json`: a model's sizes and the variants of the decoder it needs.
//!
//! Reads both spellings that `transformers` has used: `rope_theta` with `rope_scaling`, and `rope_parameters`; `torch_dtype`
//! and `dtype`. Settings that would change the arithmetic and are not implemented are refused by name: ignoring one gives
//! wrong numbers, not an error. Left out: generation settings (stop tokens are in [`crate::tokenizer`]).

use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::decoder::{Decoder, Tensor};
use crate::family::Family;
use crate::header::ElementType;
use crate::json::{flag, in_file, positive, present, read_json, size};

/// RoPE scaling, for contexts longer than those of pretraining.
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
        /// A wavelength above `original_max_positions / low_freq_factor` is scaled fully.
        low_freq_factor: f32,
        /// A wavelength below `original_max_positions / high_freq_factor` is kept.
        high_freq_factor: f32,
        /// Context length of pretraining, in tokens.
        original_max_positions: usize,
    },
}

/// The decoder described by a `config.json`. Sizes are element counts; [`Config::decoder`] is the table of its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of the model family, such as `Qwen3`.
    pub family: &'static str,
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
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// The output head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Query and key heads are RMS-normalized before the rotation.
    pub qk_norm: bool,
    /// The query, key and value projections have biases (the output projection never does here).
    pub attention_bias: bool,
    /// Whether each layer has rotary positions, `num_layers` of them.
    pub rope_layers: Vec<bool>,
    /// Longest context, in tokens; with [`Config::window`] no longer than that.
    pub max_positions: usize,
    /// A sliding window that is shorter than the positions the model was trained on, in tokens. Windowed attention is not
    /// implemented: up to this length it is plain causal attention, and longer sequences are refused.
    pub window: Option<usize>,
    /// Type the checkpoint says it was saved in; the safetensors header decides for each tensor.
    pub dtype: ElementType,
}

/// Largest head the attention kernels are written for.
pub const LARGEST_HEAD: usize = 256;
/// More layers mean a damaged or hostile file: each costs a dozen table entries before a weight is read.
const LARGEST_DEPTH: usize = 4096;

/// Hint for a setting that is not implemented.
const HINT: &str = "ignoring a setting would give wrong numbers; models run as their families publish them";

impl Config {
    /// Reads `config.json` of a Hugging Face directory.
    ///
    /// # Errors
    /// A missing or unreadable file, a family or setting that is not implemented, sizes that do not fit together.
    pub fn load(directory: &Path) -> Result<Config> {
        let path = directory.join("config.json");
        Config::from_value(&read_json(&path)?, &path)
    }

    /// The same from a value already parsed, for `policy init --config`.
    ///
    /// # Errors
    /// As [`Config::load`]; `path` is named in the message.
    pub fn from_value(value: &Value, path: &Path) -> Result<Config> {
        Config::from_json(value).map_err(|failure| in_file(failure, path, HINT))
    }

    fn from_json(json: &Value) -> Result<Config> {
        let family = Family::of(json)?;
        refuse_unsupported(json, family)?;

        let hidden_size = size(json, "hidden_size")?;
        let num_layers = size(json, "num_hidden_layers")?;
        if num_layers > LARGEST_DEPTH {
            return Err(Failure::data(format!(
                "num_hidden_layers is {num_layers}, more than {LARGEST_DEPTH}"
            )));
        }
        let num_heads = size(json, "num_attention_heads")?;
        let num_kv_heads = match json.get("num_key_value_heads") {
            Some(Value::Null) => num_heads,
            Some(_) => size(json, "num_key_value_heads")?,
            None => family.num_kv_heads.unwrap_or(num_heads),
        };
        let head_dim = match present(json, "head_dim") {
            Some(_) => size(json, "head_dim")?,
            None => family.head_dim.unwrap_or(hidden_size / num_heads),
        };
        if num_heads % num_kv_heads != 0 {
            return Err(Failure::data(format!(
                "num_attention_heads is {num_heads}, which is not a multiple of num_key_value_heads {num_kv_heads}"
            )));
        }
        if head_dim == 0 || head_dim % 16 != 0 || head_dim > LARGEST_HEAD {
            return Err(Failure::data(format!(
                "head_dim is {head_dim}, which the attention kernels cannot run"
            ))
            .hint(format!("head sizes are multiples of 16 up to {LARGEST_HEAD}")));
        }
        let positions = size(json, "max_position_embeddings")?;
        let window = family.window(json, num_layers)?.filter(|&window| window < positions);
        let (rope_theta, rope_scaling) = rope(json, family.rope_theta)?;
        Ok(Config {
            family: family.name,
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
            tie_word_embeddings: flag(json, "tie_word_embeddings")?.unwrap_or(family.tied),
            qk_norm: family.qk_norm,
            attention_bias: family.attention_bias,
            rope_layers: family.rope_layers(json, num_layers)?,
            max_positions: window.unwrap_or(positions),
            window,
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

    /// Width of all query heads.
    pub fn query_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of all key (or value) heads.
    pub fn key_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// The decoder as a table of layers and tensors.
    pub fn decoder(&self) -> Decoder {
        Decoder::new(self)
    }

    /// Every tensor of the model, in the order of the computation.
    pub fn tensors(&self) -> Vec<Tensor> {
        self.decoder().tensors().cloned().collect()
    }

    /// Name of the matrix that turns hidden states into logits.
    pub fn head_name(&self) -> &'static str {
        if self.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" }
    }
}

fn refuse_unsupported(json: &Value, family: &Family) -> Result<()> {
    if let Some(activation) = present(json, "hidden_act").filter(|value| value.as_str() != Some("silu")) {
        return Err(Failure::data(format!("hidden_act is {activation}; only \"silu\" is implemented")));
    }
    // The key also adds a bias to the output projection, and no published model sets it; Qwen2 does not know it.
    for key in ["attention_bias", "mlp_bias"] {
        if !family.attention_bias && flag(json, key)?.unwrap_or(false) {
            return Err(Failure::data(format!("{key} is true, which is not implemented for this family")));
        }
    }
    if let Some(quantization) = present(json, "quantization_config") {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed");
        return Err(Failure::data(format!("the weights are quantized ({method})"))
            .hint("use the unquantized checkpoint: training needs real-valued weights"));
    }
    full_rotation(json)
}

fn full_rotation(json: &Value) -> Result<()> {
    match present(json, "partial_rotary_factor").filter(|value| value.as_f64() != Some(1.0)) {
        None => Ok(()),
        Some(ratio) => {
            Err(Failure::data(format!("partial_rotary_factor is {ratio}; only 1.0 is implemented")))
        }
    }
}

/// Base and scaling, from `rope_parameters` (new) or `rope_theta` and `rope_scaling` (old).
fn rope(json: &Value, default_theta: f32) -> Result<(f32, RopeScaling)> {
    let parameters = present(json, "rope_parameters").or_else(|| present(json, "rope_scaling"));
    let empty = Value::Object(serde_json::Map::new());
    let parameters = parameters.unwrap_or(&empty);
    if !parameters.is_object() {
        return Err(Failure::data(format!("the rope settings are {parameters}, not an object")));
    }
    if let Some((kind, _)) = parameters.as_object().into_iter().flatten().find(|(_, value)| value.is_object())
    {
        return Err(Failure::data(format!(
            "the rope settings differ between layers ({kind}), which is not implemented"
        )));
    }
    let theta = match (present(parameters, "rope_theta"), present(json, "rope_theta")) {
        (Some(_), _) => positive(parameters, "rope_theta")?,
        (None, Some(_)) => positive(json, "rope_theta")?,
        (None, None) => default_theta,
    };
    full_rotation(parameters)?;
    let kind = present(parameters, "rope_type").or_else(|| present(parameters, "type"));
    let scaling = match kind.map(|kind| kind.as_str().unwrap_or_default()) {
        None if present(parameters, "factor").is_some() => {
            return Err(Failure::data("the rope settings have a factor but no rope_type"));
        }
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: positive(parameters, "factor")? },
        Some("llama3") => {
            let low = positive(parameters, "low_freq_factor")?;
            let high = positive(parameters, "high_freq_factor")?;
            if high <= low {
                return Err(Failure::data(format!(
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
            return Err(Failure::data(format!("rope_type is {other:?}, which is not implemented"))
                .hint("rope types: default, linear, llama3"));
        }
    };
    Ok((theta, scaling))
}

fn data_type(json: &Value) -> Result<ElementType> {
    let Some(value) = present(json, "dtype").or_else(|| present(json, "torch_dtype")) else {
        return Ok(ElementType::F32);
    };
    match value.as_str().map(|name| name.trim_start_matches("torch.")) {
        Some("float32") => Ok(ElementType::F32),
        Some("bfloat16") => Ok(ElementType::BF16),
        Some("float16") => Ok(ElementType::F16),
        _ => Err(Failure::data(format!("dtype is {value}; float32, bfloat16 and float16 are implemented"))),
    }
}
