//! The small inputs of a run: tokens, lengths, tables. They cross the bus together, in one copy.

use super::batch::Batch;
use super::runner::Room;
use super::session::Session;
use device::{Buffer, Device};
use record::failure::Result;

/// Words that begin a line of 256 bytes: every input starts at one.
const LINE: usize = 64;

/// The small inputs on the device.
pub struct Inputs {
    words: Vec<u32>,
    buffer: Buffer<u32>,
    /// Bounds on lengths, which the attention reads in plain memory.
    bounds: [i32; 3],
    /// Whether the graph takes each row's adapter.
    adapted: bool,
}

impl Inputs {
    /// Room for the largest run of a model with so many positions, with adapters or without.
    ///
    /// # Errors
    /// 69 where the device's arena has no room.
    pub fn new<D: Device>(device: &mut D, room: &Room, positions: usize, adapted: bool) -> Result<Inputs> {
        let most = most_words(room, positions);
        let (words, buffer) = (Vec::with_capacity(most), device.allocate(most)?);
        Ok(Inputs { words, buffer, bounds: [0; 3], adapted })
    }

    /// Bytes of device memory for the largest run.
    pub fn bytes(room: &Room, positions: usize) -> u64 {
        (most_words(room, positions) * size_of::<u32>()) as u64
    }

    /// Copies a run's inputs to the device and binds them.
    ///
    /// # Errors
    /// A device that fails; 1 where ONNX Runtime refuses.
    pub fn bind<D: Device>(&mut self, device: &mut D, session: &mut Session, batch: &Batch) -> Result<()> {
        let (rows, sequences, wanted) = (batch.ids.len(), batch.sequences(), batch.wanted.len());
        let (table, width) = batch.block_table();
        self.words.clear();
        let ids = self.add(batch.ids.iter().flat_map(|&id| halves(id)));
        let scored = self.add(batch.wanted.iter().flat_map(|&row| halves(row)));
        let cumulative = self.add(words(&batch.cumulative));
        let past = self.add(words(&batch.past));
        let slots = self.add(words(&batch.slots));
        let table = self.add(words(&table));
        let adapters = self.adapted.then(|| self.add(words(&batch.adapters)));
        device.upload(&self.words, self.buffer.slice(..self.words.len()))?;
        session.input::<i64>("input_ids", ids, &[rows])?;
        session.input::<i64>("last_idx", scored, &[wanted])?;
        session.input::<i32>("cumulative_sequence_length", cumulative, &[sequences + 1])?;
        session.input::<i32>("past_seqlens", past, &[sequences])?;
        session.input::<i32>("slot_mapping", slots, &[rows])?;
        session.input::<i32>("block_table", table, &[sequences, width])?;
        if let Some(adapters) = adapters {
            session.input::<i32>("adapter", adapters, &[rows])?;
        }
        // The longest is known exactly: it bounds itself from both sides.
        self.bounds = [batch.longest_new as i32, batch.longest as i32, batch.longest as i32];
        session.plain_input("attention_metadata", &self.bounds[..], &[3])
    }

    /// Adds an input and gives its address on the device.
    fn add(&mut self, input: impl Iterator<Item = u32>) -> u64 {
        self.words.resize(self.words.len().next_multiple_of(LINE), 0);
        let begin = self.words.len();
        self.words.extend(input);
        self.buffer.address() + (begin * size_of::<u32>()) as u64
    }
}

/// Words of the largest run's inputs, each rounded up to whole lines.
fn most_words(room: &Room, positions: usize) -> usize {
    let (rows, sequences) = (room.rows, room.sequences);
    let table = sequences * positions.div_ceil(room.block_size);
    let inputs = [2 * rows, 2 * sequences, sequences + 1, sequences, rows, table, rows];
    inputs.map(|words| words.next_multiple_of(LINE)).iter().sum()
}

/// A number of 64 bits as the device has it in memory.
fn halves(number: i64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

fn words(numbers: &[i32]) -> impl Iterator<Item = u32> {
    numbers.iter().map(|&number| number as u32)
}
