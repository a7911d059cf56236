//! The small inputs of a run: tokens, lengths, tables. They cross the bus together, in one copy.

use super::batch::Batch;
use super::form::Form;
use super::runner::Room;
use super::session::Session;
use device::{Buffer, Device};
use record::failure::Result;

/// Words that begin a line of 256 bytes: every input starts at one.
const LINE: usize = 64;
/// The slot of a row whose key and value are not stored.
const NOWHERE: i32 = -1;

/// The small inputs on the device.
pub struct Inputs {
    words: Vec<u32>,
    buffer: Buffer<u32>,
    /// Where each input is on the device.
    places: Places,
    /// Bounds on lengths, which the attention reads in plain memory.
    bounds: [i32; 3],
    /// Whether the graph takes each row's adapter.
    adapted: bool,
}

/// Addresses, which follow from the form alone.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    ids: u64,
    scored: u64,
    cumulative: u64,
    past: u64,
    slots: u64,
    table: u64,
    adapters: u64,
}

impl Inputs {
    /// Room for the largest run of a model with so many positions, with adapters or without.
    ///
    /// # Errors
    /// 69 where the device's arena has no room.
    pub fn new<D: Device>(device: &mut D, room: &Room, positions: usize, adapted: bool) -> Result<Inputs> {
        let most = most_words(room, positions);
        let (words, buffer) = (Vec::with_capacity(most), device.allocate(most)?);
        Ok(Inputs { words, buffer, places: Places::default(), bounds: [0; 3], adapted })
    }

    /// Bytes of device memory for the largest run.
    pub fn bytes(room: &Room, positions: usize) -> u64 {
        (most_words(room, positions) * size_of::<u32>()) as u64
    }

    /// Copies a run's inputs to the device, filled up to its form: rows of token 0, each a sequence of its own, which store
    /// nothing.
    ///
    /// # Errors
    /// A device that fails.
    pub fn upload<D: Device>(&mut self, device: &mut D, batch: &Batch, form: &Form) -> Result<()> {
        let more_wanted = (batch.wanted.len()..form.wanted).map(|row| row as i64);
        let more_rows = (batch.sequences()..form.sequences).map(|row| row as i32 + 1);
        self.words.clear();
        self.places = Places {
            ids: self.add(batch.ids.iter().flat_map(|&id| halves(id)), 2 * form.rows, 0),
            scored: self.add(
                batch.wanted.iter().copied().chain(more_wanted).flat_map(halves),
                2 * form.wanted,
                0,
            ),
            cumulative: self.add(
                batch.cumulative.iter().copied().chain(more_rows).map(word),
                form.sequences + 1,
                0,
            ),
            past: self.add(batch.past.iter().copied().map(word), form.sequences, 0),
            slots: self.add(batch.slots.iter().copied().map(word), form.rows, word(NOWHERE)),
            table: self.add(batch.block_table(form.width).map(word), form.sequences * form.width, 0),
            adapters: match self.adapted {
                true => self.add(batch.adapters.iter().copied().map(word), form.rows, 0),
                false => 0,
            },
        };
        device.upload(&self.words, self.buffer.slice(..self.words.len()))
    }

    /// Binds what was copied last, which is of the same form.
    ///
    /// # Errors
    /// 1 where ONNX Runtime refuses.
    pub fn bind(&mut self, session: &mut Session, form: &Form) -> Result<()> {
        let Form { rows, sequences, wanted, width, .. } = *form;
        session.input::<i64>("input_ids", self.places.ids, &[rows])?;
        session.input::<i64>("last_idx", self.places.scored, &[wanted])?;
        session.input::<i32>("cumulative_sequence_length", self.places.cumulative, &[sequences + 1])?;
        session.input::<i32>("past_seqlens", self.places.past, &[sequences])?;
        session.input::<i32>("slot_mapping", self.places.slots, &[rows])?;
        session.input::<i32>("block_table", self.places.table, &[sequences, width])?;
        if self.adapted {
            session.input::<i32>("adapter", self.places.adapters, &[rows])?;
        }
        self.bounds = form.bounds;
        session.plain_input("attention_metadata", &self.bounds[..], &[3])
    }

    /// Adds an input of so many words, the last of them `fill`, and gives its address on the device.
    fn add(&mut self, input: impl Iterator<Item = u32>, count: usize, fill: u32) -> u64 {
        self.words.resize(self.words.len().next_multiple_of(LINE), 0);
        let begin = self.words.len();
        self.words.extend(input);
        self.words.resize(begin + count, fill);
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

fn word(number: i32) -> u32 {
    number as u32
}
