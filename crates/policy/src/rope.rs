//! Rotary positions: which elements of a head turn, how fast, and up to which position, by `config.json`.
//!
//! Reads both spellings that `transformers` has used: `rope_theta` with `rope_scaling`, and `rope_parameters`. Left out: the tables of
//! cosines and sines, which whoever computes attention makes of [`Rope`].

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::family::Family;
use crate::json::{flag, positive, present, size};

/// RoPE scaling, for contexts longer than in pretraining.
#[derive(Clone, Debug, PartialEq)]
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
    /// LongRoPE: a divisor for every pair, and cosines and sines times a factor (arXiv 2402.13753). These
    /// divisors apply to contexts up to the pretraining length. Longer contexts use others from their first
    /// token on, and are left out.
    LongRope {
        /// Divisor of each pair's frequency.
        divisors: Vec<f32>,
        /// Factor of every cosine and sine.
        attention_factor: f32,
    },
}

/// Rotary positions of some layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians a position of each pair, as [`crate::config::Config::inverse_frequencies`]. Pair `i` is elements `i` and
    /// `i + frequencies.len()` of a head; elements beyond the pairs are not rotated.
    pub frequencies: Vec<f32>,
    /// Factor of every cosine and sine.
    pub attention_factor: f32,
}

impl RopeScaling {
    /// Frequencies after scaling, in radians a position, with the operations of `transformers` in their order.
    pub(crate) fn scale(&self, plain: impl Iterator<Item = f32>) -> Vec<f32> {
        match self {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::LongRope { divisors, .. } => {
                plain.zip(divisors).map(|(frequency, divisor)| 1.0 / (divisor * (1.0 / frequency))).collect()
            }
            RopeScaling::Yarn { factor, ramp: [low, high], .. } => plain
                .enumerate()
                .map(|(pair, frequency)| {
                    let divided = ((pair as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    let kept = 1.0 - divided;
                    1.0 / (factor * (1.0 / frequency)) * (1.0 - kept) + frequency * kept
                })
                .collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                let original = *original_max_positions as f32;
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

    /// Factor of every cosine and sine.
    pub fn attention_factor(&self) -> f32 {
        match self {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                *attention_factor
            }
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        }
    }
}

/// `theta^(-2i / rotated)` for every pair `i` of the `rotated` elements (RoFormer, arXiv 2104.09864, eq. 15).
pub(crate) fn frequencies(theta: f32, rotated: usize) -> impl Iterator<Item = f32> {
    (0..rotated / 2).map(move |pair| {
        let exponent = (2 * pair) as f32 / rotated as f32;
        1.0 / (f64::from(theta).powf(f64::from(exponent)) as f32)
    })
}

/// The rotary positions that `config.json` describes.
pub(crate) struct Settings {
    /// Base of the frequencies.
    pub theta: f32,
    pub scaling: RopeScaling,
    /// Elements of a head that are rotated, its first ones; `None`: all.
    pub rotary_dim: Option<usize>,
    /// Base of the frequencies in layers with a window, where it differs.
    pub local_theta: Option<f32>,
    /// Longest context, in tokens.
    pub positions: usize,
}

impl Settings {
    /// `positions`: `max_position_embeddings`.
    pub(crate) fn read(json: &Value, family: &Family, positions: usize, head_dim: usize) -> Result<Settings> {
        let (settings, local) = rope_settings(json, family)?;
        let rotary_dim = rotary_dim(json, settings, family, head_dim)?;
        let (theta, scaling) = rope_of(json, settings, family, (positions, rotary_dim.unwrap_or(head_dim)))?;
        let positions = match scaling {
            RopeScaling::LongRope { .. } => positions.min(original_positions(json)?),
            _ => positions,
        };
        let local_theta = local.map(|local| local_theta(json, local)).transpose()?;
        Ok(Settings { theta, scaling, rotary_dim, local_theta, positions })
    }
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

/// The object with the rotary settings, from `rope_parameters` (new) or `rope_scaling` (old); for Gemma also
/// the settings of layers with a window.
fn rope_settings<'a>(
    json: &'a Value,
    family: &Family,
) -> Result<(Option<&'a Value>, Option<Option<&'a Value>>)> {
    // Empty, transformers passes over it.
    let settings =
        |key| present(json, key).filter(|found| found.as_object().is_none_or(|found| !found.is_empty()));
    let (new, old) = (settings("rope_parameters"), settings("rope_scaling"));
    if new.is_some() && old.is_some() && new != old {
        return Err(Failure::data("rope_scaling conflicts with rope_parameters").hint(
            "programs differ in which of the two they read: put all settings into rope_parameters, rope_theta too, and remove rope_scaling",
        ));
    }
    let found = new.or(old);
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

/// Base and scaling of the rotary frequencies. YaRN and LongRoPE need the positions and the rotated elements.
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
        // Nothing is scaled up to `max_position_embeddings`, which is as far as contexts go here.
        Some("dynamic") if family.scaled_rope => {
            positive(parameters, "factor")?;
            RopeScaling::None
        }
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
        // The first Phi-3 checkpoints call it su.
        Some("longrope" | "su") if family.long_rope => {
            long_rope(parameters, positions, original_positions(json)?, rotated)?
        }
        Some(other) => {
            let known = [
                (true, "default"),
                (family.scaled_rope, "linear, llama3, yarn, dynamic"),
                (family.long_rope, "longrope"),
            ];
            let known: Vec<&str> =
                known.into_iter().filter(|(has, _)| *has).map(|(_, names)| names).collect();
            return Err(Failure::data(format!("rope_type is {other:?}, which is not implemented"))
                .hint(format!("rope types of this family: {}", known.join(", "))));
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
    // Appendix A.2 of the paper, with the weights of DeepSeek's variant.
    let scale = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let attention_factor =
        match (optional("attention_factor")?, optional("mscale")?, optional("mscale_all_dim")?) {
            (Some(given), ..) => given,
            (None, Some(above), Some(below)) => (scale(f64::from(above)) / scale(f64::from(below))) as f32,
            _ => scale(1.0) as f32,
        };
    // The pair that makes `turns` turns within the original context.
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

/// Context length of pretraining for LongRoPE. The class in `transformers` ignores this key in the rotary
/// settings, and so do we.
fn original_positions(json: &Value) -> Result<usize> {
    let key = "original_max_position_embeddings";
    present(json, key).map_or(Ok(4096), |_| size(json, key))
}

/// LongRoPE within the context of pretraining, with the defaults of `transformers`.
fn long_rope(parameters: &Value, positions: usize, original: usize, rotated: usize) -> Result<RopeScaling> {
    let key = "short_factor";
    let divisors: Option<Vec<f32>> =
        present(parameters, key).and_then(Value::as_array).and_then(|divisors| {
            let number = |value: &Value| {
                Some(value.as_f64()? as f32).filter(|number| number.is_normal() && *number > 0.0)
            };
            divisors.iter().map(number).collect()
        });
    let Some(divisors) = divisors.filter(|divisors| divisors.len() == rotated / 2) else {
        return Err(Failure::data(format!(
            "{key} of the rope settings is not {} positive numbers",
            rotated / 2
        )));
    };
    let attention_factor = match present(parameters, "attention_factor") {
        Some(_) => positive(parameters, "attention_factor")?,
        None => {
            let factor = match present(parameters, "factor") {
                Some(_) => f64::from(positive(parameters, "factor")?),
                None => positions as f64 / original as f64,
            };
            // The paper's section 3.3; a context of one token has no logarithm to divide by.
            let grown = (factor.max(1.0).ln() / (original.max(2) as f64).ln() + 1.0).sqrt();
            grown as f32
        }
    };
    Ok(RopeScaling::LongRope { divisors, attention_factor })
}
