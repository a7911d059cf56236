//! Sampling on the device: only requests, tokens and log-probabilities cross the bus.
//!
//! The kernel implements the same algorithm as [`crate::engine::cpu::sampler`] and samples the same tokens
//! from the same logits. It runs in the stream that computed the logits, so nothing waits for them before
//! [`DeviceSampler::download`].

use std::ops::Range;

use device::{Argument, Buffer, Device, Shape};
use record::failure::{Failure, Result};

use crate::engine::batch::{NextToken, SampleRequest};
use crate::engine::cpu::sampler::not_numbers;
use crate::engine::request::{SampledToken, SamplingParams};
use crate::kernels;

/// Words of a request, as the kernel reads them.
const REQUEST_WORDS: usize = 13;
/// Words of a sampled token: its id and the bits of its log-probability.
const TOKEN_WORDS: usize = 2;
/// Threads of a CUDA block that sums a chunk; must match the kernel.
const SUMMING_THREADS: u32 = 256;
/// Threads of a CUDA block that samples one token.
const THREADS: u32 = 512;
/// Must match the kernel: logits per partial sum in shared memory, partial sums per chunk, and the
/// maximum number of chunks.
const SUMMED: usize = 64;
const CHUNK: usize = 64;
const MOST_CHUNKS: usize = 384;

/// Samples tokens from rows of logits on a device.
#[derive(Debug)]
pub struct DeviceSampler {
    requests: Buffer<u32>,
    sampled: Buffer<u32>,
    /// Output of the first kernel, input of the second.
    sums: Buffer<f32>,
    words: Vec<u32>,
}

/// The number of chunks of a vocabulary, and of sums per row: one per chunk, and one per block of logits.
fn sums(vocabulary: usize) -> (usize, usize) {
    let chunks = vocabulary.div_ceil(SUMMED * CHUNK);
    (chunks, chunks + vocabulary.div_ceil(SUMMED))
}

impl DeviceSampler {
    /// A sampler for up to `tokens` tokens of a vocabulary at a time.
    ///
    /// # Errors
    /// 69 where the device's arena is too small.
    pub fn new<D: Device>(device: &mut D, tokens: usize, vocabulary: usize) -> Result<Self> {
        Ok(DeviceSampler {
            requests: device.allocate(tokens * REQUEST_WORDS)?,
            sampled: device.allocate(tokens * TOKEN_WORDS)?,
            sums: device.allocate(tokens * sums(vocabulary).1)?,
            words: Vec::new(),
        })
    }

    /// Bytes of device memory for `tokens` tokens of a vocabulary.
    pub fn bytes(tokens: usize, vocabulary: usize) -> u64 {
        (tokens * (REQUEST_WORDS + TOKEN_WORDS + sums(vocabulary).1) * size_of::<u32>()) as u64
    }

    /// Uploads sample requests. Logits come in chunks of `rows` rows; a request's row
    /// is relative to its chunk.
    pub fn upload<D: Device>(
        &mut self,
        device: &mut D,
        requests: &[SampleRequest],
        rows: usize,
    ) -> Result<()> {
        self.words.clear();
        self.words.extend(requests.iter().flat_map(|request| words(request, rows)));
        device.upload(&self.words, self.requests.slice(..self.words.len()))
    }

    /// Samples tokens for the requests `which`. Their rows must all be in `logits`, f32 `[rows, stride]`,
    /// with `vocabulary` valid values in each row.
    pub fn sample<D: Device>(
        &self,
        device: &mut D,
        logits: Argument<'_>,
        (vocabulary, stride): (usize, usize),
        which: Range<usize>,
    ) -> Result<()> {
        if which.is_empty() {
            return Ok(());
        }
        let (chunks, summed) = sums(vocabulary);
        if chunks > MOST_CHUNKS {
            let most = MOST_CHUNKS * CHUNK * SUMMED;
            return Err(Failure::unavailable(format!("device: {vocabulary} logits are more than {most}")));
        }
        let shared = chunks * CHUNK * size_of::<f32>();
        let shape = Shape::rows(which.len() as u32, THREADS).shared(shared as u32);
        let sampled = self.sampled.slice(which.start * TOKEN_WORDS..which.end * TOKEN_WORDS);
        let requests = self.requests.slice(which.start * REQUEST_WORDS..which.end * REQUEST_WORDS);
        let sums = self.sums.slice(which.start * summed..which.end * summed);
        let sizes = [(vocabulary as i32).into(), (stride as u64).into()];
        let arguments = [sums.into(), logits, requests.into(), sizes[0], sizes[1]];
        let grid = [chunks as u32, which.len() as u32, 1];
        let chunked = Shape { grid, block: [SUMMING_THREADS, 1, 1], shared: 0 };
        device.launch(&kernels::SUM_LOGITS, chunked, &arguments)?;
        let arguments = [sampled.into(), logits, requests.into(), sums.into(), sizes[0], sizes[1]];
        device.launch(&kernels::SAMPLE_ROWS, shape, &arguments)
    }

    /// Clears the sampled tokens.
    pub fn clear<D: Device>(&self, device: &mut D) -> Result<()> {
        device.clear(self.sums.all())?;
        device.clear(self.sampled.all())
    }

    /// Waits for the first `count` tokens and downloads them.
    ///
    /// # Errors
    /// Logits that are not numbers; a device that fails.
    pub fn download<D: Device>(&self, device: &mut D, count: usize) -> Result<Vec<SampledToken>> {
        let mut words = vec![0u32; count * TOKEN_WORDS];
        device.download(self.sampled.slice(..words.len()), &mut words)?;
        words
            .chunks_exact(TOKEN_WORDS)
            .map(|token| match token[0] {
                u32::MAX => Err(not_numbers()),
                id => Ok(SampledToken { id, logprob: f32::from_bits(token[1]) }),
            })
            .collect()
    }
}

/// Encodes a request; `kernels/sampler.cu` defines the words.
fn words(SampleRequest { row, sampling, next }: &SampleRequest, rows: usize) -> [u32; REQUEST_WORDS] {
    let temperature = if sampling.greedy { 1.0 } else { sampling.temperature };
    let mut words = [0; REQUEST_WORDS];
    match *next {
        NextToken::Sample(stream, position) => {
            let (key, prefix) = stream.key();
            words[0] = u32::from(sampling.greedy);
            words[2..6].copy_from_slice(&[key[0], key[1], prefix[0], prefix[1]]);
            words[6..8].copy_from_slice(&[position as u32, (position >> 32) as u32]);
        }
        NextToken::Given(token) => words[..2].copy_from_slice(&[2, token]),
    }
    let SamplingParams { top_p, top_k, min_p, .. } = *sampling;
    let rest = [temperature.to_bits(), top_p.to_bits(), top_k, (row % rows) as u32, min_p.to_bits()];
    words[8..].copy_from_slice(&rest);
    words
}
