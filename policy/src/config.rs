//! `config.json`: a model's sizes and the variants of the decoder it needs.
//!
//! Reads both spellings that `transformers` has used: `rope_theta` with `rope_scaling`, and `rope_parameters`; `torch_dtype`
//! and `dtype`. Settings that would change the arithmetic and are not implemented are refused by name: ignoring one gives
//! wrong numbers, not an error. Left out: generation settings (stop tokens are in [`crate::tokenizer`]).

use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::decoder::{Decoder, Target, Tensor};
use crate::experts::Experts;
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
    /// YaRN: a ramp between kept and divided frequencies, and cosines and sines times a factor (arXiv 2309.00071).
    Yarn {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Factor of every cosine and sine.
        attention_factor: f32,
        /// Pairs from the first to the second are between kept and divided.
        ramp: [f32; 2],
    },
}

/// Rotary positions of some layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians a position of each pair, as [`Config::inverse_frequencies`]. Pair `i` is elements `i` and
    /// `i + frequencies.len()` of a head; elements beyond the pairs are not rotated.
    pub frequencies: Vec<f32>,
    /// Factor of every cosine and sine.
    pub attention_factor: f32,
}

/// What a decoder has beyond Llama's parts. The default is Llama's.
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
    /// The query, key and value projections have biases.
    pub attention_bias: bool,
    /// Whether each layer has rotary positions, `num_layers` of them.
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
        let rope_layers = family.rope_layers(json, num_layers)?;
        let windows = family.windows(json, &rope_layers)?;
        let (rope, local) = rope_settings(json, family)?;
        let rotary_dim = rotary_dim(json, rope, family, head_dim)?;
        let (rope_theta, rope_scaling) =
            rope_of(json, rope, family, (positions, rotary_dim.unwrap_or(head_dim)))?;
        let attention_bias = family.attention_bias_key && flag(json, "attention_bias")?.unwrap_or(false);
        let variant = Variant {
            windows: if windows.iter().any(Option::is_some) { windows } else { Vec::new() },
            local_rope_theta: local.map(|local| local_theta(json, local)).transpose()?,
            rotary_dim,
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
            rope_theta,
            rope_scaling,
            tie_word_embeddings: flag(json, "tie_word_embeddings")?.unwrap_or(family.tied),
            qk_norm: family.qk_norm,
            attention_bias: family.attention_bias || attention_bias,
            rope_layers,
            max_positions: positions,
            variant,
            dtype: data_type(json)?,
        })
    }

    /// Rotary frequencies, half as many as elements of a head are rotated (all, for most families), in radians a position:
    /// pair `i` (elements `i` and `i + half` of a head) turns by `position * frequency[i]`. `theta^(-2i / rotated)` (RoFormer,
    /// arXiv 2104.09864, eq. 15) after [`RopeScaling`], with the operations of `transformers` in their order.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let plain = self.plain_frequencies(self.rope_theta);
        match self.rope_scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::Yarn { factor, ramp: [low, high], .. } => plain
                .enumerate()
                .map(|(pair, frequency)| {
                    let divided = ((pair as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    let kept = 1.0 - divided;
                    1.0 / (factor * (1.0 / frequency)) * (1.0 - kept) + frequency * kept
                })
                .collect(),
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

    fn plain_frequencies(&self, theta: f32) -> impl Iterator<Item = f32> {
        let rotated = self.variant.rotary_dim.unwrap_or(self.head_dim);
        (0..rotated / 2).map(move |pair| {
            let exponent = (2 * pair) as f32 / rotated as f32;
            1.0 / (f64::from(theta).powf(f64::from(exponent)) as f32)
        })
    }

    /// The kinds of rotary positions in the model, at least one.
    pub fn ropes(&self) -> Vec<Rope> {
        let attention_factor = match self.rope_scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        let local = self.variant.local_rope_theta;
        let local = local.map(|theta| (self.plain_frequencies(theta).collect(), 1.0));
        let ropes = [(self.inverse_frequencies(), attention_factor)].into_iter().chain(local);
        ropes.map(|(frequencies, attention_factor)| Rope { frequencies, attention_factor }).collect()
    }

    /// Which of [`Config::ropes`] a layer has; `None` where it has no rotary positions.
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

    /// Whether any layer has an MLP.
    pub fn has_mlp(&self) -> bool {
        (0..self.num_layers).any(|layer| self.experts(layer).is_none())
    }

    /// Factor of attention scores.
    pub fn attention_scale(&self) -> f32 {
        self.variant.attention_scale.unwrap_or(1.0 / (self.head_dim as f32).sqrt())
    }

    /// What the kernels for devices do not compute, if the decoder has it.
    pub fn unsupported_on_devices(&self) -> Option<&'static str> {
        let variant = &self.variant;
        let scaled = matches!(self.rope_scaling, RopeScaling::Yarn { attention_factor, .. } if attention_factor != 1.0);
        let parts = [
            (variant.gelu || variant.post_norms || variant.norms_minus_one, "Gemma's norms and activation"),
            (variant.experts.is_some(), "experts"),
            (variant.embedding_scale.is_some(), "scaled embeddings"),
            (variant.attention_scale.is_some(), "query_pre_attn_scalar"),
            (variant.local_rope_theta.is_some(), "layers with different rotary positions"),
            (variant.rotary_dim.is_some(), "partial rotary positions"),
            (variant.output_bias, "a bias of the output projection"),
            (variant.mlp_bias, "biases in the MLP"),
            (scaled && self.rope_layers.contains(&false), "yarn beside layers without rotary positions"),
        ];
        parts.into_iter().find(|(has, _)| *has).map(|(_, what)| what)
    }

    /// The same decoder for a device, whose kernels have no windows: positions end where the shortest one does.
    ///
    /// # Errors
    /// 2: it has parts that the kernels do not compute.
    pub fn for_device(self) -> Result<Config> {
        if let Some(what) = self.unsupported_on_devices() {
            return Err(Failure::usage(format!(
                "this policy cannot run on a device: {} has {what}, which the kernels do not compute",
                self.family
            ))
            .hint("use --device cpu"));
        }
        Ok(Config { max_positions: self.shortest_window().unwrap_or(self.max_positions), ..self })
    }

    /// The modules that an adapter may target, in the order of the computation.
    pub fn targets(&self) -> &'static [Target] {
        match &self.variant {
            Variant { fused_projections: true, .. } => &Target::FUSED,
            // PEFT adapts experts in another way.
            Variant { experts: Some(_), .. } => &Target::ATTENTION,
            _ => &Target::ALL,
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

/// What Gemma has beyond Llama; nothing for other families.
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

/// The elements of a head that are rotated, if not all.
fn rotary_dim(json: &Value, rope: Option<&Value>, family: &Family, head_dim: usize) -> Result<Option<usize>> {
    let key = "partial_rotary_factor";
    let ratio = rope.and_then(|rope| present(rope, key)).or_else(|| present(json, key));
    let Some(ratio) = ratio.filter(|value| value.as_f64() != Some(1.0)) else { return Ok(None) };
    if !family.partial_rotary {
        return Err(Failure::data(format!("{key} is {ratio}; this family rotates whole heads")));
    }
    let rotated = ratio.as_f64().map(|ratio| (head_dim as f64 * ratio) as usize);
    match rotated.filter(|rotated| (2..=head_dim).contains(rotated) && rotated % 2 == 0) {
        Some(rotated) => Ok(Some(rotated)),
        None => Err(Failure::data(format!("{key} is {ratio}, which is no even part of {head_dim} elements"))),
    }
}

/// The object with the rotary settings, from `rope_parameters` (new) or `rope_scaling` (old), and for Gemma also that of layers
/// with a window.
fn rope_settings<'a>(
    json: &'a Value,
    family: &Family,
) -> Result<(Option<&'a Value>, Option<Option<&'a Value>>)> {
    let found = present(json, "rope_parameters").or_else(|| present(json, "rope_scaling"));
    let Some(found) = found else { return Ok((None, family.gemma.then_some(None))) };
    let object = found
        .as_object()
        .ok_or_else(|| Failure::data(format!("the rope settings are {found}, not an object")))?;
    let Some((kind, _)) = object.iter().find(|(_, value)| value.is_object()) else {
        return Ok((Some(found), family.gemma.then_some(None)));
    };
    if !family.gemma {
        return Err(Failure::data(format!(
            "the rope settings differ between layers ({kind}), which is not implemented"
        )));
    }
    Ok((present(found, "full_attention"), Some(present(found, "sliding_attention"))))
}

/// Base of the rotary frequencies in Gemma's layers with a window.
fn local_theta(json: &Value, settings: Option<&Value>) -> Result<f32> {
    if let Some(settings) = settings {
        let kind = present(settings, "rope_type").or_else(|| present(settings, "type"));
        if let Some(kind) = kind.filter(|kind| kind.as_str() != Some("default")) {
            return Err(Failure::data(format!("rope_type of sliding_attention is {kind}, not \"default\"")));
        }
        if present(settings, "rope_theta").is_some() {
            return positive(settings, "rope_theta");
        }
    }
    match present(json, "rope_local_base_freq") {
        Some(_) => positive(json, "rope_local_base_freq"),
        None => Ok(10_000.0),
    }
}

/// Base and scaling of the rotary frequencies; the positions and the rotated elements are YaRN's business.
fn rope_of(
    json: &Value,
    parameters: Option<&Value>,
    family: &Family,
    (positions, rotated): (usize, usize),
) -> Result<(f32, RopeScaling)> {
    let empty = Value::Object(serde_json::Map::new());
    let parameters = parameters.unwrap_or(&empty);
    let theta = match (present(parameters, "rope_theta"), present(json, "rope_theta")) {
        (Some(_), _) => positive(parameters, "rope_theta")?,
        (None, Some(_)) => positive(json, "rope_theta")?,
        (None, None) => family.rope_theta,
    };
    let kind = present(parameters, "rope_type").or_else(|| present(parameters, "type"));
    let scaling = match kind.map(|kind| kind.as_str().unwrap_or_default()) {
        None if present(parameters, "factor").is_some() => {
            return Err(Failure::data("the rope settings have a factor but no rope_type"));
        }
        None | Some("default") => RopeScaling::None,
        Some("linear") if family.scaled_rope => {
            RopeScaling::Linear { factor: positive(parameters, "factor")? }
        }
        Some("llama3") if family.scaled_rope => {
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
        Some("yarn") if family.scaled_rope => yarn(parameters, theta, positions, rotated)?,
        Some(other) => {
            let known = if family.scaled_rope { "default, linear, llama3, yarn" } else { "default" };
            return Err(Failure::data(format!("rope_type is {other:?}, which is not implemented"))
                .hint(format!("rope types of this family: {known}")));
        }
    };
    Ok((theta, scaling))
}

/// YaRN with the defaults of `transformers`.
fn yarn(parameters: &Value, theta: f32, positions: usize, rotated: usize) -> Result<RopeScaling> {
    let optional = |key: &str| present(parameters, key).map(|_| positive(parameters, key)).transpose();
    let original = match present(parameters, "original_max_position_embeddings") {
        Some(_) => size(parameters, "original_max_position_embeddings")?,
        None => positions,
    } as f64;
    let factor = match optional("factor")? {
        Some(factor) => f64::from(factor),
        None => positions as f64 / original,
    };
    // Of the paper's appendix A.2, with the weights of DeepSeek's variant.
    let scale = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let attention_factor =
        match (optional("attention_factor")?, optional("mscale")?, optional("mscale_all_dim")?) {
            (Some(given), ..) => given,
            (None, Some(above), Some(below)) => (scale(f64::from(above)) / scale(f64::from(below))) as f32,
            _ => scale(1.0) as f32,
        };
    // The pair that turns so many times within the original context.
    let pair = |turns: f64| {
        rotated as f64 * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * f64::from(theta).ln())
    };
    let fast = f64::from(optional("beta_fast")?.unwrap_or(32.0));
    let slow = f64::from(optional("beta_slow")?.unwrap_or(1.0));
    let (mut low, mut high) = (pair(fast), pair(slow));
    if flag(parameters, "truncate")?.unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(rotated as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    let ramp = [low as f32, high as f32];
    if ramp.iter().any(|edge| !edge.is_finite()) {
        return Err(Failure::data("the settings of yarn give no finite frequencies"));
    }
    Ok(RopeScaling::Yarn { factor: factor as f32, attention_factor, ramp })
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
