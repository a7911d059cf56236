//! One branch of a group: what it has generated, and where its next token comes from.

use super::request::Completion;
use super::sampler::SampledToken;
use record::philox::Stream;

/// Where a branch's tokens come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// Drawn with the branch's random numbers.
    Drawn(Stream),
    /// Given: the branch scores these tokens.
    Given(Vec<u32>),
}

/// How the next token is to be had from its logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NextToken {
    /// Drawn with the number that this stream has at this position; the likeliest under greedy sampling.
    Sample(Stream, u64),
    /// Given: only its log-probability is asked for.
    Given(u32),
}

/// A branch on its way.
#[derive(Debug)]
pub struct Branch {
    source: Source,
    completion: Completion,
    done: bool,
}

impl Branch {
    /// A branch without tokens.
    pub fn new(source: Source) -> Branch {
        Branch { source, completion: Completion::default(), done: false }
    }

    /// Tokens that it has.
    pub fn ids(&self) -> &[u32] {
        &self.completion.ids
    }

    /// Whether it needs no more tokens.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// How its next token is to be had.
    pub fn want(&self) -> NextToken {
        let position = self.completion.ids.len();
        match &self.source {
            Source::Drawn(stream) => NextToken::Sample(*stream, position as u64),
            Source::Given(ids) => NextToken::Given(ids[position]),
        }
    }

    /// Takes its next token; it is done after one of `stop` or `max_tokens` of them.
    pub fn take(&mut self, draw: SampledToken, stop: &[u32], max_tokens: usize) {
        let completion = &mut self.completion;
        completion.ids.push(draw.id);
        completion.logprobs.push(draw.logprob);
        self.done = match &self.source {
            Source::Drawn(_) => {
                completion.stopped = stop.contains(&draw.id);
                completion.stopped || completion.ids.len() == max_tokens
            }
            Source::Given(ids) => completion.ids.len() == ids.len(),
        };
    }

    /// What it generated.
    pub fn finish(self) -> Completion {
        self.completion
    }
}
