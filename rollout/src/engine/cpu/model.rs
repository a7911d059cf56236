//! A policy loaded for the CPU: one ONNX Runtime session over the weights where they lie, which any number of threads run.

use super::Options;
use super::adapters::Adapter;
use super::experts::Experts;
use super::isa::Kernels;
use super::kv::{BLOCK_SIZE, KvLayout};
use super::linear::Linears;
use super::operators::{Shared, domain};
use super::runner::{ForwardContext, set_current};
use super::workspace::MAX_ROWS;
use crate::engine::batch::Batch;
use crate::engine::block_pool::{CacheConfig, Fork};
use crate::engine::custom_op::Domain;
use crate::engine::onnx::{Memory, Tensor, check, failed, session_builder};
use crate::engine::scheduler::SchedulerConfig;
use crate::runtime;
use gemm::{Isa, Precision};
use ort::AsPointer;
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Kind, Products};
use policy::weights::Weights;
use record::failure::{Failure, Result};
use std::ptr;
use std::sync::Arc;

/// The logits of a run take at most this much memory, whatever the vocabulary.
const LOGIT_BYTES: usize = 128 << 20;

/// Prompt tokens per run. More would not make the matrix products faster, only outgrow the processor's caches.
const PROMPT_TOKENS: usize = 512;

/// What all decoders of an engine share.
pub struct Model {
    /// The model's geometry.
    pub config: Config,
    /// Kernels for this processor and head size.
    pub kernels: Kernels,
    /// How blocks of the KV cache are laid out.
    pub layout: KvLayout,
    /// What each decoder's scheduler may do.
    pub scheduler: SchedulerConfig,
    session: ort::session::Session,
    memory: Memory,
    /// Must outlive the session, so it stands behind it.
    _domain: Domain<Shared>,
}

impl Model {
    /// Reads the configuration of policies that are one model, or adapters of one, writes the graph and opens a session.
    pub fn load(policies: &[&Policy], options: &Options) -> Result<Self> {
        let Some(&policy) = policies.first() else {
            return Err(Failure::work("an engine without a policy"));
        };
        let files = policy.model();
        let config = Config::load(files)?;
        let adapted = policies.iter().filter(|policy| policy.base.is_some());
        let adapters: Vec<Adapter> =
            adapted.map(|policy| Adapter::load(policy, &config)).collect::<Result<_>>()?;
        let isa = options.isa.unwrap_or_else(Isa::best);
        let kernels = Kernels::best(isa, config.head_dim).ok_or_else(|| {
            let message =
                format!("{}: heads of {} dimensions are not supported", files.display(), config.head_dim);
            Failure::data(message).hint("head sizes are multiples of 16 up to 256")
        })?;
        let group = config.num_heads / config.num_kv_heads;
        if group > MAX_ROWS {
            let message = format!("{}: {group} query heads share a key head", files.display());
            return Err(Failure::data(message).hint(format!("at most {MAX_ROWS} can")));
        }
        let weights = Weights::of_model(files, &config)?;
        // ONNX Runtime's own products are a little faster than ours in f32, but chooses their instructions itself, and it
        // has none in bf16.
        let (products, linears) = match (options.precision, options.isa) {
            (Precision::Float32, None) => (Products::OnnxRuntime, None),
            _ => {
                let linears = Linears::load(&config, &weights, options.precision, isa)?;
                (Products::Own, Some(Arc::new(linears)))
            }
        };
        let experts = Arc::new(Experts::load(&config, &weights, options.precision, isa)?);
        let kind = Kind::SharedPrefix { products, adapted: !adapters.is_empty() };
        let graph = graph::decoder(&config, &weights, kind)?;
        // Loads the library, which the operators need.
        let mut builder = session_builder(weights.folder()?)?;
        let domain = domain(&Shared { kernels, linears, experts, adapters: Arc::new(adapters) })?;
        domain.register(builder.ptr_mut())?;
        let session =
            runtime::open_session(builder, &graph).map_err(|error| failed(error).at(files.display()))?;
        let layout = KvLayout::of(&config, options.precision);
        let scheduler = scheduler_config(&config, &layout, options);
        let memory = Memory::host()?;
        Ok(Model { config, kernels, layout, scheduler, session, memory, _domain: domain })
    }

    /// Runs the graph over a batch; `logits` becomes `[batch.logit_rows.len(), vocab_size]`. Inputs and outputs are tensors
    /// over our own memory: nothing is copied.
    ///
    /// `OrtSession::Run` is thread-safe; the wrapper crate's method asks for `&mut`, so this calls the C function.
    pub fn run(&self, context: &mut ForwardContext, batch: &Batch, logits: &mut Vec<f32>) -> Result<()> {
        let (rows, vocabulary) = (&batch.logit_rows, self.config.vocab_size);
        logits.resize(rows.len() * vocabulary, 0.0);
        let memory = &self.memory;
        let ids = Tensor::over(memory, batch.ids.as_ptr().cast_mut(), &[batch.ids.len()])?;
        let indices = Tensor::over(memory, rows.as_ptr().cast_mut(), &[rows.len()])?;
        let result = Tensor::over(memory, logits.as_mut_ptr(), &[rows.len(), vocabulary])?;
        let input_names = [c"input_ids".as_ptr(), c"last_idx".as_ptr()];
        let output_names = [c"logits".as_ptr()];
        let inputs = [ids.pointer().cast_const(), indices.pointer().cast_const()];
        let mut outputs = [result.pointer()];
        let _guard = set_current(context, batch);
        // SAFETY: all names and tensors outlive the call; the inputs are only read, and the output is `logits`, which
        // this call alone holds. The session may be run by several threads at once.
        check(unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                ptr::null(),
                input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                output_names.as_ptr(),
                outputs.len(),
                outputs.as_mut_ptr(),
            )
        })
    }
}

/// What one decoder may do: its share of the rows and of the cache.
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
        prefill_first: true,
        expandable: true,
        positions: config.max_positions,
        vocabulary: config.vocab_size,
        stop_ids: options.stop_ids.clone(),
    }
}
