//! The model runner for devices. A run's small inputs go to the device, its work ([`super::forward`]) is submitted there, or
//! replayed where it was captured ([`super::graphs`]), and what comes back is a token and a log-probability per request.

use super::adapters::Adapters;
use super::config::{Activation, Capacity};
use super::forward::{Forward, LOGIT_BYTES};
use super::graphs::{CudaGraphs, Step};
use super::inputs::Inputs;
use super::sampler::DeviceSampler;
use super::session::{Provider, Session};
use super::shape::BatchShape;
use crate::engine::batch::Batch;
use crate::engine::block_pool::{CacheConfig, Fork};
use crate::engine::request::SampledToken;
use crate::engine::scheduler::{Runner, SchedulerConfig};
use device::{Buffer, Device, GEMM_WORKSPACE};
use policy::config::Config;
use policy::graph;
use policy::weights::Weights;
use record::failure::{Failure, Result};
use record::stage;

/// A policy on a device. `T` is what it computes in.
pub struct DeviceRunner<D: Device, T: Activation> {
    forward: Forward<T>,
    config: Config,
    capacity: Capacity,
    /// Keys and values of each layer.
    kv: Vec<[Buffer<T>; 2]>,
    inputs: Inputs,
    /// Bound to the session, and held for it.
    _factors: Vec<Buffer<T>>,
    graphs: CudaGraphs<D::Graph>,
    /// Behind the buffers, which are its memory.
    device: D,
}

/// Bytes of the arena that a runner takes: keys and values, head, hidden rows, logits, adapters, the small inputs, sample
/// requests, and the workspace of matrix products.
pub fn arena_bytes<T: Activation>(config: &Config, adapters: &Adapters, capacity: &Capacity) -> u64 {
    let size = size_of::<T>() as u64;
    let block = (capacity.block_size * config.num_kv_heads * config.head_dim) as u64 * size;
    let kv = 2 * config.num_layers as u64 * capacity.blocks as u64 * block;
    let head = (config.vocab_size * config.hidden_size) as u64 * size;
    let hidden = (capacity.sequences * config.hidden_size) as u64 * size;
    // Every buffer begins at a line of its own and may have a margin behind it.
    let buffers = 2 * config.num_layers as u64 + 7;
    GEMM_WORKSPACE
        + kv
        + head
        + hidden
        + LOGIT_BYTES.max(4 * config.vocab_size) as u64
        + adapters.bytes::<T>(config)
        + Inputs::bytes(capacity, config.max_positions)
        + DeviceSampler::bytes(capacity.sequences)
        + buffers * 1024
}

impl<D: Device, T: Activation> DeviceRunner<D, T> {
    /// Opens a session over the weights, reserves the arena, and loads the head and the adapters into it. `capacity` is
    /// called once ONNX Runtime has taken what it needs for the weights.
    ///
    /// # Errors
    /// 69 without a library or memory; files that are missing, damaged or of a kind that is not implemented.
    pub fn open(
        config: Config,
        weights: &Weights,
        adapters: &Adapters,
        mut device: D,
        provider: Provider,
        capacity: impl FnOnce(&D) -> Result<Capacity>,
    ) -> Result<Self> {
        let graph = graph::paged_decoder(&config, weights, T::ARITHMETIC, adapters.stack())?;
        let mut session = Session::open(&graph, weights.folder()?, provider)?;
        let capacity = capacity(&device)?;
        device.reserve(arena_bytes::<T>(&config, adapters, &capacity))?;
        let shape = [capacity.blocks, capacity.block_size, config.num_kv_heads, config.head_dim];
        let mut kv = Vec::with_capacity(config.num_layers);
        for layer in 0..config.num_layers {
            let sides = [(); 2].map(|()| device.allocate::<T>(shape.iter().product()));
            let [keys, values] = sides;
            let sides = [keys?, values?];
            for (name, buffer) in ["key", "value"].into_iter().zip(&sides) {
                session.input::<T>(&format!("{name}_cache.{layer}"), buffer.address(), &shape)?;
                session.output::<T>(&format!("{name}_cache_out.{layer}"), buffer.address(), &shape)?;
                device.clear(buffer.all())?;
            }
            kv.push(sides);
        }
        let adapted = !adapters.stack().is_empty();
        Ok(DeviceRunner {
            _factors: adapters.upload(&config, &mut device, &mut session)?,
            inputs: Inputs::new(&mut device, &capacity, config.max_positions, adapted)?,
            forward: Forward::new(&config, weights, &mut device, session, capacity.sequences)?,
            graphs: CudaGraphs::new(),
            config,
            capacity,
            kv,
            device,
        })
    }

    /// What its scheduler may do.
    pub fn scheduler_config(&self, stop_ids: Vec<u32>) -> SchedulerConfig {
        let Capacity { rows, sequences, blocks, block_size } = self.capacity;
        SchedulerConfig {
            sequences,
            prompt_tokens: rows - sequences,
            cache: CacheConfig { blocks, block_size, fork: Fork::CopyOnWrite, lazy: false },
            prefill_first: false,
            expandable: false,
            positions: self.config.max_positions,
            vocabulary: self.config.vocab_size,
            stop_ids,
        }
    }

    /// Where it runs.
    #[cfg(test)]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Copies the blocks in which sequences part.
    fn copy_blocks(&mut self, batch: &Batch) -> Result<()> {
        let size = self.capacity.block_size * self.config.num_kv_heads * self.config.head_dim;
        for copy in &batch.copies {
            let (from, to) = (copy.from as usize * size, copy.to as usize * size);
            for buffer in self.kv.iter().flatten() {
                self.device.copy(buffer.slice(from..from + size), buffer.slice(to..to + size))?;
            }
        }
        Ok(())
    }

    /// Runs what was uploaded.
    fn run_eagerly(&mut self, shape: &BatchShape, count: usize) -> Result<Vec<SampledToken>> {
        self.inputs.bind(&mut self.forward.session, shape)?;
        self.forward.bind_output(shape)?;
        self.forward.submit(&mut self.device, shape)?;
        self.forward.sampler.download(&mut self.device, count)
    }

    /// Captures the run that was just done and gave `tokens`, if replaying it gives them again.
    ///
    /// # Errors
    /// The capture fails, or its replay does something else.
    fn capture(&mut self, shape: &BatchShape, tokens: &[SampledToken]) -> Result<()> {
        let forward = &mut self.forward;
        let Some(graph) = self.device.capture(|device| forward.submit(device, shape))? else {
            self.graphs.disable();
            return Ok(());
        };
        self.forward.clear(&mut self.device)?;
        self.device.replay(&graph)?;
        let again = self.forward.sampler.download(&mut self.device, tokens.len())?;
        let bits = |token: &SampledToken| (token.id, token.logprob.to_bits());
        if !again.iter().map(bits).eq(tokens.iter().map(bits)) {
            return Err(Failure::work("the replay of a captured run is not bit-identical"));
        }
        self.graphs.insert(*shape, graph);
        Ok(())
    }
}

impl<D: Device, T: Activation> Runner for DeviceRunner<D, T> {
    fn run(&mut self, batch: &Batch) -> Result<Vec<SampledToken>> {
        self.copy_blocks(batch)?;
        let shape = BatchShape::of(batch, &self.capacity, self.config.max_positions);
        self.inputs.upload(&mut self.device, batch, &shape)?;
        self.forward.request(&mut self.device, &batch.requests, &shape)?;
        let count = batch.requests.len();
        match self.graphs.step(&shape) {
            Step::Replay(graph) => {
                self.device.replay(graph)?;
                self.forward.sampler.download(&mut self.device, count)
            }
            Step::Run => self.run_eagerly(&shape, count),
            Step::Capture => {
                let tokens = self.run_eagerly(&shape, count)?;
                if let Err(failure) = self.capture(&shape, &tokens) {
                    self.graphs.disable();
                    let cause = failure.message;
                    stage::note("rollout", format!("decoding without CUDA graphs, which is slower: {cause}"));
                }
                Ok(tokens)
            }
        }
    }
}
