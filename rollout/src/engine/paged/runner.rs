//! The model on a device: its memory, and one run after another over it. A run's small inputs go to the device, its work
//! ([`super::work`]) is asked for, or repeated where it was recorded ([`super::recordings`]), and what comes back to the
//! processor is a token and a log-probability for each request.

use super::adapters::Adapters;
use super::batch::Batch;
use super::form::Form;
use super::inputs::Inputs;
use super::recordings::{Recordings, Step};
use super::sampler::DeviceSampler;
use super::scheduler::Runner;
use super::session::{Provider, Session};
use super::work::{LOGIT_BYTES, Work, logit_rows};
use crate::engine::sampler::SampledToken;
use crate::engine::values;
use device::{Buffer, Device, PRODUCT_WORKSPACE};
use policy::config::Config;
use policy::graph::{self, Arithmetic};
use policy::weights::Weights;
use record::failure::{Failure, Result};
use record::stage;

/// What activations, keys and values are on a device.
pub trait Activation: device::Element + values::Element {
    /// The graph's name for it.
    const ARITHMETIC: Arithmetic;

    /// The nearest value.
    fn round(value: f32) -> Self;
}

impl Activation for f32 {
    const ARITHMETIC: Arithmetic = Arithmetic::F32;

    fn round(value: f32) -> f32 {
        value
    }
}

impl Activation for half::bf16 {
    const ARITHMETIC: Arithmetic = Arithmetic::BF16;

    fn round(value: f32) -> half::bf16 {
        half::bf16::from_f32(value)
    }
}

/// Room for one run's rows and sequences.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Rows of a run, at most.
    pub rows: usize,
    /// Sequences of a run, at most: the rows that are scored.
    pub sequences: usize,
    /// Blocks of keys and values.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
}

/// A policy on a device. `T` is what it computes in.
pub struct DeviceRunner<D: Device, T: Activation> {
    work: Work<T>,
    config: Config,
    room: Room,
    blocks: Vec<[Buffer<T>; 2]>,
    inputs: Inputs,
    /// Bound to the session, and held for it.
    _factors: Vec<Buffer<T>>,
    recordings: Recordings<D::Recording>,
    /// Behind the buffers, which are its memory.
    device: D,
}

/// Bytes of the arena that a runner takes: keys and values, head, hidden rows, logits, adapters, the small inputs, what is
/// asked of the sampler, and what products take for themselves.
pub fn arena_bytes<T: Activation>(config: &Config, adapters: &Adapters, room: &Room) -> u64 {
    let size = size_of::<T>() as u64;
    let block = (room.block_size * config.num_kv_heads * config.head_dim) as u64 * size;
    let cache = 2 * config.num_layers as u64 * room.blocks as u64 * block;
    let head = (config.vocab_size * config.hidden_size) as u64 * size;
    let hidden = (room.sequences * config.hidden_size) as u64 * size;
    // Every buffer begins on a line of its own and may have a margin behind it.
    let buffers = 2 * config.num_layers as u64 + 7;
    PRODUCT_WORKSPACE
        + cache
        + head
        + hidden
        + LOGIT_BYTES.max(4 * config.vocab_size) as u64
        + adapters.bytes::<T>(config)
        + Inputs::bytes(room, config.max_positions)
        + DeviceSampler::bytes(room.sequences)
        + buffers * 1024
}

impl<D: Device, T: Activation> DeviceRunner<D, T> {
    /// Opens a session over the weights, takes the arena that `room` asks for, and loads the head and the adapters into it.
    /// `room` is decided when ONNX Runtime has taken what it needs for the weights.
    ///
    /// # Errors
    /// 69 without a library or memory; files that are missing, damaged or of a kind that is not implemented.
    pub fn open(
        config: Config,
        weights: &Weights,
        adapters: &Adapters,
        mut device: D,
        provider: Provider,
        room: impl FnOnce(&D) -> Result<Room>,
    ) -> Result<Self> {
        let graph = graph::paged_decoder(&config, weights, T::ARITHMETIC, adapters.stack())?;
        let mut session = Session::open(&graph, weights.folder()?, provider)?;
        let room = room(&device)?;
        device.reserve(arena_bytes::<T>(&config, adapters, &room))?;
        let shape = [room.blocks, room.block_size, config.num_kv_heads, config.head_dim];
        let mut blocks = Vec::with_capacity(config.num_layers);
        for layer in 0..config.num_layers {
            let sides = [(); 2].map(|()| device.allocate::<T>(shape.iter().product()));
            let [keys, values] = sides;
            let sides = [keys?, values?];
            for (name, buffer) in ["key", "value"].into_iter().zip(&sides) {
                session.input::<T>(&format!("{name}_cache.{layer}"), buffer.address(), &shape)?;
                session.output::<T>(&format!("{name}_cache_out.{layer}"), buffer.address(), &shape)?;
                device.clear(buffer.all())?;
            }
            blocks.push(sides);
        }
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let head = device.allocate::<T>(vocabulary * hidden)?;
        let rows: Vec<T> = weights.to_f32(config.head_name())?.into_iter().map(T::round).collect();
        device.upload(&rows, head.all())?;
        let adapted = !adapters.stack().is_empty();
        Ok(DeviceRunner {
            _factors: adapters.upload(&config, &mut device, &mut session)?,
            inputs: Inputs::new(&mut device, &room, config.max_positions, adapted)?,
            work: Work {
                head,
                hidden: device.allocate(room.sequences * hidden)?,
                logits: device.allocate(logit_rows(vocabulary) * vocabulary)?,
                requests: Vec::new(),
                sampler: DeviceSampler::new(&mut device, room.sequences)?,
                sizes: [vocabulary, hidden],
                session,
            },
            recordings: Recordings::new(),
            config,
            room,
            blocks,
            device,
        })
    }

    /// Where it runs.
    #[cfg(test)]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Copies the blocks in which sequences part.
    fn copy_blocks(&mut self, batch: &Batch) -> Result<()> {
        let size = self.room.block_size * self.config.num_kv_heads * self.config.head_dim;
        for copy in &batch.copies {
            let (from, to) = (copy.from as usize * size, copy.to as usize * size);
            for buffer in self.blocks.iter().flatten() {
                self.device.copy(buffer.slice(from..from + size), buffer.slice(to..to + size))?;
            }
        }
        Ok(())
    }

    /// Runs what was uploaded.
    fn run_once(&mut self, form: &Form, count: usize) -> Result<Vec<SampledToken>> {
        self.work.bind(&mut self.inputs, form)?;
        self.work.submit(&mut self.device, form)?;
        self.work.sampler.answers(&mut self.device, count)
    }

    /// Records the run that was just done and gave `draws`, if repeating it gives them again.
    ///
    /// # Errors
    /// What is recorded cannot be had, or does something else.
    fn record(&mut self, form: &Form, draws: &[SampledToken]) -> Result<()> {
        let work = &mut self.work;
        let Some(recording) = self.device.record(|device| work.submit(device, form))? else {
            self.recordings.give_up();
            return Ok(());
        };
        self.work.forget(&mut self.device)?;
        self.device.repeat(&recording)?;
        let again = self.work.sampler.answers(&mut self.device, draws.len())?;
        let bits = |draw: &SampledToken| (draw.id, draw.logprob.to_bits());
        if !again.iter().map(bits).eq(draws.iter().map(bits)) {
            return Err(Failure::work("what was recorded does not repeat what was run"));
        }
        self.recordings.keep(*form, recording);
        Ok(())
    }
}

impl<D: Device, T: Activation> Runner for DeviceRunner<D, T> {
    fn run(&mut self, batch: &Batch) -> Result<Vec<SampledToken>> {
        self.copy_blocks(batch)?;
        let form = Form::of(batch, &self.room, self.config.max_positions);
        self.inputs.upload(&mut self.device, batch, &form)?;
        self.work.ask(&mut self.device, &batch.requests, &form)?;
        let count = batch.requests.len();
        match self.recordings.step(&form) {
            Step::Repeat(recording) => {
                self.device.repeat(recording)?;
                self.work.sampler.answers(&mut self.device, count)
            }
            Step::Run => self.run_once(&form, count),
            Step::Record => {
                let draws = self.run_once(&form, count)?;
                if let Err(failure) = self.record(&form, &draws) {
                    self.recordings.give_up();
                    let cause = failure.message;
                    stage::note(
                        "rollout",
                        format!("decoding on this device is slower than it could be: {cause}"),
                    );
                }
                Ok(draws)
            }
        }
    }
}
