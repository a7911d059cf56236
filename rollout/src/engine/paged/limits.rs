//! What one engine may hold, and which groups it can never take.

use crate::engine::request::Request;
use record::failure::{Failure, Result};

/// What a scheduler may do.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Sequences in one run, at most.
    pub rows: usize,
    /// Prompt tokens in one run, at most.
    pub prompt_tokens: usize,
    /// Blocks of keys and values.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Positions that the model has.
    pub positions: usize,
    /// Tokens that the model has.
    pub vocabulary: usize,
    /// Tokens that end a completion.
    pub stop_ids: Vec<u32>,
}

impl Limits {
    /// Whether a group can be generated.
    ///
    /// # Errors
    /// An empty prompt, no branch, no token to generate, a token outside the vocabulary, more tokens than the model
    /// has positions for or than the cache can ever hold, or sampling settings without a meaning.
    pub fn check(&self, request: &Request) -> Result<()> {
        request.sampling.check()?;
        let (prompt, branches) = (request.prompt.len(), request.streams.len());
        if branches == 0 || request.max_tokens == 0 {
            return Err(Failure::usage("a group needs at least one branch and one token to generate"));
        }
        if prompt == 0 {
            return Err(Failure::data("the prompt has no tokens"));
        }
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= self.vocabulary) {
            return Err(Failure::data(format!("token {id} is not among the model's {}", self.vocabulary)));
        }
        let (more, positions) = (request.max_tokens, self.positions);
        if prompt + more > positions {
            let message = format!(
                "a prompt of {prompt} tokens and {more} more do not fit the model's {positions} positions"
            );
            return Err(Failure::data(message).hint("ask for fewer tokens or give a shorter prompt"));
        }
        let wanted = self.most_blocks(prompt, more, branches);
        if wanted > self.blocks || branches > self.rows {
            let message = format!(
                "a group of {branches} branches with up to {} tokens each needs {wanted} blocks of keys and values and \
                 {branches} rows, and there are {} and {}",
                prompt + more,
                self.blocks,
                self.rows
            );
            return Err(
                Failure::data(message).hint("fewer branches, fewer tokens, or a device with more memory")
            );
        }
        Ok(())
    }

    /// Blocks that a group needs at most: those of its prompt, and for each branch what comes after the prompt's
    /// whole blocks.
    pub fn most_blocks(&self, prompt: usize, more: usize, branches: usize) -> usize {
        let end = (prompt + more - 1).div_ceil(self.block_size);
        prompt.div_ceil(self.block_size) + branches * (end - prompt / self.block_size)
    }
}
