//! The small inputs of a run: tokens, lengths, block tables. They cross the bus together, in one copy.

use super::config::{Activation, Capacity};
use super::prefill_attention::{PrefillKernel, most_tiles, query_tiles};
use super::sessions::{Attention, Sessions};
use super::shape::BatchShape;
use super::tasks::tasks;
use crate::engine::batch::Batch;
use device::{Buffer, Device};
use policy::config::Config;
use record::failure::Result;

/// Words that begin a line of 256 bytes: every input starts at one.
const LINE: usize = 64;
/// The slot of a row whose key and value are not stored.
const NOWHERE: i32 = -1;

/// The small inputs on the device.
pub struct Inputs {
    words: Vec<u32>,
    buffer: Buffer<u32>,
    addresses: Addresses,
    /// Bounds on lengths, which the attention reads in host memory.
    bounds: [i32; 3],
    /// True if the graph takes each row's adapter.
    adapted: bool,
    block_size: usize,
    /// Query heads for each key head.
    share: usize,
    /// Rows of a query tile at most, and the tiles of the last run.
    tile_rows: usize,
    tiles: usize,
}

/// Where each input is on the device, which follows from the shape alone.
#[derive(Debug, Clone, Copy, Default)]
struct Addresses {
    ids: u64,
    logit_rows: u64,
    cumulative: u64,
    past: u64,
    slots: u64,
    positions: u64,
    table: u64,
    adapters: u64,
    task_count: u64,
    /// The last one, because their number varies.
    tasks: u64,
    query_tiles: u64,
}

impl Inputs {
    /// Memory for the largest run of a model, with adapters or without.
    ///
    /// # Errors
    /// 69 where the device's arena is too small.
    pub fn new<D: Device, T: Activation>(
        device: &mut D,
        capacity: &Capacity,
        config: &Config,
        adapted: bool,
    ) -> Result<Inputs> {
        let most = most_words(capacity, config.max_positions);
        let (words, buffer) = (Vec::with_capacity(most), device.allocate(most)?);
        let (block_size, share) = (capacity.block_size, config.num_heads / config.num_kv_heads);
        let addresses = Addresses::default();
        let tile_rows = PrefillKernel::of::<D, T>(device, config.head_dim, block_size).rows;
        let bounds = [0; 3];
        Ok(Inputs { words, buffer, addresses, bounds, adapted, block_size, share, tile_rows, tiles: 0 })
    }

    /// Bytes of device memory for the largest run.
    pub fn bytes(capacity: &Capacity, positions: usize) -> u64 {
        (most_words(capacity, positions) * size_of::<u32>()) as u64
    }

    /// Uploads a run's inputs, padded to its shape with rows of token 0, each a separate sequence that stores
    /// nothing, and with what its attention needs.
    pub fn upload<D: Device>(
        &mut self,
        device: &mut D,
        batch: &Batch,
        shape: &BatchShape,
        attention: Attention,
    ) -> Result<()> {
        let padding = (batch.logit_rows.len()..shape.logit_rows).map(|row| row as i64);
        let more_rows = (batch.sequences()..shape.sequences).map(|row| row as i32 + 1);
        self.words.clear();
        self.addresses = Addresses {
            ids: self.add(batch.ids.iter().flat_map(|&id| halves(id)), 2 * shape.rows, 0),
            logit_rows: self.add(
                batch.logit_rows.iter().copied().chain(padding).flat_map(halves),
                2 * shape.logit_rows,
                0,
            ),
            cumulative: self.add(
                batch.cumulative.iter().copied().chain(more_rows).map(word),
                shape.sequences + 1,
                0,
            ),
            past: self.add(batch.past.iter().copied().map(word), shape.sequences, 0),
            slots: self.add(batch.slots.iter().copied().map(word), shape.rows, word(NOWHERE)),
            positions: self.add(positions(batch).map(word), shape.rows, 0),
            table: self.add(batch.block_table(shape.width).map(word), shape.sequences * shape.width, 0),
            adapters: match self.adapted {
                true => self.add(batch.adapters.iter().copied().map(word), shape.rows, 0),
                false => 0,
            },
            ..Addresses::default()
        };
        if attention == Attention::Prefill {
            let tiles = query_tiles(batch, self.tile_rows);
            self.tiles = tiles.len();
            self.addresses.query_tiles =
                self.add(tiles.iter().flatten().copied().map(word), 4 * tiles.len(), 0);
        }
        if attention == Attention::Decode {
            let tasks = tasks(batch, shape.rows, self.block_size, self.share);
            self.addresses.task_count = self.add([tasks.len() as u32].into_iter(), 1, 0);
            self.addresses.tasks = self.add(tasks.iter().flatten().copied().map(word), 4 * tasks.len(), 0);
        }
        device.upload(&self.words, self.buffer.slice(..self.words.len()))
    }

    /// Binds the last uploaded inputs, which have the same shape.
    pub fn bind(&mut self, sessions: &mut Sessions, shape: &BatchShape) -> Result<()> {
        let BatchShape { rows, sequences, logit_rows, width, .. } = *shape;
        let attention = sessions.attention();
        let session = sessions.selected();
        session.input::<i64>("input_ids", self.addresses.ids, &[rows])?;
        session.input::<i32>("slot_mapping", self.addresses.slots, &[rows])?;
        session.input::<i32>("positions", self.addresses.positions, &[rows])?;
        if self.adapted {
            session.input::<i32>("adapter", self.addresses.adapters, &[rows])?;
        }
        if attention == Attention::Decode {
            session.input::<i32>("task_count", self.addresses.task_count, &[1])?;
            return session.input::<i32>("tasks", self.addresses.tasks, &[rows * width, 4]);
        }
        session.input::<i64>("last_idx", self.addresses.logit_rows, &[logit_rows])?;
        session.input::<i32>("block_table", self.addresses.table, &[sequences, width])?;
        if attention == Attention::Prefill {
            return session.input::<i32>("query_tiles", self.addresses.query_tiles, &[self.tiles, 4]);
        }
        session.input::<i32>("cumulative_sequence_length", self.addresses.cumulative, &[sequences + 1])?;
        session.input::<i32>("past_seqlens", self.addresses.past, &[sequences])?;
        self.bounds = shape.bounds;
        session.host_input("attention_metadata", &self.bounds[..], &[3])
    }

    /// Adds an input of `count` words, padded with `fill`; its address on the device.
    fn add(&mut self, input: impl Iterator<Item = u32>, count: usize, fill: u32) -> u64 {
        self.words.resize(self.words.len().next_multiple_of(LINE), 0);
        let begin = self.words.len();
        self.words.extend(input);
        self.words.resize(begin + count, fill);
        self.buffer.address() + (begin * size_of::<u32>()) as u64
    }
}

/// Words of the largest run's inputs, each rounded up to whole lines.
fn most_words(capacity: &Capacity, positions: usize) -> usize {
    let (rows, sequences) = (capacity.rows, capacity.sequences);
    let table = sequences * positions.div_ceil(capacity.block_size);
    // A run has tasks or tiles.
    let tasks = 4 * table.max(most_tiles(rows, sequences));
    let inputs = [2 * rows, 2 * sequences, sequences + 1, sequences, rows, rows, table, rows, 1, tasks];
    inputs.map(|words| words.next_multiple_of(LINE)).iter().sum()
}

/// Each row's position in its sequence.
fn positions(batch: &Batch) -> impl Iterator<Item = i32> {
    let rows = batch.cumulative.windows(2).map(|ends| ends[1] - ends[0]);
    rows.zip(&batch.past).flat_map(|(rows, &past)| past..past + rows)
}

/// A 64-bit number as it is in memory.
fn halves(number: i64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

fn word(number: i32) -> u32 {
    number as u32
}
