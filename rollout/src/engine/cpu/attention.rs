//! The attention of one layer over all rows of a batch, with the prompt that a group's branches share.
//!
//! For each row: normalize and rotate query and key, store key and value in the sequence's block, attend. A group's
//! branches go through the prompt's keys and values together, so these are read once however many branches there are
//! (as in Hydragen, arXiv 2402.05099, and cascade inference); then each goes through its own.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "rows, slots and blocks are those of a batch that fits, which `forward` asks for"
)]

use super::kernels::{Attend, Keys, begin, finish, rotate};
use super::kv::{BLOCK_SIZE, KvCache};
use super::lanes::Lanes;
use super::rope::Rope;
use super::runner::ForwardContext;
use super::workspace::{MAX_ROWS, Workspace};
use crate::engine::batch::{Batch, GroupRows};
use gemm::Precision;
use half::bf16;

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
    /// Tokens that a query may attend to, itself included; none where all before it are visible.
    pub window: Option<usize>,
}

impl Layer {
    /// How many of the tokens up to a query, `visible` with itself, its window hides; below 0 where there is room left.
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
    /// Gains of the query and the key norm, `D` each; none where the family has no such norms.
    gains: Option<&'a [Vec<f32>; 2]>,
    number: usize,
    offset: usize,
    group: usize,
    tensors: Tensors,
    attend: Attend,
}

impl Head<'_> {
    fn query<const D: usize>(&self, row: usize, member: usize) -> *const f32 {
        self.tensors.query.wrapping_add(row * self.tensors.width + (self.number * self.group + member) * D)
    }

    fn output<const D: usize>(&self, row: usize, member: usize) -> *mut f32 {
        let head = self.number * self.group + member;
        self.tensors.output.wrapping_add((row * self.layer.heads + head) * D)
    }

    /// Stores the key and value of `row`, at a position, in a slot.
    #[inline(always)]
    unsafe fn append<S: Lanes, const D: usize>(
        &self,
        kv: &KvCache,
        rope: &Rope,
        row: usize,
        slot: i32,
        position: usize,
    ) {
        let at = row * self.tensors.width + self.number * D;
        let gain = self.gains.map(|[_, key]| &key[..]);
        let (block, token) = (slot as usize / BLOCK_SIZE, slot as usize % BLOCK_SIZE);
        let mut key = [0.0_f32; D];
        let input = self.tensors.key.add(at);
        let angles = rope.at(self.layer.index, position);
        rotate::<S, D>(input, gain, self.layer.epsilon, angles, 1.0, key.as_mut_ptr());
        let block = kv.start(block as u32).add(self.offset);
        let value = std::slice::from_raw_parts(self.tensors.value.add(at), D);
        match kv.layout().precision {
            Precision::Float32 => store::<f32, D>(block, token, &key, value, |number| number),
            Precision::BFloat16 => store::<bf16, D>(block.cast(), token, &key, value, round),
        }
    }

    /// Rotates the queries of `row` into workspace rows from `slot`.
    #[inline(always)]
    unsafe fn rotate_queries<S: Lanes, const D: usize>(
        &self,
        context: &mut ForwardContext,
        row: usize,
        position: usize,
        slot: usize,
    ) {
        let gain = self.gains.map(|[query, _]| &query[..]);
        let scale = self.layer.scale;
        for member in 0..self.group {
            let output = context.work.queries.start().wrapping_add((slot + member) * D);
            let input = self.query::<D>(row, member);
            let angles = context.rope.at(self.layer.index, position);
            rotate::<S, D>(input, gain, self.layer.epsilon, angles, scale, output);
        }
    }
}

/// The nearest bf16.
#[inline(always)]
fn round(number: f32) -> bf16 {
    bf16::from_bits((gemm::round(number).to_bits() >> 16) as u16)
}

/// Stores a key and a value of D numbers as a token of a head's part of a block.
#[inline(always)]
unsafe fn store<K, const D: usize>(
    part: *mut K,
    token: usize,
    key: &[f32],
    value: &[f32],
    round: impl Fn(f32) -> K,
) {
    for (dimension, &number) in key.iter().enumerate() {
        part.add(dimension * BLOCK_SIZE + token).write(round(number));
    }
    let values = part.add(BLOCK_SIZE * D + token * D);
    for (dimension, &number) in value.iter().enumerate() {
        values.add(dimension).write(round(number));
    }
}

/// A sequence's keys and values that will be read soon.
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
            work.ahead.add(
                kv.start(block).wrapping_add(self.offset),
                layout.words((BLOCK_SIZE + inside) * layout.head_size),
            );
        }
    }
}

/// The blocks of the prompt that a group's branches share.
fn prefix_blocks<'a>(batch: &'a Batch, group: &GroupRows) -> &'a [u32] {
    &batch.blocks(group.sequences.start)[..group.prefix.div_ceil(BLOCK_SIZE)]
}

/// The attention of one layer.
///
/// # Safety
///
/// `S` must be available; `tensors` must hold the rows of `batch`, whose blocks must be in the context's cache; heads have
/// `D` dimensions, and so have their norms; at most [`MAX_ROWS`] query heads share a key/value head.
#[inline(always)]
pub unsafe fn forward<S: Lanes, const D: usize>(
    context: &mut ForwardContext,
    batch: &Batch,
    layer: &Layer,
    tensors: Tensors,
    attend: Attend,
) {
    let layout = context.kv.layout();
    let parameters = context.parameters.clone();
    let gains = parameters.base.head_norms[layer.index].as_ref();
    for (index, rows) in batch.groups.iter().enumerate() {
        for number in 0..layer.kv_heads {
            let group = layer.heads / layer.kv_heads;
            let offset = layout.offset(layer.index, number);
            let head = Head { layer, gains, number, offset, group, tensors, attend };
            if rows.prefix == 0 {
                // The last layer's output is read only where logits are needed.
                let last = layer.index + 1 == layout.layers;
                prefill::<S, D>(context, batch, &head, rows, last);
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
            decode::<S, D>(context, batch, &head, rows, shared, next);
        }
    }
}

/// Consecutive tokens of one prompt: all are stored, then each attends to itself and what is before it. With `last`, only
/// the last row's output is computed, if it is needed at all.
#[inline(always)]
unsafe fn prefill<S: Lanes, const D: usize>(
    context: &mut ForwardContext,
    batch: &Batch,
    head: &Head,
    group: &GroupRows,
    last: bool,
) {
    let sequence = group.sequences.start;
    let rows = batch.rows(sequence);
    let (row, count, start) = (rows.start, rows.len(), batch.past[sequence] as usize);
    let skipped = if last { count - usize::from(group.sampled) } else { 0 };
    let step = (MAX_ROWS / head.group).min(BLOCK_SIZE);
    for token in 0..count {
        let slot = batch.slots[row + token];
        head.append::<S, D>(&context.kv, &context.rope, row + token, slot, start + token);
    }
    for first in (skipped..count).step_by(step) {
        let tokens = step.min(count - first);
        for token in 0..tokens {
            let slot = token * head.group;
            head.rotate_queries::<S, D>(context, row + first + token, start + first + token, slot);
        }
        begin::<D>(&mut context.work, tokens * head.group);
        context.work.ahead.clear();
        let keys = Keys {
            starts: context.kv.starts(),
            blocks: batch.blocks(sequence),
            offset: head.offset,
            count: start + first + tokens,
            visible: start + first + 1,
            hidden: head.layer.hidden(start + first + 1),
            rows_a_step: head.group,
        };
        (head.attend)(&mut context.work, 0, tokens * head.group, keys);
        for token in 0..tokens {
            for member in 0..head.group {
                let output = head.output::<D>(row + first + token, member);
                finish::<S, D>(&mut context.work, token * head.group + member, output);
            }
        }
    }
}

/// One new token for each of a group's branches. While the arithmetic goes through the shared prompt, the branches'
/// own tokens and the `next` prompt are fetched.
#[inline(always)]
unsafe fn decode<S: Lanes, const D: usize>(
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
    let own_tokens = |sequence: usize| batch.past[sequence] as usize - shared.tokens;
    let row_of = |sequence: usize| batch.cumulative[sequence] as usize;
    for first in rows.sequences.clone().step_by(MAX_ROWS / group) {
        let part = first..rows.sequences.end.min(first + MAX_ROWS / group);
        for (index, sequence) in part.clone().enumerate() {
            let position = batch.past[sequence] as usize;
            head.rotate_queries::<S, D>(context, row_of(sequence), position, index * group);
        }
        let (kv, work) = (&context.kv, &mut context.work);
        work.ahead.clear();
        for sequence in part.clone() {
            let tokens = own_tokens(sequence) + 1;
            Prefetch { blocks: own_blocks(sequence), tokens, offset: head.offset }.list(kv, work);
        }
        if let Some(next) = next {
            next.list(kv, work);
        }
        let keys = |blocks, count, hidden| Keys {
            starts: kv.starts(),
            blocks,
            offset: head.offset,
            count,
            visible: count,
            hidden,
            rows_a_step: usize::MAX,
        };
        begin::<D>(work, part.len() * group);
        let hidden = |sequence: usize| head.layer.hidden(batch.past[sequence] as usize + 1);
        if part.clone().all(|sequence| hidden(sequence) <= 0) {
            (head.attend)(work, 0, part.len() * group, keys(shared.blocks, shared.tokens, 0));
        } else {
            // A window begins where its branch is.
            for (index, sequence) in part.clone().enumerate() {
                let keys = keys(shared.blocks, shared.tokens, hidden(sequence));
                (head.attend)(work, index * group, group, keys);
            }
        }
        for (index, sequence) in part.enumerate() {
            let (row, position) = (row_of(sequence), batch.past[sequence] as usize);
            // Only now: the block has been fetched meanwhile, and a key touches as many cache lines as it has numbers.
            head.append::<S, D>(kv, &context.rope, row, batch.slots[row], position);
            let own_hidden = hidden(sequence) - shared.tokens as i64;
            let keys = keys(own_blocks(sequence), own_tokens(sequence) + 1, own_hidden);
            (head.attend)(work, index * group, group, keys);
            for member in 0..group {
                finish::<S, D>(work, index * group + member, head.output::<D>(row, member));
            }
        }
    }
}
