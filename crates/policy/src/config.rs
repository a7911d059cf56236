//! `config.json`: a model's sizes and the variants of the decoder it needs.
//!
//! Reads both spellings that `transformers` has used, as `torch_dtype` and `dtype`. Rotary positions are in [`crate::rope`]. Settings that would change the arithmetic and are not implemented are refused by name: ignoring one gives
//! wrong numbers, not an error. Left out: generation settings (stop tokens are in [`crate::tokenizer`]).

use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::experts::Experts;
use crate::family::Family;
use crate::header::ElementType;
use crate::json::{flag, in_file, positive, present, read_json, size};
use crate::rope::{self, Rope, RopeScaling};

/// A decoder's parts beyond Llama's. The default is Llama's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variant {
    /// Tokens that a query may attend to in each layer, itself included (a sliding window); empty where no layer has one.
    pub windows: Vec<Option<usize>>,
    /// Base of the rotary frequencies in layers with a window, which are not scaled; `None`: as in the others.
    pub local_rope_theta: Option<f32>,
    /// How many elements of a head are rotated, its first ones; `None`: all.
    pub rotary_dim: Option<usize>,
    /// The output projection of attention has a bias.
    pub output_bias: bool,
    /// The projections of the MLP have biases.
    pub mlp_bias: bool,
    /// On disk, queries, keys and values are one tensor, and so are gate and up.
    pub fused_projections: bool,
    /// Attention's and the MLP's outputs are RMS-normalized before they join the residual stream.
    pub post_norms: bool,
    /// Weights of norms are stored minus 1.
    pub norms_minus_one: bool,
    /// The MLP's activation is GELU by its tanh formula (GEGLU, arXiv 2002.05202), not SiLU.
    pub gelu: bool,
    /// Experts in some layers.
    pub experts: Option<Experts>,
    /// Embeddings are multiplied by it.
    pub embedding_scale: Option<f32>,
    /// Attention scores are multiplied by it; `None`: `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f32>,
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
    pub num_layers: usize,
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
    /// The query, key and value projections have biases.
    pub attention_bias: bool,
    /// True if each layer has rotary positions, `num_layers` of them.
    pub rope_layers: Vec<bool>,
    /// Longest context, in tokens.
    pub max_positions: usize,
    /// Further differences from Llama.
    pub variant: Variant,
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

    /// [`Config::load`] for a value already parsed, for `policy init --config`.
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
        let rope_layers = family.rope_layers(json, num_layers)?;
        let windows = family.windows(json, &rope_layers)?;
        let rope = rope::Settings::read(json, family, size(json, "max_position_embeddings")?, head_dim)?;
        let attention_bias = family.attention_bias_key && flag(json, "attention_bias")?.unwrap_or(false);
        let variant = Variant {
            windows: if windows.iter().any(Option::is_some) { windows } else { Vec::new() },
            local_rope_theta: rope.local_theta,
            rotary_dim: rope.rotary_dim,
            output_bias: attention_bias,
            mlp_bias: family.mlp_bias_key && flag(json, "mlp_bias")?.unwrap_or(false),
            fused_projections: family.fused_projections,
            experts: if family.experts { Experts::read(json, num_layers)? } else { None },
            ..gemma_parts(json, family, hidden_size)?
        };
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
                None => family.rms_norm_eps,
            },
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            tie_word_embeddings: flag(json, "tie_word_embeddings")?.unwrap_or(family.tied),
            qk_norm: family.qk_norm,
            attention_bias: family.attention_bias || attention_bias,
            rope_layers,
            max_positions: rope.positions,
            variant,
            dtype: data_type(json)?,
        })
    }

    /// Rotary frequencies in radians per position, one for each pair of rotated elements (in most families
    /// all elements of a head). Pair `i` (elements `i` and `i + half` of a head) turns by `position *
    /// frequency[i]`.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        self.rope_scaling.scale(self.plain_frequencies(self.rope_theta))
    }

    fn plain_frequencies(&self, theta: f32) -> impl Iterator<Item = f32> {
        rope::frequencies(theta, self.variant.rotary_dim.unwrap_or(self.head_dim))
    }

    /// The kinds of rotary positions in the model, at least one.
    pub fn ropes(&self) -> Vec<Rope> {
        let global = Rope {
            frequencies: self.inverse_frequencies(),
            attention_factor: self.rope_scaling.attention_factor(),
        };
        let local =
            |theta| Rope { frequencies: self.plain_frequencies(theta).collect(), attention_factor: 1.0 };
        [global].into_iter().chain(self.variant.local_rope_theta.map(local)).collect()
    }

    /// Index of a layer's settings in [`Config::ropes`]; `None` if it has no rotary positions.
    pub fn rope(&self, layer: usize) -> Option<usize> {
        let local = self.variant.local_rope_theta.is_some() && self.window(layer).is_some();
        self.rope_layers[layer].then_some(usize::from(local))
    }

    /// Tokens that a query of a layer may attend to, itself included, where a window limits them.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.variant.windows.get(layer).copied().flatten()
    }

    /// The shortest window of any layer that is shorter than the positions.
    pub fn shortest_window(&self) -> Option<usize> {
        let windows = self.variant.windows.iter().flatten().copied();
        windows.min().filter(|&window| window < self.max_positions)
    }

    /// The experts that a layer has in place of its MLP.
    pub fn experts(&self, layer: usize) -> Option<&Experts> {
        self.variant.experts.as_ref().filter(|experts| experts.layers[layer])
    }

    /// Returns true if any layer has an MLP.
    pub fn has_mlp(&self) -> bool {
        (0..self.num_layers).any(|layer| self.experts(layer).is_none())
    }

    /// Factor of attention scores.
    pub fn attention_scale(&self) -> f32 {
        self.variant.attention_scale.unwrap_or(1.0 / (self.head_dim as f32).sqrt())
    }

    /// Width of all query heads.
    pub fn query_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of all key (or value) heads.
    pub fn key_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Name of the matrix that turns hidden states into logits.
    pub fn head_name(&self) -> &'static str {
        if self.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" }
    }
}

/// Every family that can be loaded: its `model_type`, and its name as in [`Config::family`].
pub fn families() -> Vec<(&'static str, &'static str)> {
    Family::all().collect()
}

fn refuse_unsupported(json: &Value, family: &Family) -> Result<()> {
    let (activations, wanted) = match family.gemma {
        true => (&["hidden_activation", "hidden_act"][..], "gelu_pytorch_tanh"),
        false => (&["hidden_act"][..], "silu"),
    };
    for key in activations {
        if let Some(activation) = present(json, key).filter(|value| value.as_str() != Some(wanted)) {
            return Err(Failure::data(format!("{key} is {activation}; only {wanted:?} is implemented")));
        }
    }
    // Qwen2 has its biases whatever the key says, and does not know it.
    let unknown = [
        ("attention_bias", family.attention_bias_key || family.attention_bias),
        ("mlp_bias", family.mlp_bias_key),
    ];
    for (key, known) in unknown {
        if !known && flag(json, key)?.unwrap_or(false) {
            return Err(Failure::data(format!("{key} is true, which is not implemented for this family")));
        }
    }
    for key in ["final_logit_softcapping", "attn_logit_softcapping"] {
        if let Some(cap) = present(json, key) {
            return Err(Failure::data(format!("{key} is {cap}, which is not implemented")));
        }
    }
    if flag(json, "use_bidirectional_attention")?.unwrap_or(false) {
        return Err(Failure::data("use_bidirectional_attention is true, which is not implemented"));
    }
    if let Some(quantization) = present(json, "quantization_config") {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed");
        return Err(Failure::data(format!("the weights are quantized ({method})"))
            .hint("use the unquantized checkpoint: training needs real-valued weights"));
    }
    Ok(())
}

/// Gemma's additions to Llama; empty for other families.
fn gemma_parts(json: &Value, family: &Family, hidden_size: usize) -> Result<Variant> {
    if !family.gemma {
        return Ok(Variant::default());
    }
    let scalar = match present(json, "query_pre_attn_scalar") {
        Some(_) => positive(json, "query_pre_attn_scalar")?,
        None => 256.0,
    };
    Ok(Variant {
        post_norms: true,
        norms_minus_one: true,
        gelu: true,
        embedding_scale: Some((hidden_size as f64).sqrt() as f32),
        attention_scale: Some(f64::from(scalar).powf(-0.5) as f32),
        ..Variant::default()
    })
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
