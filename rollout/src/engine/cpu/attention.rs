//! The attention of one layer over all rows of a batch, with prompts shared by the branches of a group.
//!
//! For each row: normalize and rotate query and key, store key and value in the sequence's block,
//! attend. A group's branches attend to the prompt's keys and values together, so these are read once
//! for any number of branches (as in Hydragen, arXiv 2402.05099, and cascade inference). Then each
//! branch attends to its suffix.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "rows, slots and blocks belong to a batch that fits, which `forward` requires"
)]

use super::context::ForwardContext;
use super::kernels::{KeyPass, Keys};
use super::kv::{BLOCK_SIZE, KvCache};
use super::rope::Rope;
use super::workspace::{MAX_ROWS, Workspace};
use crate::engine::batch::{Batch, GroupRows};
use gemm::Precision;
use half::bf16;
use policy::config::LARGEST_HEAD;

/// The two passes over keys and values, compiled for the type in which they are stored.
#[derive(Clone, Copy)]
pub struct Passes {
    /// [`super::kernels::score_keys`].
    pub score: KeyPass,
    /// [`super::kernels::add_values`].
    pub add: KeyPass,
}

/// Attributes of an attention node of the graph.
#[derive(Debug, Clone)]
pub struct Layer {
    /// The layer, from 0.
    pub index: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Added to the mean square in the norms of queries and keys.
    pub epsilon: f32,
    /// Factor of the scores.
    pub scale: f32,
    /// Number of tokens that a query may attend to, itself included; `None` for all earlier tokens.
    pub window: Option<usize>,
}

impl Layer {
    /// How many of the `visible` tokens, up to and including the query, its window hides; negative if
    /// the window has room left.
    fn hidden(&self, visible: usize) -> i64 {
        self.window.map_or(i64::MIN / 2, |window| visible as i64 - window as i64)
    }
}

/// The tensors of one call.
#[derive(Clone, Copy)]
pub struct Tensors {
    /// Queries, `heads * head_size` a row.
    pub query: *const f32,
    /// Keys, `kv_heads * head_size` a row.
    pub key: *const f32,
    /// Values, as the keys.
    pub value: *const f32,
    /// Distance between rows of queries, of keys and of values.
    pub width: usize,
    /// The result, `heads * head_size` a row.
    pub output: *mut f32,
}

/// One key/value head of one layer.
struct Head<'a> {
    layer: &'a Layer,
    /// Values of a head.
    width: usize,
    /// Weights of the norms of queries and keys; `None` if the family has no such norms.
    norms: Option<&'a [Vec<f32>; 2]>,
    number: usize,
    offset: usize,
    group: usize,
    tensors: Tensors,
    passes: Passes,
}

impl Head<'_> {
    /// A head of a row of queries, keys or values.
    unsafe fn of(&self, tensor: *const f32, row: usize, head: usize) -> &[f32] {
        std::slice::from_raw_parts(tensor.add(row * self.tensors.width + head * self.width), self.width)
    }

    #[allow(clippy::mut_from_ref, reason = "each is asked for once, of memory that is the operator's alone")]
    unsafe fn output(&self, row: usize, member: usize) -> &mut [f32] {
        let head = row * self.layer.heads + self.number * self.group + member;
        std::slice::from_raw_parts_mut(self.tensors.output.add(head * self.width), self.width)
    }

    /// The norm, if any, then the rotary embedding.
    fn rotate(&self, rope: &Rope, position: usize, norm: usize, head: &[f32], output: &mut [f32]) {
        let norm = self.norms.map_or(&[][..], |norms| &norms[norm]);
        let [cos, sin] = rope.at(self.layer.index, position);
        functional::rotate(head, norm, self.layer.epsilon, cos, sin, output);
    }

    /// Stores the key and value of `row`, at a position, in a slot.
    unsafe fn append(&self, kv: &KvCache, rope: &Rope, row: usize, slot: i32, position: usize) {
        let (block, token) = (slot as usize / BLOCK_SIZE, slot as usize % BLOCK_SIZE);
        let mut key = [0.0_f32; LARGEST_HEAD];
        let key = &mut key[..self.width];
        self.rotate(rope, position, 1, self.of(self.tensors.key, row, self.number), key);
        let block = kv.start(block as u32).add(self.offset);
        let value = self.of(self.tensors.value, row, self.number);
        match kv.layout().precision {
            Precision::Float32 => store::<f32>(block, token, key, value, |number| number),
            Precision::BFloat16 => store::<bf16>(block.cast(), token, key, value, round),
        }
    }

    /// Rotates the queries of `row` into workspace rows from `slot`.
    unsafe fn rotate_queries(&self, context: &mut ForwardContext, row: usize, position: usize, slot: usize) {
        for member in 0..self.group {
            let head = self.of(self.tensors.query, row, self.number * self.group + member);
            let output = context.work.query(slot + member);
            self.rotate(&context.rope, position, 0, head, output);
            output.iter_mut().for_each(|value| *value *= self.layer.scale);
        }
    }
}

/// The nearest bf16.
#[inline(always)]
fn round(number: f32) -> bf16 {
    bf16::from_bits((gemm::round(number).to_bits() >> 16) as u16)
}

/// Stores a key and a value as a token of a head's part of a block.
#[inline(always)]
unsafe fn store<K>(part: *mut K, token: usize, key: &[f32], value: &[f32], round: impl Fn(f32) -> K) {
    for (dimension, &number) in key.iter().enumerate() {
        part.add(dimension * BLOCK_SIZE + token).write(round(number));
    }
    let values = part.add((BLOCK_SIZE + token) * value.len());
    for (dimension, &number) in value.iter().enumerate() {
        values.add(dimension).write(round(number));
    }
}

/// Keys and values of a sequence that will be read soon.
#[derive(Clone, Copy)]
struct Prefetch<'a> {
    blocks: &'a [u32],
    tokens: usize,
    offset: usize,
}

impl Prefetch<'_> {
    fn list(&self, kv: &KvCache, work: &mut Workspace) {
        let layout = kv.layout();
        for (index, &block) in self.blocks.iter().enumerate().take(self.tokens.div_ceil(BLOCK_SIZE)) {
            let inside = (self.tokens - index * BLOCK_SIZE).min(BLOCK_SIZE);
            work.prefetcher.add(
                kv.start(block).wrapping_add(self.offset),
                layout.words((BLOCK_SIZE + inside) * layout.head_size),
            );
        }
    }
}

/// The prompt blocks that a group's branches share.
fn prefix_blocks<'a>(batch: &'a Batch, group: &GroupRows) -> &'a [u32] {
    &batch.blocks(group.sequences.start)[..group.prefix.div_ceil(BLOCK_SIZE)]
}

/// Number of scores for `tokens` tokens, in whole blocks.
fn padded(tokens: usize) -> usize {
    tokens.next_multiple_of(BLOCK_SIZE)
}

/// Hides all scores in part of a row, except the `visible` ones after the first `hidden`.
fn hide(scores: &mut [f32], hidden: i64, visible: usize) {
    let hidden = (hidden.max(0) as usize).min(visible);
    scores[..hidden].fill(f32::NEG_INFINITY);
    scores[visible..].fill(f32::NEG_INFINITY);
}

/// The attention of one layer.
///
/// # Safety
///
/// The instruction set of `passes` must be available. `tensors` must hold the rows of `batch`, whose blocks
/// must be in the context's cache. Heads and norms must have the cache's width. At most [`MAX_ROWS`] query
/// heads may share a key/value head.
pub unsafe fn forward(
    context: &mut ForwardContext,
    batch: &Batch,
    layer: &Layer,
    tensors: Tensors,
    passes: Passes,
) {
    let layout = context.kv.layout();
    let parameters = context.parameters.clone();
    let (width, norms) = (layout.head_size, parameters.base.head_norms[layer.index].as_ref());
    for (index, rows) in batch.groups.iter().enumerate() {
        for number in 0..layer.kv_heads {
            let group = layer.heads / layer.kv_heads;
            let offset = layout.offset(layer.index, number);
            let head = Head { layer, width, norms, number, offset, group, tensors, passes };
            if rows.prefix == 0 {
                // The last layer's output is needed only where logits are.
                let last = layer.index + 1 == layout.layers;
                prefill(context, batch, &head, rows, last);
                continue;
            }
            let shared = Prefetch { blocks: prefix_blocks(batch, rows), tokens: rows.prefix, offset };
            let next = if number + 1 < layer.kv_heads {
                Some(Prefetch { offset: layout.offset(layer.index, number + 1), ..shared })
            } else {
                batch.groups.get(index + 1).filter(|group| group.prefix > 0).map(|group| Prefetch {
                    blocks: prefix_blocks(batch, group),
                    tokens: group.prefix,
                    offset: layout.offset(layer.index, 0),
                })
            };
            decode(context, batch, &head, rows, shared, next);
        }
    }
}

/// Consecutive tokens of one prompt: all are stored, then each attends to itself and all earlier tokens. With
/// `last`, only the last row's output is computed, if at all.
unsafe fn prefill(context: &mut ForwardContext, batch: &Batch, head: &Head, group: &GroupRows, last: bool) {
    let sequence = group.sequences.start;
    let rows = batch.rows(sequence);
    let (row, count, start) = (rows.start, rows.len(), batch.past[sequence] as usize);
    let skipped = if last { count - usize::from(group.sampled) } else { 0 };
    let step = (MAX_ROWS / head.group).min(BLOCK_SIZE);
    for token in 0..count {
        let slot = batch.slots[row + token];
        head.append(&context.kv, &context.rope, row + token, slot, start + token);
    }
    for first in (skipped..count).step_by(step) {
        let tokens = step.min(count - first);
        let (seen, members) = (start + first + tokens, tokens * head.group);
        for token in 0..tokens {
            let slot = token * head.group;
            head.rotate_queries(context, row + first + token, start + first + token, slot);
        }
        let (kv, work) = (&context.kv, &mut context.work);
        work.begin(members, padded(seen));
        work.prefetcher.clear();
        let hidden = |token: usize| head.layer.hidden(start + first + token + 1);
        let keys = Keys {
            starts: kv.starts(),
            blocks: batch.blocks(sequence),
            offset: head.offset,
            from: hidden(0).max(0) as usize,
            count: seen,
            column: 0,
        };
        (head.passes.score)(work, 0, members, keys);
        for member in 0..members {
            let token = member / head.group;
            hide(work.scores_of(member), hidden(token), start + first + token + 1);
        }
        work.softmax(members);
        (head.passes.add)(work, 0, members, keys);
        for member in 0..members {
            let (token, own) = (member / head.group, member % head.group);
            work.finish(member, head.output(row + first + token, own));
        }
    }
}

/// One new token for each of a group's branches. While the shared prompt is processed, the suffixes and the
/// `next` prompt are prefetched.
unsafe fn decode(
    context: &mut ForwardContext,
    batch: &Batch,
    head: &Head,
    rows: &GroupRows,
    shared: Prefetch,
    next: Option<Prefetch>,
) {
    let group = head.group;
    let prefix_blocks = shared.blocks.len();
    let own_blocks = |sequence: usize| &batch.blocks(sequence)[prefix_blocks..];
    let own_tokens = |sequence: usize| batch.past[sequence] as usize - shared.tokens + 1;
    let row_of = |sequence: usize| batch.cumulative[sequence] as usize;
    let hidden = |sequence: usize| head.layer.hidden(batch.past[sequence] as usize + 1);
    for first in rows.sequences.clone().step_by(MAX_ROWS / group) {
        let part = first..rows.sequences.end.min(first + MAX_ROWS / group);
        for (index, sequence) in part.clone().enumerate() {
            let position = batch.past[sequence] as usize;
            head.rotate_queries(context, row_of(sequence), position, index * group);
        }
        let (kv, work) = (&context.kv, &mut context.work);
        work.prefetcher.clear();
        for sequence in part.clone() {
            Prefetch { blocks: own_blocks(sequence), tokens: own_tokens(sequence), offset: head.offset }
                .list(kv, work);
        }
        if let Some(next) = next {
            next.list(kv, work);
        }
        let members = part.len() * group;
        let column = padded(shared.tokens);
        work.begin(members, column + padded(part.clone().map(own_tokens).max().unwrap_or(0)));
        // The first prompt key that the window of some branch leaves visible.
        let from = part.clone().map(hidden).min().unwrap_or(0).clamp(0, shared.tokens as i64) as usize;
        let prompt = Keys {
            starts: kv.starts(),
            blocks: shared.blocks,
            offset: head.offset,
            from,
            count: shared.tokens,
            column: 0,
        };
        let own = |sequence: usize| {
            let from = (hidden(sequence) - shared.tokens as i64).max(0) as usize;
            Keys { blocks: own_blocks(sequence), from, count: own_tokens(sequence), column, ..prompt }
        };
        (head.passes.score)(work, 0, members, prompt);
        for (index, sequence) in part.clone().enumerate() {
            let (row, position) = (row_of(sequence), batch.past[sequence] as usize);
            // Appended here, because the block has been prefetched by now: a key touches
            // one cache line per element.
            head.append(kv, &context.rope, row, batch.slots[row], position);
            let keys = own(sequence);
            (head.passes.score)(work, index * group, group, keys);
            for member in index * group..(index + 1) * group {
                let (of_prompt, of_own) = work.scores_of(member).split_at_mut(column);
                hide(of_prompt, hidden(sequence), shared.tokens);
                hide(of_own, keys.from as i64, keys.count);
            }
        }
        work.softmax(members);
        (head.passes.add)(work, 0, members, prompt);
        for (index, sequence) in part.enumerate() {
            (head.passes.add)(work, index * group, group, own(sequence));
            for member in 0..group {
                work.finish(index * group + member, head.output(row_of(sequence), member));
            }
        }
    }
}
