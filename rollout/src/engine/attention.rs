//! The attention of one layer over all rows of a run, with a prompt that a group's branches share.
//!
//! For each row: normalise and rotate the query, append the key and value to the sequence's pages, attend. A group's
//! branches go through the prompt's keys and values together, so these are read once however many branches there are
//! (the idea of Hydragen, arXiv 2402.05099, and of cascade inference), then each through its own.

use super::adapters::Adapter;
use super::arena::{Arena, PAGE};
use super::kernels::{Attend, Keys, begin, finish, rotate};
use super::lanes::Lanes;
use super::plan::{Branch, Plan, Segment};
use super::rope::Rope;
use super::workspace::{MAX_ROWS, Workspace};
use gemm::Precision;
use half::bf16;
use std::sync::Arc;

/// What a decoder lends to the operators for the time of a run.
pub struct Pass {
    /// Keys and values.
    pub arena: Arena,
    /// What the rows are.
    pub plan: Plan,
    /// Cosines and sines of the positions.
    pub rope: Rope,
    /// Scratch.
    pub work: Workspace,
    /// What rows of the plan may use beside the base.
    pub adapters: Arc<Vec<Adapter>>,
    /// Scratch of the matrix products.
    pub products: gemm::Scratch,
}

/// What an attention node of the graph knows.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Its number, from 0.
    pub index: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Added to the mean square in the norms of queries and keys.
    pub epsilon: f32,
    /// `[head_size]` gains of the query norm; none where the family has no such norm.
    pub query_gain: Option<Vec<f32>>,
    /// `[head_size]` gains of the key norm.
    pub key_gain: Option<Vec<f32>>,
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

/// Where one key/value head of one layer is, and what its rows need.
struct Head<'a> {
    layer: &'a Layer,
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

    /// Stores the key and value of `row` as token `token` of a sequence.
    #[inline(always)]
    unsafe fn append<S: Lanes, const D: usize>(
        &self,
        arena: &Arena,
        rope: &Rope,
        row: usize,
        pages: &[u32],
        token: usize,
        position: usize,
    ) {
        let at = row * self.tensors.width + self.number * D;
        let gain = self.layer.key_gain.as_deref();
        let mut key = [0.0_f32; D];
        // SAFETY: the row is within the tensors, the page within the arena, and nobody else writes to this sequence.
        unsafe {
            let input = self.tensors.key.add(at);
            rotate::<S, D>(
                input,
                gain,
                self.layer.epsilon,
                rope.at(self.layer.index, position),
                1.0,
                key.as_mut_ptr(),
            );
            let page = arena.start(pages[token / PAGE]).add(self.offset);
            let value = std::slice::from_raw_parts(self.tensors.value.add(at), D);
            match arena.shape().precision {
                Precision::Float32 => store::<f32, D>(page, token % PAGE, &key, value, |number| number),
                Precision::BFloat16 => store::<bf16, D>(page.cast(), token % PAGE, &key, value, round),
            }
        }
    }

    /// Rotates the queries of `row` into workspace rows from `slot`.
    #[inline(always)]
    unsafe fn ask<S: Lanes, const D: usize>(
        &self,
        pass: &mut Pass,
        row: usize,
        position: usize,
        slot: usize,
    ) {
        let gain = self.layer.query_gain.as_deref();
        let scale = 1.0 / (D as f32).sqrt();
        for member in 0..self.group {
            let output = pass.work.queries.start().wrapping_add((slot + member) * D);
            // SAFETY: the row is within the tensors and the slot within the workspace.
            unsafe {
                let input = self.query::<D>(row, member);
                let angles = pass.rope.at(self.layer.index, position);
                rotate::<S, D>(input, gain, self.layer.epsilon, angles, scale, output);
            }
        }
    }
}

/// The nearest bf16.
#[inline(always)]
fn round(number: f32) -> bf16 {
    bf16::from_bits((gemm::round(number).to_bits() >> 16) as u16)
}

/// Stores a key and a value of D numbers as token `token` of a page's part.
#[inline(always)]
unsafe fn store<K, const D: usize>(
    page: *mut K,
    token: usize,
    key: &[f32],
    value: &[f32],
    round: impl Fn(f32) -> K,
) {
    // SAFETY: the caller gives a page's part of one head and a token below PAGE.
    unsafe {
        for (dimension, &number) in key.iter().enumerate() {
            page.add(dimension * PAGE + token).write(round(number));
        }
        let values = page.add(PAGE * D + token * D);
        for (dimension, &number) in value.iter().enumerate() {
            values.add(dimension).write(round(number));
        }
    }
}

/// A sequence whose first tokens will be read soon.
#[derive(Clone, Copy)]
struct Soon<'a> {
    pages: &'a [u32],
    tokens: usize,
    offset: usize,
}

impl Soon<'_> {
    fn fetch_ahead(&self, arena: &Arena, work: &mut Workspace) {
        let shape = arena.shape();
        for (index, &page) in self.pages.iter().enumerate().take(self.tokens.div_ceil(PAGE)) {
            let inside = (self.tokens - index * PAGE).min(PAGE);
            work.ahead.add(
                arena.start(page).wrapping_add(self.offset),
                shape.words((PAGE + inside) * shape.head_size),
            );
        }
    }
}

/// The attention of one layer.
///
/// # Safety
///
/// `S` must be available; `tensors` must hold the rows of `pass.plan`, whose pages must be in its arena and long
/// enough; heads have `D` dimensions; at most [`MAX_ROWS`] query heads share a key/value head.
#[inline(always)]
pub unsafe fn forward<S: Lanes, const D: usize>(
    pass: &mut Pass,
    layer: &Layer,
    tensors: Tensors,
    attend: Attend,
) {
    let plan = std::mem::take(&mut pass.plan);
    let shape = pass.arena.shape();
    for (place, segment) in plan.segments.iter().enumerate() {
        for number in 0..layer.kv_heads {
            let group = layer.heads / layer.kv_heads;
            let offset = shape.offset(layer.index, number);
            let head = Head { layer, number, offset, group, tensors, attend };
            // SAFETY: the caller's promise.
            unsafe {
                match segment {
                    Segment::Prompt { row, start, count, pages, wanted } => {
                        // The last layer's output is read only where logits are wanted.
                        let skipped =
                            if layer.index + 1 == shape.layers { count - usize::from(*wanted) } else { 0 };
                        prompt::<S, D>(
                            pass,
                            &head,
                            *row,
                            *start,
                            *count,
                            skipped,
                            &plan.pages[pages.clone()],
                        );
                    }
                    Segment::Branches { row, prefix, pages, branches } => {
                        let shared = Soon { pages: &plan.pages[pages.clone()], tokens: *prefix, offset };
                        let next = if number + 1 < layer.kv_heads {
                            Some(Soon { offset: shape.offset(layer.index, number + 1), ..shared })
                        } else if let Some(Segment::Branches { prefix, pages, .. }) =
                            plan.segments.get(place + 1)
                        {
                            let pages = &plan.pages[pages.clone()];
                            Some(Soon { pages, tokens: *prefix, offset: shape.offset(layer.index, 0) })
                        } else {
                            None
                        };
                        branch_step::<S, D>(
                            pass,
                            &plan,
                            &head,
                            *row,
                            shared,
                            &plan.branches[branches.clone()],
                            next,
                        );
                    }
                }
            }
        }
    }
    pass.plan = plan;
}

/// Consecutive tokens of one prompt: all are stored, then each attends to itself and what is before it, but for the
/// first `skipped` ones, whose output nobody reads.
#[inline(always)]
unsafe fn prompt<S: Lanes, const D: usize>(
    pass: &mut Pass,
    head: &Head,
    row: usize,
    start: usize,
    count: usize,
    skipped: usize,
    pages: &[u32],
) {
    let block = (MAX_ROWS / head.group).min(PAGE);
    // SAFETY: the caller's promise; a block has at most MAX_ROWS query rows.
    unsafe {
        for token in 0..count {
            head.append::<S, D>(&pass.arena, &pass.rope, row + token, pages, start + token, start + token);
        }
        for first in (skipped..count).step_by(block) {
            let tokens = block.min(count - first);
            for token in 0..tokens {
                head.ask::<S, D>(pass, row + first + token, start + first + token, token * head.group);
            }
            begin::<D>(&mut pass.work, tokens * head.group);
            pass.work.ahead.clear();
            let keys = Keys {
                starts: pass.arena.starts(),
                pages,
                offset: head.offset,
                count: start + first + tokens,
                visible: start + first + 1,
                rows_a_step: head.group,
            };
            (head.attend)(&mut pass.work, 0, tokens * head.group, keys);
            for token in 0..tokens {
                for member in 0..head.group {
                    let output = head.output::<D>(row + first + token, member);
                    finish::<S, D>(&mut pass.work, token * head.group + member, output);
                }
            }
        }
    }
}

/// One new token for each of a group's branches. While the arithmetic goes through the shared prompt, the branches'
/// own tokens and the `next` prompt are fetched.
#[inline(always)]
unsafe fn branch_step<S: Lanes, const D: usize>(
    pass: &mut Pass,
    plan: &Plan,
    head: &Head,
    row: usize,
    shared: Soon,
    branches: &[Branch],
    next: Option<Soon>,
) {
    let group = head.group;
    // SAFETY: the caller's promise; a part has at most MAX_ROWS query rows.
    unsafe {
        for (part, branches) in branches.chunks(MAX_ROWS / group).enumerate() {
            let row = row + part * (MAX_ROWS / group);
            for (index, branch) in branches.iter().enumerate() {
                let position = shared.tokens + branch.length;
                head.ask::<S, D>(pass, row + index, position, index * group);
            }
            let (arena, work) = (&pass.arena, &mut pass.work);
            work.ahead.clear();
            for branch in branches {
                let pages = &plan.pages[branch.pages.clone()];
                Soon { pages, tokens: branch.length + 1, offset: head.offset }.fetch_ahead(arena, work);
            }
            if let Some(next) = next {
                next.fetch_ahead(arena, work);
            }
            let keys = |pages, count| Keys {
                starts: arena.starts(),
                pages,
                offset: head.offset,
                count,
                visible: count,
                rows_a_step: usize::MAX,
            };
            begin::<D>(work, branches.len() * group);
            (head.attend)(work, 0, branches.len() * group, keys(shared.pages, shared.tokens));
            for (index, branch) in branches.iter().enumerate() {
                let pages = &plan.pages[branch.pages.clone()];
                // Only now: the page has been fetched meanwhile, and a key goes to as many cache lines as it has numbers.
                head.append::<S, D>(
                    arena,
                    &pass.rope,
                    row + index,
                    pages,
                    branch.length,
                    shared.tokens + branch.length,
                );
                (head.attend)(work, index * group, group, keys(pages, branch.length + 1));
                for member in 0..group {
                    finish::<S, D>(work, index * group + member, head.output::<D>(row + index, member));
                }
            }
        }
    }
}
