//! The choice between our attention ([`super::prefill_attention`], [`super::decode_attention`]) and ONNX Runtime's.
//!
//! `TROUPE_ATTENTION` names one. With `fastest` each batch shape of a model is measured once on a card, with both, and the faster one
//! is kept in the file of the products' algorithms, so that later runs compute the same bits. Runs of prompts have any shape, and
//! those between two powers of two are taken for one. The default is ONNX Runtime's on a card, where ours has not run yet, and ours
//! in the simulator. There only ours computes in 16 bits, because ONNX Runtime has its attention for GPUs alone.

use super::config::Activation;
use super::graphs;
use super::prefill_attention::serves;
use super::session::Provider;
use super::sessions::Attention;
use super::shape::BatchShape;
use crate::engine::request::SampledToken;
use device::Device;
use policy::config::Config;
use record::failure::{Failure, Result};
use record::stage;
use std::collections::HashMap;

const VARIABLE: &str = "TROUPE_ATTENTION";
/// How a choice is kept on disk.
const KEPT: [u64; 2] = [1, 2];

/// The choice for each shape; true is for ours.
pub struct AttentionChoice {
    /// The choice for all shapes; `None` where each is measured.
    fixed: Option<bool>,
    known: HashMap<Like, bool>,
    model: String,
    /// True if a choice was reported: for prompts, for decoding.
    reported: [bool; 2],
}

/// Runs that have one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Like {
    decodes: bool,
    rows: usize,
    longest: usize,
}

impl Like {
    fn of(shape: &BatchShape) -> Like {
        let (decodes, longest) = (shape.bucket, shape.bounds[1] as usize);
        match decodes {
            true => Like { decodes, rows: shape.rows, longest },
            false => {
                Like { decodes, rows: shape.rows.next_power_of_two(), longest: longest.next_power_of_two() }
            }
        }
    }
}

/// A batch's tokens, and the seconds of its run if they could be measured.
pub type Timed = (Vec<SampledToken>, Option<f64>);

impl AttentionChoice {
    /// The choice of the variable, or its default, for activations of type `T`.
    ///
    /// # Errors
    /// 2 for a variable that is none of the three, or that asks for an attention that does not serve the model.
    pub fn by_variable<T: Activation>(config: &Config, provider: Provider) -> Result<AttentionChoice> {
        let named = std::env::var(VARIABLE).ok().filter(|named| !named.is_empty());
        AttentionChoice::new::<T>(named.as_deref(), config, provider)
    }

    /// The choice by its name.
    pub fn new<T: Activation>(
        named: Option<&str>,
        config: &Config,
        provider: Provider,
    ) -> Result<AttentionChoice> {
        let place = match provider {
            Provider::Cuda { .. } => Place::Card,
            Provider::Cpu if size_of::<T>() == size_of::<f32>() => Place::Simulator,
            Provider::Cpu => Place::SimulatorIn16Bits,
        };
        let Config { num_layers, hidden_size, num_heads, num_kv_heads, head_dim, .. } = config;
        Ok(AttentionChoice {
            fixed: fixed(named, place, *head_dim)?,
            known: HashMap::new(),
            model: format!("{num_layers}x{hidden_size}:{num_heads}:{num_kv_heads}:{head_dim}"),
            reported: [false; 2],
        })
    }

    /// Every attention that may be chosen.
    pub fn all(&self) -> Vec<Attention> {
        let (ours, theirs) = ([Attention::Prefill, Attention::Decode], [Attention::OnnxRuntime]);
        match self.fixed {
            Some(true) => ours.to_vec(),
            Some(false) => theirs.to_vec(),
            None => [&theirs[..], &ours].concat(),
        }
    }

    /// True if ours may be chosen. Then prompts of one new token each are not run as decoding, because decoding's attention has
    /// other bits.
    pub fn has_own(&self) -> bool {
        self.fixed != Some(false)
    }

    /// The sessions that run prompts, each with room for a run's activations.
    pub fn prompt_sessions(&self) -> usize {
        self.all().iter().filter(|attention| **attention != Attention::Decode).count()
    }

    /// True for ours; `None` where it has to be measured.
    pub fn of<D: Device>(&mut self, shape: &BatchShape, device: &D) -> Option<bool> {
        let like = Like::of(shape);
        let kept = || device.choice(&self.name(&like)).map(|kept| kept == KEPT[1]);
        let choice = self.fixed.or_else(|| self.known.get(&like).copied()).or_else(kept)?;
        self.known.insert(like, choice);
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
        let like = Like::of(shape);
        let what = match like.decodes {
            true => format!("decoding {} sequences of up to {} tokens", shape.rows, shape.bounds[1]),
            false => format!("{} tokens of prompts of up to {}", shape.rows, shape.bounds[1]),
        };
        let reported = &mut self.reported[usize::from(like.decodes)];
        let mut report = |text: String| {
            if !std::mem::replace(reported, true) {
                stage::note("rollout", text);
            }
        };
        let (Some(own_seconds), Some(seconds), true) = (own_seconds, seconds, alike) else {
            let why = if alike { "it cannot be measured" } else { "our attention gives other tokens" };
            report(format!("{what} with ONNX Runtime's attention: {why}"));
            self.known.insert(like, false);
            return;
        };
        let is_own = own_seconds <= seconds;
        let [ours, theirs] = [own_seconds, seconds].map(|seconds| seconds * 1e3);
        report(format!("{what}: {ours:.2} ms with our attention, {theirs:.2} ms with ONNX Runtime's"));
        self.known.insert(like, is_own);
        device.keep_choice(&self.name(&like), KEPT[usize::from(is_own)]);
    }

    /// A model's runs as a word.
    fn name(&self, like: &Like) -> String {
        let kind = if like.decodes { "decode" } else { "prefill" };
        format!("{kind}-attention:{}:{}:{}", self.model, like.rows, like.longest)
    }
}

/// Where a policy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Card,
    Simulator,
    SimulatorIn16Bits,
}

fn fixed(named: Option<&str>, place: Place, width: usize) -> Result<Option<bool>> {
    let needed = named == Some("own") || place == Place::SimulatorIn16Bits;
    match (named, place) {
        (None | Some("own" | "fastest"), _) if needed && !serves(width) => {
            Err(Failure::usage(format!("our attention has no heads of {width} values")).hint(format!(
                "unset {VARIABLE}: such heads take ONNX Runtime's, in the simulator with --dtype float32"
            )))
        }
        (Some("own"), _) | (None | Some("fastest"), Place::SimulatorIn16Bits) => Ok(Some(true)),
        (Some("onnxruntime"), Place::SimulatorIn16Bits) => {
            Err(Failure::usage(format!("{VARIABLE}=onnxruntime: on a CPU it has no attention in 16 bits"))
                .hint("unset it, or use --dtype float32"))
        }
        (Some("fastest"), Place::Card) if serves(width) => Ok(None),
        (None | Some("fastest"), Place::Simulator) => Ok(Some(serves(width))),
        (None | Some("onnxruntime" | "fastest"), _) => Ok(Some(false)),
        (Some(other), _) => Err(Failure::usage(format!("{VARIABLE}={other:?} is no attention"))
            .hint("`own`, `onnxruntime`, or `fastest` of the two")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_counts_where_the_kernels_serve() {
        use Place::{Card, Simulator, SimulatorIn16Bits};
        let (ours, theirs) = (Some(true), Some(false));
        for (named, place, width, wanted) in [
            (None, Card, 128, Some(theirs)),
            (Some("fastest"), Card, 128, Some(None)),
            (Some("fastest"), Card, 256, Some(theirs)),
            (Some("fastest"), Simulator, 128, Some(ours)),
            (None, Simulator, 128, Some(ours)),
            (None, Simulator, 256, Some(theirs)),
            (Some("own"), Simulator, 64, Some(ours)),
            (Some("own"), Card, 96, Some(ours)),
            (Some("own"), Card, 256, None),
            (Some("onnxruntime"), Simulator, 128, Some(theirs)),
            (Some("flash"), Card, 128, None),
            (None, SimulatorIn16Bits, 64, Some(ours)),
            (None, SimulatorIn16Bits, 256, None),
            (Some("onnxruntime"), SimulatorIn16Bits, 64, None),
        ] {
            assert_eq!(fixed(named, place, width).ok(), wanted, "{named:?} {place:?} {width}");
        }
    }

    #[test]
    fn runs_of_prompts_between_powers_of_two_have_one_choice() {
        let of = |rows, longest, bucket| {
            Like::of(&BatchShape {
                rows,
                sequences: 2,
                logit_rows: 2,
                requests: 2,
                width: 1,
                bounds: [rows as i32, longest, longest],
                bucket,
            })
        };
        assert_eq!(of(3000, 1025, false), of(4096, 2048, false));
        assert_ne!(of(3000, 1025, false), of(2048, 1025, false));
        assert_ne!(of(12, 512, true), of(16, 512, true));
        assert_ne!(of(16, 512, true), of(16, 512, false));
    }
}
