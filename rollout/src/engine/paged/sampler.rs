//! Sampling where the logits are: only requests, tokens and log-probabilities cross the bus.
//!
//! The kernel is the twin of [`crate::engine::sampler`] and gives the same tokens from the same logits. It runs in the
//! stream in which the logits were computed, so nobody waits for them: the first to wait is [`DeviceSampler::answers`].

use std::ops::Range;

use device::{Argument, Buffer, Device, Shape};
use record::failure::{Failure, Result};

use super::batch::SampleRequest;
use crate::engine::branch::NextToken;
use crate::engine::sampler::{SampledToken, not_numbers};
use crate::kernels;

/// Words of a request, as the kernel reads them.
const REQUEST_WORDS: usize = 12;
/// Words of an answer: a token and the bits of its log-probability.
const ANSWER_WORDS: usize = 2;
/// Threads of a block: one token.
const THREADS: u32 = 512;
/// Logits that the kernel sums together and keeps the sum of in shared memory, such sums that it sums again, and of
/// those at most.
const SUMMED: usize = 64;
const CHUNK: usize = 64;
const MOST_CHUNKS: usize = 384;

/// Draws tokens from rows of logits on a device.
#[derive(Debug)]
pub struct DeviceSampler {
    requests: Buffer<u32>,
    answers: Buffer<u32>,
    words: Vec<u32>,
}

impl DeviceSampler {
    /// A sampler for up to so many tokens at a time.
    ///
    /// # Errors
    /// 69 where the device's arena has no room.
    pub fn new<D: Device>(device: &mut D, tokens: usize) -> Result<Self> {
        Ok(DeviceSampler {
            requests: device.allocate(tokens * REQUEST_WORDS)?,
            answers: device.allocate(tokens * ANSWER_WORDS)?,
            words: Vec::new(),
        })
    }

    /// Bytes of device memory for so many tokens.
    pub fn bytes(tokens: usize) -> u64 {
        (tokens * (REQUEST_WORDS + ANSWER_WORDS) * size_of::<u32>()) as u64
    }

    /// Tells the device which tokens are wanted. Logits come in pieces of `rows` rows, and a request's row is counted
    /// from the beginning of its piece.
    ///
    /// # Errors
    /// A device that fails.
    pub fn ask<D: Device>(&mut self, device: &mut D, requests: &[SampleRequest], rows: usize) -> Result<()> {
        self.words.clear();
        self.words.extend(requests.iter().flat_map(|request| words(request, rows)));
        device.upload(&self.words, self.requests.slice(..self.words.len()))
    }

    /// Chooses the tokens of the requests `which`, whose rows are all in `logits` `[rows, stride]` f32, of which the first
    /// `vocabulary` of each row count.
    ///
    /// # Errors
    /// A device that fails.
    pub fn choose<D: Device>(
        &self,
        device: &mut D,
        logits: Argument<'_>,
        (vocabulary, stride): (usize, usize),
        which: Range<usize>,
    ) -> Result<()> {
        if which.is_empty() {
            return Ok(());
        }
        let chunks = vocabulary.div_ceil(SUMMED * CHUNK);
        if chunks > MOST_CHUNKS {
            let most = MOST_CHUNKS * CHUNK * SUMMED;
            return Err(Failure::unavailable(format!("device: {vocabulary} logits are more than {most}")));
        }
        let shared = chunks * CHUNK * size_of::<f32>();
        let shape = Shape::rows(which.len() as u32, THREADS).shared(shared as u32);
        let answers = self.answers.slice(which.start * ANSWER_WORDS..which.end * ANSWER_WORDS);
        let requests = self.requests.slice(which.start * REQUEST_WORDS..which.end * REQUEST_WORDS);
        let arguments =
            [answers.into(), logits, requests.into(), (vocabulary as i32).into(), (stride as u64).into()];
        device.launch(&kernels::SAMPLE_ROWS, shape, &arguments)
    }

    /// Forgets what was chosen.
    ///
    /// # Errors
    /// A device that fails.
    pub fn forget<D: Device>(&self, device: &mut D) -> Result<()> {
        device.clear(self.answers.all())
    }

    /// Waits for the first `count` tokens and their log-probabilities.
    ///
    /// # Errors
    /// Logits that are not numbers; a device that fails.
    pub fn answers<D: Device>(&self, device: &mut D, count: usize) -> Result<Vec<SampledToken>> {
        let mut words = vec![0u32; count * ANSWER_WORDS];
        device.download(self.answers.slice(..words.len()), &mut words)?;
        words
            .chunks_exact(ANSWER_WORDS)
            .map(|answer| match answer[0] {
                u32::MAX => Err(not_numbers()),
                id => Ok(SampledToken { id, logprob: f32::from_bits(answer[1]) }),
            })
            .collect()
    }
}

/// A request in words; `kernels/sampler.cu` says which is which.
fn words(SampleRequest { row, sampling, want }: &SampleRequest, rows: usize) -> [u32; REQUEST_WORDS] {
    let temperature = if sampling.greedy { 1.0 } else { sampling.temperature };
    let mut words = [0; REQUEST_WORDS];
    match *want {
        NextToken::Sample(stream, position) => {
            let (key, prefix) = stream.key();
            words[0] = u32::from(sampling.greedy);
            words[2..6].copy_from_slice(&[key[0], key[1], prefix[0], prefix[1]]);
            words[6..8].copy_from_slice(&[position as u32, (position >> 32) as u32]);
        }
        NextToken::Given(token) => words[..2].copy_from_slice(&[2, token]),
    }
    let rest = [temperature.to_bits(), sampling.top_p.to_bits(), sampling.top_k, (row % rows) as u32];
    words[8..].copy_from_slice(&rest);
    words
}
