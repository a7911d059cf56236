//! A policy loaded for inference: the session, what it was made from, and the limits of its decoders.

use super::Options;
use super::adapters::Adapter;
use super::arena::{PAGE, Shape};
use super::isa::{Isa, Kernels};
use super::linear::Linears;
use super::session::Session;
use super::workspace::MAX_ROWS;
use gemm::Precision;
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Kind, Products};
use policy::weights::Weights;
use record::failure::{Failure, Result};
use std::sync::Arc;

/// Logits of a run are kept below this, whatever the vocabulary.
const LOGIT_BYTES: usize = 128 << 20;

/// What all decoders of an engine share.
pub struct Model {
    /// The model's geometry.
    pub config: Config,
    /// The kernels for this processor and head size.
    pub kernels: Kernels,
    /// The graph, ready to run on any thread.
    pub session: Session,
    /// Tokens that end a completion.
    pub stop_ids: Vec<u32>,
    /// What one decoder may use.
    pub limits: Limits,
    /// What its pages of keys and values look like.
    pub shape: Shape,
    /// Adapters over this model.
    pub adapters: Arc<Vec<Adapter>>,
}

/// Limits of one decoder.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Branches generating at the same time.
    pub rows: usize,
    /// Pages of keys and values.
    pub pages: usize,
}

impl Model {
    /// Reads the configuration of policies that are one model, or adapters of one, writes the graph and opens a session
    /// over the weights where they lie.
    pub fn load(policies: &[&Policy], options: &Options, isa: Option<Isa>) -> Result<Self> {
        let Some(&policy) = policies.first() else {
            return Err(Failure::work("an engine without a policy"));
        };
        let files = policy.model();
        let config = Config::load(files)?;
        let adapted = policies.iter().filter(|policy| policy.base.is_some());
        let adapters: Vec<Adapter> =
            adapted.map(|policy| Adapter::load(policy, &config)).collect::<Result<_>>()?;
        let kernels = match isa {
            Some(isa) => isa.kernels(config.head_dim),
            None => Isa::best(config.head_dim),
        };
        let kernels = kernels.ok_or_else(|| {
            let message =
                format!("{}: heads of {} dimensions cannot be run", files.display(), config.head_dim);
            Failure::data(message).hint("head sizes are multiples of 16 up to 256")
        })?;
        if config.num_heads / config.num_kv_heads > MAX_ROWS {
            let share = config.num_heads / config.num_kv_heads;
            let message = format!("{}: {share} query heads share a key head", files.display());
            return Err(Failure::data(message).hint(format!("at most {MAX_ROWS} can")));
        }
        let weights = Weights::open(files)?;
        // ONNX Runtime's own products are a little faster than ours in f32, and it has none in bf16.
        let (products, linears) = match options.precision {
            Precision::Float32 => (Products::OnnxRuntime, None),
            Precision::BFloat16 => {
                let linears = Linears::load(&config, &weights, options.precision)?;
                (Products::Own, Some(Arc::new(linears)))
            }
        };
        let kind = Kind::SharedPrefix { products, adapted: !adapters.is_empty() };
        let graph = graph::decoder(&config, &weights, kind)?;
        let session = Session::open(&graph, weights.folder()?, config.vocab_size, kernels, linears)
            .map_err(|failure| failure.at(files.display()))?;
        let shape = Shape::of(&config, options.precision);
        let rows = options.max_rows.min(LOGIT_BYTES / (size_of::<f32>() * config.vocab_size)).max(1);
        let share = options.cache_bytes / options.threads.max(1);
        let pages = share / (shape.page_words() * size_of::<f32>()).max(PAGE);
        let limits = Limits { rows, pages };
        Ok(Model {
            config,
            kernels,
            session,
            stop_ids: options.stop_ids.clone(),
            limits,
            shape,
            adapters: Arc::new(adapters),
        })
    }
}
