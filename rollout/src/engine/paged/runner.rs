//! The model on a device: ONNX Runtime runs the decoder's graph over blocks in the device's memory, our own product
//! makes f32 logits of the hidden rows, and our own kernel chooses tokens from them. All of it is one sequence of work on
//! the device; what comes back to the processor is a token and a log-probability for each request.

use super::adapters::Adapters;
use super::batch::Batch;
use super::inputs::Inputs;
use super::sampler::DeviceSampler;
use super::scheduler::Runner;
use super::session::{Provider, Session};
use crate::engine::sampler::Draw;
use crate::engine::values;
use device::{Buffer, Device, Gemm, Operand, PRODUCT_WORKSPACE};
use policy::config::Config;
use policy::graph::{self, Arithmetic};
use policy::weights::Weights;
use record::failure::Result;

/// Logits that are held at a time.
const LOGIT_BYTES: usize = 128 << 20;

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
pub struct DeviceRunner<D, T: Activation> {
    session: Session,
    config: Config,
    room: Room,
    blocks: Vec<[Buffer<T>; 2]>,
    head: Buffer<T>,
    hidden: Buffer<T>,
    logits: Buffer<f32>,
    inputs: Inputs,
    /// Bound to the session, and held for it.
    _factors: Vec<Buffer<T>>,
    sampler: DeviceSampler,
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
        let head = device.allocate::<T>(config.vocab_size * config.hidden_size)?;
        let rows: Vec<T> = weights.to_f32(config.head_name())?.into_iter().map(T::round).collect();
        device.upload(&rows, head.all())?;
        let adapted = !adapters.stack().is_empty();
        Ok(DeviceRunner {
            _factors: adapters.upload(&config, &mut device, &mut session)?,
            hidden: device.allocate(room.sequences * config.hidden_size)?,
            logits: device.allocate(logit_rows(&config) * config.vocab_size)?,
            inputs: Inputs::new(&mut device, &room, config.max_positions, adapted)?,
            sampler: DeviceSampler::new(&mut device, room.sequences)?,
            session,
            config,
            room,
            blocks,
            head,
            device,
        })
    }

    /// Copies blocks, lays the rows out on the device and runs the graph: `hidden` then has the wanted rows.
    fn forward(&mut self, batch: &Batch) -> Result<()> {
        let size = self.room.block_size * self.config.num_kv_heads * self.config.head_dim;
        for copy in &batch.copies {
            let (from, to) = (copy.from as usize * size, copy.to as usize * size);
            for buffer in self.blocks.iter().flatten() {
                self.device.copy(buffer.slice(from..from + size), buffer.slice(to..to + size))?;
            }
        }
        self.inputs.bind(&mut self.device, &mut self.session, batch)?;
        let shape = [batch.wanted.len(), self.config.hidden_size];
        self.session.output::<T>("hidden", self.hidden.address(), &shape)?;
        self.session.run()
    }
}

/// Rows of logits that are held at a time.
fn logit_rows(config: &Config) -> usize {
    (LOGIT_BYTES / (size_of::<f32>() * config.vocab_size)).max(1)
}

impl<D: Device, T: Activation> Runner for DeviceRunner<D, T> {
    fn run(&mut self, batch: &Batch) -> Result<Vec<Draw>> {
        self.forward(batch)?;
        let (hidden, vocabulary) = (self.config.hidden_size, self.config.vocab_size);
        let most = logit_rows(&self.config);
        self.sampler.ask(&mut self.device, &batch.requests, most)?;
        let mut chosen = 0;
        for first in (0..batch.wanted.len()).step_by(most) {
            let rows = (batch.wanted.len() - first).min(most);
            self.device.gemm(&Gemm::new(
                Operand::new(self.hidden.slice(first * hidden..), hidden),
                Operand::new(&self.head, hidden).transposed(),
                Operand::new(&self.logits, vocabulary),
                [rows, vocabulary, hidden],
            ))?;
            let end = batch.requests.partition_point(|request| request.row < first + rows);
            let (logits, which) = ((&self.logits).into(), chosen..end);
            self.sampler.choose(&mut self.device, logits, (vocabulary, vocabulary), which)?;
            chosen = end;
        }
        self.sampler.answers(&mut self.device, chosen)
    }
}
