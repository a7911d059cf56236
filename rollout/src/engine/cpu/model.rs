//! A policy loaded for the CPU: a session, and the parameters that it runs with.

use super::Options;
use super::isa::Kernels;
use super::kv::{BLOCK_SIZE, KvLayout};
use super::network::Network;
use super::parameters::{Base, ModelParameters};
use super::workspace::MAX_ROWS;
use crate::engine::block_pool::{CacheConfig, Fork};
use crate::engine::scheduler::SchedulerConfig;
use gemm::Isa;
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Kind};
use record::failure::{Failure, Result};
use std::sync::Arc;

/// The logits of a run take at most this much memory, whatever the vocabulary.
const LOGIT_BYTES: usize = 128 << 20;

/// Prompt tokens per run. More would not make the matrix products faster, only outgrow the processor's caches.
const PROMPT_TOKENS: usize = 512;

/// The part of an engine that all its decoders share.
pub struct Model {
    /// The model's geometry.
    pub config: Config,
    /// Kernels for this processor and head size.
    pub kernels: Kernels,
    /// How blocks of the KV cache are laid out.
    pub layout: KvLayout,
    /// The limits of each decoder's scheduler.
    pub scheduler: SchedulerConfig,
    /// The matrix products.
    pub network: Arc<Network>,
    /// Its weights.
    pub parameters: Arc<ModelParameters>,
}

/// Parts of a version for the next: its session, and a base that did not change.
pub struct CarriedOver {
    network: Arc<Network>,
    /// `None` if the next version brings new weights, because keeping these would hold both in memory.
    base: Option<Arc<Base>>,
}

impl Model {
    /// Reads policies that are one model, or adapters of one, with what the version before left, if it fits.
    pub fn load(policies: &[&Policy], options: &Options, kept: Option<CarriedOver>) -> Result<Self> {
        let Some(&policy) = policies.first() else {
            return Err(Failure::work("an engine without a policy"));
        };
        let (files, config) = (policy.model(), policy.config.clone());
        let isa = options.isa.unwrap_or_else(Isa::best);
        let kernels = Kernels::of(isa);
        let group = config.num_heads / config.num_kv_heads;
        if group > MAX_ROWS {
            let message = format!("{}: {group} query heads share a key head", files.display());
            return Err(Failure::data(message).hint(format!("at most {MAX_ROWS} can")));
        }
        let weights = policy.weights()?;
        let adapted = policies.iter().any(|policy| policy.base.is_some());
        let graph = graph::decoder(&config, &weights, Kind::SharedPrefix { adapted })?;
        let (network, base) = match kept {
            Some(CarriedOver { network, base }) => (Some(network), base),
            None => (None, None),
        };
        let network = match network.filter(|network| network.is_over(&graph)) {
            Some(network) => network,
            None => Arc::new(Network::open(graph, kernels).map_err(|failure| failure.at(files.display()))?),
        };
        let base = match base.filter(|base| base.is_of(&weights)) {
            Some(base) => base,
            None => Arc::new(Base::load(&config, weights, options.precision, isa)?),
        };
        let parameters = Arc::new(ModelParameters::over(base, policies, &config, options.precision, isa)?);
        let layout = KvLayout::of(&config, options.precision);
        let scheduler = scheduler_config(&config, &layout, options);
        Ok(Model { config, kernels, layout, scheduler, network, parameters })
    }

    /// The parts that its next version may use.
    pub fn kept(&self) -> CarriedOver {
        let frozen = !self.parameters.adapters.is_empty();
        CarriedOver { network: self.network.clone(), base: frozen.then(|| self.parameters.base.clone()) }
    }
}

/// The limits of one decoder: its share of the rows and of the cache.
fn scheduler_config(config: &Config, layout: &KvLayout, options: &Options) -> SchedulerConfig {
    let block_bytes = layout.block_words() * size_of::<f32>();
    SchedulerConfig {
        sequences: options.max_rows.min(LOGIT_BYTES / (size_of::<f32>() * config.vocab_size)).max(1),
        prompt_tokens: PROMPT_TOKENS,
        cache: CacheConfig {
            blocks: options.cache_bytes / options.threads.max(1) / block_bytes,
            block_size: BLOCK_SIZE,
            fork: Fork::NewBlock,
            lazy: true,
        },
        separate: false,
        expandable: true,
        positions: config.max_positions,
        vocabulary: config.vocab_size,
        stop_ids: options.stop_ids.clone(),
    }
}
