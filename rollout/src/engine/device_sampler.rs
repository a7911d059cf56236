//! Sampling where the logits are: only requests, tokens and log-probabilities cross the bus.
//!
//! The kernel is the twin of [`super::sampler`] and gives the same tokens from the same logits.

use device::{Argument, Buffer, Device, Shape};
use record::failure::{Failure, Result};
use record::philox::Stream;

use super::job::SamplingParams;
use super::sampler::Draw;
use crate::kernels;

/// Words of a request, as the kernel reads them.
const REQUEST_WORDS: usize = 12;
/// Threads of a block: one row.
const THREADS: u32 = 512;
/// Logits that the kernel sums together, and keeps the sum of in shared memory.
const SUMMED: usize = 64;

/// What is wanted of one row of logits.
#[derive(Debug, Clone, Copy)]
pub enum Wanted {
    /// A token, drawn by this stream's number at this position; the likeliest under greedy sampling.
    Draw(Stream, u64),
    /// The log-probability of this token.
    Score(u32),
}

/// Draws tokens from rows of logits on a device.
#[derive(Debug, Default)]
pub struct DeviceSampler {
    requests: Option<Buffer<u32>>,
    answers: Option<Buffer<u32>>,
    words: Vec<u32>,
}

impl DeviceSampler {
    /// A sampler without memory of its own yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of device memory that so many rows take.
    pub fn bytes(rows: usize) -> usize {
        rows * (REQUEST_WORDS + 2) * size_of::<u32>()
    }

    /// A token and its log-probability for each row of `logits` `[rows, stride]` f32, of which the first `vocabulary`
    /// of each row count.
    ///
    /// # Errors
    /// Logits that are not numbers; a device that fails or lacks memory.
    pub fn sample<D: Device>(
        &mut self,
        device: &mut D,
        logits: Argument<'_>,
        (vocabulary, stride): (usize, usize),
        wanted: &[(SamplingParams, Wanted)],
    ) -> Result<Vec<Draw>> {
        let rows = wanted.len();
        if rows == 0 {
            return Ok(Vec::new());
        }
        self.words.clear();
        self.words.extend(wanted.iter().flat_map(|(sampling, wanted)| request(sampling, *wanted)));
        let requests = room(device, &mut self.requests, rows * REQUEST_WORDS)?;
        let answers = room(device, &mut self.answers, rows * 2)?;
        device.upload(&self.words, requests.slice(..self.words.len()))?;
        let shape =
            Shape::rows(rows as u32, THREADS).shared((vocabulary.div_ceil(SUMMED) * size_of::<f32>()) as u32);
        let arguments =
            [answers.into(), logits, requests.into(), (vocabulary as i32).into(), (stride as u64).into()];
        device.launch(&kernels::SAMPLE_ROWS, shape, &arguments)?;
        let mut words = vec![0u32; rows * 2];
        device.download(answers.slice(..rows * 2), &mut words)?;
        words
            .chunks_exact(2)
            .map(|answer| match (answer[0] as usize) < vocabulary {
                true => Ok(Draw { id: answer[0], logprob: f32::from_bits(answer[1]) }),
                false => Err(super::sampler::not_numbers()),
            })
            .collect()
    }
}

/// A request in words; `kernels/sampler.cu` says which is which.
fn request(sampling: &SamplingParams, wanted: Wanted) -> [u32; REQUEST_WORDS] {
    let temperature = if sampling.greedy { 1.0 } else { sampling.temperature };
    let mut words = [0; REQUEST_WORDS];
    match wanted {
        Wanted::Draw(stream, position) => {
            let (key, prefix) = stream.key();
            words[0] = u32::from(sampling.greedy);
            words[2..6].copy_from_slice(&[key[0], key[1], prefix[0], prefix[1]]);
            words[6..8].copy_from_slice(&[position as u32, (position >> 32) as u32]);
        }
        Wanted::Score(token) => words[..2].copy_from_slice(&[2, token]),
    }
    words[8..11].copy_from_slice(&[temperature.to_bits(), sampling.top_p.to_bits(), sampling.top_k]);
    words
}

fn room<'a, D: Device>(
    device: &mut D,
    slot: &'a mut Option<Buffer<u32>>,
    length: usize,
) -> Result<&'a Buffer<u32>> {
    if slot.as_ref().is_none_or(|buffer| buffer.len() < length) {
        *slot = None;
        *slot = Some(device.allocate(length)?);
    }
    slot.as_ref().ok_or_else(|| Failure::work("sampler: no memory"))
}
