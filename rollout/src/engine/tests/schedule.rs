//! The input of each run: in any order, chunks and sharing, each row's context is its sequence.

use crate::engine::batch::{Batch, NextToken, SampleRequest};
use crate::engine::block_pool::{CacheConfig, Fork};
use crate::engine::request::{Completion, Request, SampledToken, SamplingParams};
use crate::engine::scheduler::{Runner, Scheduler, SchedulerConfig};
use proptest::prelude::*;
use record::failure::Result;
use record::philox::{Part, Stream};

const SIZE: usize = 4;
const VOCABULARY: usize = 50;
const STOP: u32 = 0;

/// A model whose next token depends on its adapter, on every token before it and on the branch's random number.
fn next(adapter: i32, context: &[u32], uniform: f32) -> SampledToken {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ u64::from(uniform.to_bits()) ^ (adapter as u64) << 40;
    for &token in context {
        hash = (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3);
    }
    SampledToken { id: (hash >> 33) as u32 % VOCABULARY as u32, logprob: -((hash >> 40) as f32) }
}

/// A runner that stores each slot's token and adapter, and reads each row's context back through its blocks.
struct Remembering {
    memory: Vec<Option<(i32, u32)>>,
    computed: usize,
    longest_run: usize,
    most_sequences: usize,
}

impl Runner for Remembering {
    fn run(&mut self, batch: &Batch) -> Result<Vec<SampledToken>> {
        self.computed += batch.ids.len();
        self.longest_run = self.longest_run.max(batch.ids.len());
        self.most_sequences = self.most_sequences.max(batch.sequences());
        for copy in &batch.copies {
            let (from, to) = (copy.from as usize * SIZE, copy.to as usize * SIZE);
            self.memory.copy_within(from..from + SIZE, to);
        }
        assert_eq!(batch.adapters.len(), batch.ids.len());
        for ((&slot, &id), &adapter) in batch.slots.iter().zip(&batch.ids).zip(&batch.adapters) {
            self.memory[slot as usize] = Some((adapter, id as u32));
        }
        let width = batch.most_blocks();
        let table: Vec<i32> = batch.block_table(width).collect();
        let mut prefixes = vec![0; batch.sequences()];
        batch.groups.iter().for_each(|group| prefixes[group.sequences.clone()].fill(group.prefix));
        let mut contexts = Vec::new();
        for sequence in 0..batch.sequences() {
            let rows = batch.cumulative[sequence]..batch.cumulative[sequence + 1];
            for (offset, row) in rows.enumerate() {
                let length = batch.past[sequence] as usize + offset + 1;
                assert!(length <= batch.longest);
                // If a shared prompt ends within a block, the branch's tokens begin in a new block.
                let own = prefixes[sequence].next_multiple_of(SIZE) - prefixes[sequence];
                let slot = |at: usize| {
                    let at = if at < prefixes[sequence] { at } else { at + own };
                    table[sequence * width + at / SIZE] as usize * SIZE + at % SIZE
                };
                let adapter = batch.adapters[row as usize];
                let token = |at: usize| {
                    let (owner, token) = self.memory[slot(at)].expect("a slot that was written");
                    assert_eq!(owner, adapter, "keys and values of another adapter");
                    token
                };
                let context: Vec<u32> = (0..length).map(token).collect();
                assert_eq!(
                    context.last(),
                    Some(&(batch.ids[row as usize] as u32)),
                    "a row sees its own token"
                );
                contexts.push((adapter, context));
            }
        }
        let draw = |request: &SampleRequest| {
            let (adapter, context) = &contexts[batch.logit_rows[request.row] as usize];
            match request.next {
                NextToken::Sample(stream, position) => next(*adapter, context, stream.uniform(position)),
                NextToken::Given(id) => SampledToken { id, logprob: next(*adapter, context, 0.0).logprob },
            }
        };
        Ok(batch.requests.iter().map(draw).collect())
    }
}

fn scheduler(fork: Fork, blocks: usize, rows: usize, prompt_tokens: usize) -> Scheduler<Remembering> {
    let config = SchedulerConfig {
        sequences: rows,
        prompt_tokens,
        cache: CacheConfig { blocks, block_size: SIZE, fork, lazy: false },
        separate: fork == Fork::CopyOnWrite,
        expandable: false,
        positions: 200,
        vocabulary: VOCABULARY,
        stop_ids: vec![STOP],
    };
    let memory = vec![None; blocks * SIZE];
    let runner = Remembering { memory, computed: 0, longest_run: 0, most_sequences: 0 };
    Scheduler::new(runner, config)
}

fn request(id: u64, prompt: Vec<u32>, branches: usize, max_tokens: usize) -> Request {
    let stream = |branch| Stream::named(5, &[Part::Number(id), Part::Number(branch)]);
    let streams = (0..branches as u64).map(stream).collect();
    Request { id, prompt, streams, max_tokens, sampling: SamplingParams::PLAIN, stop: None, watch: None }
}

/// The expected completions of a request, computed without a cache.
fn expected(adapter: Option<u32>, request: &Request) -> Vec<Completion> {
    let adapter = adapter.map_or(0, |adapter| adapter as i32 + 1);
    let branch = |stream: &Stream| {
        let mut completion = Completion::default();
        while completion.ids.len() < request.max_tokens && !completion.stopped {
            let context: Vec<u32> = request.prompt.iter().chain(&completion.ids).copied().collect();
            let draw = next(adapter, &context, stream.uniform(completion.ids.len() as u64));
            completion.ids.push(draw.id);
            completion.logprobs.push(draw.logprob);
            completion.stopped = draw.id == STOP;
        }
        completion
    };
    request.streams.iter().map(branch).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_branch_is_what_it_would_be_alone(
        // Prompts begin with one of three texts, so that much is shared, but not across adapters.
        requests in prop::collection::vec((prop::option::of(0_u32..2), 0_u32..3, 0_usize..20, prop::collection::vec(1_u32..50, 1..12), 1_usize..5, 1_usize..14), 1..12),
        blocks in 60_usize..120,
        rows in 5_usize..12,
        prompt_tokens in 1_usize..30,
        pause in 0_usize..4,
        fork in prop_oneof![Just(Fork::CopyOnWrite), Just(Fork::NewBlock)],
    ) {
        let mut scheduler = scheduler(fork, blocks, rows, prompt_tokens);
        let mut wanted = Vec::new();
        let mut finished = Vec::new();
        for (id, (adapter, text, common, own, branches, max_tokens)) in requests.into_iter().enumerate() {
            let prompt = (0..common as u32).map(|at| 1 + (at * 7 + text) % 49).chain(own).collect();
            let request = request(id as u64, prompt, branches, max_tokens);
            wanted.push((id as u64, expected(adapter, &request)));
            scheduler.submit(adapter, request).unwrap();
            for _ in 0..pause {
                finished.extend(scheduler.advance().unwrap());
            }
        }
        while !scheduler.is_idle() {
            finished.extend(scheduler.advance().unwrap());
        }
        finished.sort_by_key(|&(id, _)| id);
        prop_assert_eq!(finished, wanted);
        prop_assert!(scheduler.runner().longest_run <= prompt_tokens + rows);
        prop_assert!(scheduler.runner().most_sequences <= rows);
        prop_assert_eq!(scheduler.pool().available(), blocks, "a block is lost");
        let timings = scheduler.take_timings();
        prop_assert!(timings.prefill_runs > 0);
        prop_assert!(timings.mixed_runs == 0 || fork == Fork::NewBlock);
    }
}

#[test]
fn a_prompt_is_computed_once_and_the_next_turn_goes_on_from_it() {
    let mut scheduler = scheduler(Fork::CopyOnWrite, 64, 16, 100);
    let first = request(1, (1..=20).collect(), 4, 9);
    let branches = expected(None, &first);
    scheduler.submit(None, first).unwrap();
    while !scheduler.is_idle() {
        scheduler.advance().unwrap();
    }
    let stored: usize = branches.iter().map(|branch| branch.ids.len() - 1).sum();
    assert_eq!(scheduler.runner().computed, 20 + stored, "the prompt once, and each branch's own tokens");

    let before = scheduler.runner().computed;
    let longest = branches.iter().max_by_key(|branch| branch.ids.len()).unwrap();
    let prompt: Vec<u32> = (1..=20).chain(longest.ids.iter().copied()).chain([7, 7, 7]).collect();
    let known = (20 + longest.ids.len() - 1) / SIZE * SIZE;
    let length = prompt.len();
    scheduler.submit(None, request(2, prompt, 1, 1)).unwrap();
    while !scheduler.is_idle() {
        scheduler.advance().unwrap();
    }
    assert_eq!(scheduler.runner().computed - before, length - known, "whole blocks are not computed again");
}

/// The last token of a completion is sampled but never computed, so a block that it would fill is not cached.
#[test]
fn the_last_token_of_a_completion_is_computed_by_the_next_turn() {
    for max_tokens in 2..2 + SIZE {
        let mut scheduler = scheduler(Fork::CopyOnWrite, 64, 16, 100);
        let mut play = |request: Request| -> Vec<Completion> {
            scheduler.submit(None, request).unwrap();
            let mut finished = Vec::new();
            while !scheduler.is_idle() {
                finished.extend(scheduler.advance().unwrap());
            }
            finished.remove(0).1
        };
        let first = play(request(1, (1..=20).collect(), 1, max_tokens)).remove(0);
        assert_eq!(first.ids.len(), max_tokens, "it ends by its length");
        let next = || request(2, (1..=20).chain(first.ids.iter().copied()).chain([7]).collect(), 2, 3);
        assert_eq!(play(next()), expected(None, &next()), "after {max_tokens} tokens");
    }
}

/// Without a contiguous block table, only the prompt's full blocks are reused, not the completion's.
#[test]
fn with_new_blocks_a_prompt_is_reused_as_far_as_it_is_the_same() {
    let mut scheduler = scheduler(Fork::NewBlock, 64, 16, 100);
    for (id, prompt, computed) in [(1, 22, 22), (2, 22, 2), (3, 30, 10), (4, 29, 1)] {
        let before = scheduler.runner().computed;
        scheduler.submit(None, request(id, (1..=prompt).collect(), 3, 1)).unwrap();
        while !scheduler.is_idle() {
            scheduler.advance().unwrap();
        }
        assert_eq!(scheduler.runner().computed - before, computed, "prompt of {prompt}");
    }
}

#[test]
fn given_tokens_are_scored_and_what_can_never_fit_is_refused() {
    let mut scheduler = scheduler(Fork::CopyOnWrite, 8, 16, 100);
    let given = vec![vec![3, 4, 5], vec![6]];
    scheduler.submit_scores(None, 9, vec![1, 2], &given, 1.0);
    let mut scores = Vec::new();
    while !scheduler.is_idle() {
        scores.extend(scheduler.advance().unwrap());
    }
    let logprob = |context: &[u32]| next(0, context, 0.0).logprob;
    assert_eq!(scores[0].1[0].logprobs, [logprob(&[1, 2]), logprob(&[1, 2, 3]), logprob(&[1, 2, 3, 4])]);
    assert_eq!(scores[0].1[1].ids, [6]);

    let failure = scheduler.submit(None, request(1, (1..=20).collect(), 4, 9)).unwrap_err();
    assert!(failure.message.contains("needs 13 KV-cache blocks"), "{}", failure.message);
    assert!(scheduler.submit(None, request(2, Vec::new(), 1, 1)).is_err());
    assert!(scheduler.submit(None, request(3, vec![50], 1, 1)).is_err());
    assert!(scheduler.submit(None, request(4, vec![1; 200], 1, 1)).is_err());
    assert!(scheduler.is_idle());
}

/// Decoding continues while prompts gather: if one prompt arrives with each run, a run
/// of prompts holds several.
#[test]
fn on_a_device_prompts_gather_and_wait_for_a_few_runs_only() {
    let mut scheduler = scheduler(Fork::CopyOnWrite, 2000, 256, 100);
    let long = |id| Request { max_tokens: 60, ..request(id, vec![1 + id as u32 % 49, 2, 3], 16, 60) };
    scheduler.submit(None, long(1)).unwrap();
    scheduler.advance().unwrap();
    let begun = scheduler.take_timings();
    assert_eq!((begun.prefill_runs, begun.decode_runs), (1, 0), "nobody else is there: it does not wait");
    for id in 2..34 {
        scheduler.submit(None, request(id, vec![1 + id as u32 % 49, 4], 1, 3)).unwrap();
        scheduler.advance().unwrap();
    }
    let timings = scheduler.take_timings();
    assert_eq!(timings.prefill_runs + timings.decode_runs, 32);
    assert!((3..=10).contains(&timings.prefill_runs), "{timings:?}");
    while !scheduler.is_idle() {
        scheduler.advance().unwrap();
    }
    // One prompt among many decoding branches.
    scheduler.submit(None, long(40)).unwrap();
    scheduler.advance().unwrap();
    scheduler.take_timings();
    scheduler.submit(None, request(41, vec![5, 6], 1, 1)).unwrap();
    let waited = (0..).find(|_| !scheduler.advance().unwrap().is_empty()).expect("it is finished");
    assert!((1..=16).contains(&waited), "{waited} runs");
    // Enough to fill a run, so they are due at once.
    for id in 50..60 {
        scheduler.submit(None, request(id, (1..=11).chain([id as u32 - 30]).collect(), 1, 1)).unwrap();
    }
    scheduler.take_timings();
    scheduler.advance().unwrap();
    assert_eq!(scheduler.take_timings().prefill_runs, 1);
}
