//! The model runner for devices. It uploads a run's small inputs, submits its work ([`super::forward`]) or
//! replays the captured graph ([`super::graphs`]), and downloads a token and a log-probability per request.

use super::adapters::Adapters;
use super::attention_choice::{AttentionChoice, Timed};
use super::config::{Activation, Capacity};
use super::forward::{Forward, LOGIT_BYTES};
use super::graphs::{self, CudaGraphs, Step};
use super::inputs::Inputs;
use super::kv_cache::KvCache;
use super::operators;
use super::sampler::DeviceSampler;
use super::session::{Provider, Session};
use super::sessions::{Attention, Sessions};
use super::shape::BatchShape;
use super::weights::DeviceWeights;
use crate::engine::batch::Batch;
use crate::engine::block_pool::{CacheConfig, Fork};
use crate::engine::request::SampledToken;
use crate::engine::scheduler::{Runner, SchedulerConfig};
use crate::engine::timings::GraphCounts;
use device::{Buffer, Device, GEMM_WORKSPACE, Memory};
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Kind, Stack};
use policy::weights::Weights;
use record::failure::Result;
use record::stage;
use std::sync::Arc;
use std::time::Instant;

/// An idle session is kept only if at most 1/20 of the GPU's memory is in use: ONNX Runtime's activations, graphs, the
/// driver's own memory, and other processes.
const IDLE_MEMORY_DIVISOR: u64 = 20;

fn may_stay(Memory { free, total }: Memory) -> bool {
    total - free <= total / IDLE_MEMORY_DIVISOR
}

/// The configuration, weights and adapters of a model's policies.
pub fn read(first: &Policy, policies: &[Policy]) -> Result<(Config, Arc<Weights>, Adapters)> {
    let config = graph::for_device(first.config.clone())?;
    let adapters = Adapters::load(policies, &config)?;
    let weights = first.weights()?;
    Ok((config, weights, adapters))
}

/// A policy on a device. `T` is the type of activations.
pub struct DeviceRunner<D: Device, T: Activation> {
    /// Dropped before the memory that its graphs use.
    graphs: CudaGraphs<D::Graph>,
    forward: Forward<T>,
    config: Config,
    capacity: Capacity,
    kv: KvCache,
    inputs: Inputs,
    /// How adapters are stacked, and their factors, which are bound to the session.
    stack: Stack,
    factors: Vec<Buffer<T>>,
    provider: Provider,
    choice: AttentionChoice,
    /// Dropped after the buffers, which are in its memory.
    device: D,
}

/// Bytes of a runner's arena: weights, keys and values, hidden rows, logits, adapters, small inputs, sample
/// requests, and the workspace of matrix products.
pub fn arena_bytes<T: Activation>(config: &Config, adapters: &Adapters, capacity: &Capacity) -> u64 {
    let size = size_of::<T>() as u64;
    let hidden = (capacity.sequences * config.hidden_size) as u64 * size;
    // Each buffer is aligned separately and may have a margin after it.
    let buffers = 9;
    GEMM_WORKSPACE
        + KvCache::bytes::<T>(config, capacity)
        + DeviceWeights::<T>::bytes(config)
        + hidden
        + LOGIT_BYTES.max(4 * config.vocab_size) as u64
        + adapters.bytes::<T>(config)
        + Inputs::bytes(capacity, config.max_positions)
        + DeviceSampler::bytes(capacity.sequences, config.vocab_size)
        + buffers * 1024
}

impl<D: Device + 'static, T: Activation> DeviceRunner<D, T> {
    /// Opens a session for each attention that may be chosen, reserves the arena, and loads the weights and adapters into it. `capacity` is called
    /// after ONNX Runtime has allocated what a session needs.
    ///
    /// # Errors
    /// 69: no library or memory; files are missing, damaged or not supported.
    pub fn open(
        config: Config,
        weights: &Weights,
        adapters: &Adapters,
        mut device: D,
        (provider, choice): (Provider, AttentionChoice),
        capacity: impl FnOnce(&D) -> Result<Capacity>,
    ) -> Result<Self> {
        let shared = operators::shared(&device)?;
        let open = |attention: Attention| {
            let kind = match attention {
                Attention::OnnxRuntime => Kind::Paged(T::ARITHMETIC),
                Attention::Prefill => Kind::Prefill(T::ARITHMETIC),
                Attention::Decode => Kind::Decode(T::ARITHMETIC),
            };
            let graph = graph::adapted_decoder(&config, weights, kind, adapters.stack())?;
            let operators = operators::domain::<D, T>(&shared, provider)?;
            let mut session =
                Session::open(&graph, provider, operators).map_err(|failure| provider.named(failure))?;
            session.exact |= attention != Attention::OnnxRuntime;
            Ok((attention, session))
        };
        let sessions = choice.all().into_iter().map(open).collect::<Result<_>>()?;
        let mut sessions = Sessions::new(sessions);
        let capacity = capacity(&device)?;
        device.reserve(arena_bytes::<T>(&config, adapters, &capacity))?;
        let kv = KvCache::new::<D, T>(&config, &capacity, &mut device, &mut sessions)?;
        let adapted = !adapters.stack().is_empty();
        let factors = adapters.buffers(&config, &mut device, &mut sessions)?;
        let forward = Forward::new(&config, &mut device, sessions, capacity.sequences)?;
        let mut runner = DeviceRunner {
            factors,
            stack: adapters.stack().clone(),
            inputs: Inputs::new::<D, T>(&mut device, &capacity, &config, adapted)?,
            forward,
            choice,
            graphs: CudaGraphs::asked(),
            config,
            capacity,
            kv,
            provider,
            device,
        };
        runner.load(weights, adapters)?;
        Ok(runner)
    }

    /// Loads a version's weights and adapters.
    fn load(&mut self, weights: &Weights, adapters: &Adapters) -> Result<()> {
        self.forward.weights.load(&mut self.device, weights)?;
        adapters.fill(&self.config, &mut self.device, &self.factors)
    }

    /// The limits of its scheduler.
    pub fn scheduler_config(&self, stop_ids: Vec<u32>) -> SchedulerConfig {
        let Capacity { rows, sequences, blocks, block_size } = self.capacity;
        SchedulerConfig {
            sequences,
            prompt_tokens: rows - sequences,
            cache: CacheConfig { blocks, block_size, fork: Fork::CopyOnWrite, lazy: false },
            separate: true,
            expandable: false,
            positions: self.config.max_positions,
            vocabulary: self.config.vocab_size,
            stop_ids,
        }
    }

    #[cfg(test)]
    pub fn device(&self) -> &D {
        &self.device
    }

    fn step(&mut self, batch: &Batch) -> Result<Vec<SampledToken>> {
        self.kv.copy(&mut self.device, &batch.copies)?;
        let apart = self.choice.has_own();
        let shape = BatchShape::of(batch, &self.capacity, self.config.max_positions, apart);
        let shape = self.graphs.padded(shape);
        let choice = self.choice.of(&shape, &self.device);
        let attention = Attention::of(choice.unwrap_or(true), shape.bucket);
        self.forward.sessions.select(attention);
        self.inputs.upload(&mut self.device, batch, &shape, attention)?;
        self.forward.request(&mut self.device, &batch.requests, &shape)?;
        let count = batch.requests.len();
        if choice.is_none() {
            self.measure(&shape, count)?;
        }
        match self.graphs.step(&shape) {
            Step::Replay(graph) => {
                self.device.replay(graph)?;
                self.forward.sampler.download(&mut self.device, count)
            }
            Step::Run => self.run_eagerly(&shape, count),
            Step::Capture => {
                let tokens = self.run_eagerly(&shape, count)?;
                self.capture(&shape, tokens).or_else(|failure| {
                    if self.graphs.fail(&shape) {
                        let (rows, cause) = (shape.rows, failure.message);
                        let text = format!("decoding {rows} sequences without a CUDA graph, which is slower");
                        stage::note("rollout", format!("{text}: {cause}"));
                    }
                    // The failed replay may have changed the cache, so run again.
                    self.run_eagerly(&shape, count)
                })
            }
        }
    }

    /// Runs the uploaded batch without a graph.
    fn run_eagerly(&mut self, shape: &BatchShape, count: usize) -> Result<Vec<SampledToken>> {
        self.inputs.bind(&mut self.forward.sessions, shape)?;
        self.forward.bind_output(shape)?;
        self.forward.submit(&mut self.device, shape)?;
        self.forward.sampler.download(&mut self.device, count)
    }

    /// Runs the uploaded batch with either attention and selects the faster one for its shape.
    fn measure(&mut self, shape: &BatchShape, count: usize) -> Result<()> {
        let mut of = |own| {
            self.forward.sessions.select(Attention::of(own, shape.bucket));
            if shape.bucket { self.timed_replay(shape, count) } else { self.timed_run(shape, count) }
        };
        let times = [of(true)?, of(false)?];
        self.choice.decide(shape, &mut self.device, &times);
        let choice = self.choice.of(shape, &self.device);
        self.forward.sessions.select(Attention::of(choice == Some(true), shape.bucket));
        Ok(())
    }

    /// The tokens of the uploaded batch, and the seconds of its run.
    fn timed_run(&mut self, shape: &BatchShape, count: usize) -> Result<Timed> {
        const RUNS: u32 = 2;
        // The first one allocates, and measures products.
        let tokens = self.run_eagerly(shape, count)?;
        self.device.synchronize()?;
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            let started = Instant::now();
            self.run_eagerly(shape, count)?;
            self.device.synchronize()?;
            least = least.min(started.elapsed().as_secs_f64());
        }
        Ok((tokens, Some(least)))
    }

    /// The tokens of the uploaded batch, and the seconds that a replay of its run takes, if it can be captured.
    fn timed_replay(&mut self, shape: &BatchShape, count: usize) -> Result<Timed> {
        const REPLAYS: u32 = 5;
        let tokens = self.run_eagerly(shape, count)?;
        let forward = &mut self.forward;
        let graph = self.device.capture(|device| forward.submit(device, shape));
        let Ok(Some(graph)) = graph else { return Ok((tokens, None)) };
        let mut least = f64::INFINITY;
        // The first one loads what replays need.
        for replays in [1, REPLAYS, REPLAYS] {
            let started = Instant::now();
            for _ in 0..replays {
                self.device.replay(&graph)?;
            }
            self.device.synchronize()?;
            least = least.min(started.elapsed().as_secs_f64() / f64::from(replays));
        }
        Ok((tokens, Some(least)))
    }

    /// Captures the run that just gave `tokens`. Returns the replay's tokens, on which later runs build, or
    /// `tokens` on a device without graphs.
    ///
    /// # Errors
    /// The capture fails, or its replay differs.
    fn capture(&mut self, shape: &BatchShape, tokens: Vec<SampledToken>) -> Result<Vec<SampledToken>> {
        let forward = &mut self.forward;
        let Some(graph) = self.device.capture(|device| forward.submit(device, shape))? else {
            self.graphs.disable();
            return Ok(tokens);
        };
        let mut replay = || {
            self.forward.clear(&mut self.device)?;
            self.device.replay(&graph)?;
            self.forward.sampler.download(&mut self.device, tokens.len())
        };
        let replayed = [replay()?, replay()?];
        graphs::verify(&tokens, &replayed, self.forward.sessions.selected().exact)?;
        self.graphs.insert(*shape, graph);
        let [replayed, _] = replayed;
        Ok(replayed)
    }
}

impl<D: Device + 'static, T: Activation> Runner for DeviceRunner<D, T> {
    fn run(&mut self, batch: &Batch) -> Result<Vec<SampledToken>> {
        self.step(batch).map_err(|failure| self.provider.named(failure))
    }

    fn release(&mut self) -> Result<bool> {
        self.device.suspend()?;
        Ok(may_stay(self.device.memory()?))
    }

    /// Keeps the session, graphs and prepared library state; fills weights, adapters and the cache again.
    fn reload(&mut self, policies: &[Policy]) -> Result<bool> {
        let Some(first) = policies.first() else { return Ok(false) };
        let (config, weights, adapters) = read(first, policies)?;
        if config != self.config || *adapters.stack() != self.stack || !self.device.resume()? {
            return Ok(false);
        }
        self.kv.clear(&mut self.device)?;
        self.load(&weights, &adapters)?;
        Ok(true)
    }

    fn take_graph_counts(&mut self) -> GraphCounts {
        self.graphs.take_counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_is_kept_while_nearly_all_of_the_device_is_free() {
        let memory = |free| Memory { free, total: 80 << 30 };
        assert!(may_stay(memory(77 << 30)) && !may_stay(memory(75 << 30)));
    }
}
