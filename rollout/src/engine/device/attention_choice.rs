//! The choice between our attention for decoding ([`super::decode_attention`]) and ONNX Runtime's.
//!
//! `TROUPE_DECODE_ATTENTION` names one. With `fastest` each batch shape of a model is measured once on a card, with both, and the
//! faster one is kept in the file of the products' algorithms, so that later runs compute the same bits. The default is ours in the
//! simulator, and ONNX Runtime's on a card, where ours has not run yet.

use super::decode_attention::serves;
use super::graphs;
use super::session::Provider;
use super::shape::BatchShape;
use crate::engine::request::SampledToken;
use device::Device;
use policy::config::Config;
use record::failure::{Failure, Result};
use record::stage;
use std::collections::HashMap;

const VARIABLE: &str = "TROUPE_DECODE_ATTENTION";
/// How a choice is kept on disk.
const KEPT: [u64; 2] = [1, 2];

/// The choice for each shape.
pub struct DecodeChoice {
    /// One for all shapes.
    fixed: Option<bool>,
    /// True for ours.
    known: HashMap<BatchShape, bool>,
    model: String,
    reported: bool,
}

/// A batch's tokens, and the seconds of its run if they could be measured.
pub type Timed = (Vec<SampledToken>, Option<f64>);

impl DecodeChoice {
    /// The choice of the variable, or its default.
    ///
    /// # Errors
    /// 2 for a variable that is none of the three, or that asks for ours where it does not serve the model.
    pub fn new(config: &Config, provider: Provider) -> Result<DecodeChoice> {
        let named = std::env::var(VARIABLE).ok().filter(|named| !named.is_empty());
        let simulated = matches!(provider, Provider::Cpu);
        let Config { num_layers, hidden_size, num_heads, num_kv_heads, head_dim, .. } = config;
        Ok(DecodeChoice {
            fixed: fixed(named.as_deref(), simulated, *head_dim)?,
            known: HashMap::new(),
            model: format!("{num_layers}x{hidden_size}:{num_heads}:{num_kv_heads}:{head_dim}"),
            reported: false,
        })
    }

    /// True if ours may be chosen.
    pub fn has_own(&self) -> bool {
        self.fixed != Some(false)
    }

    /// True for ours; `None` where it has to be measured.
    pub fn of<D: Device>(&mut self, shape: &BatchShape, device: &D) -> Option<bool> {
        if !shape.bucket {
            return Some(false);
        }
        let kept = || device.choice(&self.name(shape)).map(|kept| kept == KEPT[1]);
        let choice = self.fixed.or_else(|| self.known.get(shape).copied()).or_else(kept)?;
        self.known.insert(*shape, choice);
        Some(choice)
    }

    /// Chooses the faster of two if they agree, otherwise ONNX Runtime's. Keeps it, and says so the first time.
    pub fn decide<D: Device>(
        &mut self,
        shape: &BatchShape,
        device: &mut D,
        [(own, own_seconds), (other, seconds)]: &[Timed; 2],
    ) {
        let alike = graphs::verify(other, &[own.clone(), own.clone()], true).is_ok();
        let what = format!("decoding {} sequences of up to {} tokens", shape.rows, shape.bounds[1]);
        let mut report = |text: String| {
            if !std::mem::replace(&mut self.reported, true) {
                stage::note("rollout", text);
            }
        };
        let (Some(own_seconds), Some(seconds), true) = (own_seconds, seconds, alike) else {
            let why = if alike { "it cannot be measured" } else { "our attention gives other tokens" };
            report(format!("{what} with ONNX Runtime's attention: {why}"));
            self.known.insert(*shape, false);
            return;
        };
        let is_own = own_seconds <= seconds;
        let [ours, theirs] = [own_seconds, seconds].map(|seconds| seconds * 1e3);
        report(format!("{what} takes {ours:.2} ms with our attention, {theirs:.2} ms with ONNX Runtime's"));
        self.known.insert(*shape, is_own);
        device.keep_choice(&self.name(shape), KEPT[usize::from(is_own)]);
    }

    /// A model's batch shape as a word.
    fn name(&self, shape: &BatchShape) -> String {
        format!("decode-attention:{}:{}:{}", self.model, shape.rows, shape.bounds[1])
    }
}

fn fixed(named: Option<&str>, simulated: bool, width: usize) -> Result<Option<bool>> {
    match named {
        Some("onnxruntime") => Ok(Some(false)),
        Some("own") if serves(width) => Ok(Some(true)),
        Some("own") => {
            Err(Failure::usage(format!("{VARIABLE}=own: this attention has no heads of {width} values"))
                .hint("unset it: such heads take ONNX Runtime's"))
        }
        Some("fastest") if serves(width) && !simulated => Ok(None),
        None | Some("fastest") => Ok(Some(simulated && serves(width))),
        Some(other) => Err(Failure::usage(format!("{VARIABLE}={other:?} is no attention for decoding"))
            .hint("`own`, `onnxruntime`, or `fastest` of the two")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_counts_where_the_kernels_serve() {
        for (named, simulated, width, wanted) in [
            (None, false, 128, Some(Some(false))),
            (Some("fastest"), false, 128, Some(None)),
            (Some("fastest"), false, 256, Some(Some(false))),
            (Some("fastest"), true, 128, Some(Some(true))),
            (None, true, 128, Some(Some(true))),
            (None, true, 256, Some(Some(false))),
            (Some("own"), false, 96, Some(Some(true))),
            (Some("own"), false, 256, None),
            (Some("onnxruntime"), true, 128, Some(Some(false))),
            (Some("flash"), false, 128, None),
        ] {
            assert_eq!(fixed(named, simulated, width).ok(), wanted, "{named:?} {simulated} {width}");
        }
    }
}
