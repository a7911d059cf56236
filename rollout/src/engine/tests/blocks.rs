//! Blocks under random load: no block is lost or written by two sequences, and copies happen exactly when
//! needed.

use crate::engine::block_pool::{BlockPool, CacheConfig, Fork};
use crate::engine::sequence::{BlockCopy, Sequence};
use proptest::prelude::*;
use std::collections::HashMap;

const SIZE: usize = 4;
const BLOCKS: usize = 64;

/// Distance between tokens of different adapters, whose keys and values differ.
const ADAPTER: u32 = 10;

fn pool(blocks: usize) -> BlockPool {
    BlockPool::new(CacheConfig { blocks, block_size: SIZE, fork: Fork::CopyOnWrite, lazy: true })
}

/// Cached sequences with their expected contents: tokens plus `ADAPTER` times the adapter.
struct Fixture {
    cache: BlockPool,
    memory: HashMap<i32, u32>,
    live: Vec<(Sequence, Vec<u32>)>,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { cache: pool(BLOCKS), memory: HashMap::new(), live: Vec::new() }
    }

    /// Appends tokens as the scheduler and the runner do.
    fn grow(&mut self, at: usize, tokens: &[u32]) {
        let (sequence, content) = &mut self.live[at];
        let needed = (sequence.tokens() + tokens.len()).div_ceil(SIZE) + 1 - sequence.blocks().len();
        if needed > self.cache.available() {
            return;
        }
        let (mut slots, mut copies) = (Vec::new(), Vec::new());
        sequence.grow(tokens.len(), &mut self.cache, &mut slots, &mut copies);
        for BlockCopy { from, to } in copies {
            assert_eq!(self.cache.references(to), 1, "a copy goes to a block with one owner");
            for offset in 0..SIZE as i32 {
                let token = self.memory.get(&(from as i32 * SIZE as i32 + offset)).copied();
                token.map(|token| self.memory.insert(to as i32 * SIZE as i32 + offset, token));
            }
        }
        for (slot, &token) in slots.iter().zip(tokens) {
            assert_eq!(self.cache.references(*slot as u32 / SIZE as u32), 1, "a written block has one owner");
            self.memory.insert(*slot, token);
        }
        content.extend(tokens);
    }

    fn check(&self) {
        for (sequence, content) in &self.live {
            assert_eq!(sequence.tokens(), content.len());
            for (at, token) in content.iter().enumerate() {
                let slot = sequence.blocks()[at / SIZE] as usize * SIZE + at % SIZE;
                assert_eq!(self.memory.get(&(slot as i32)), Some(token), "position {at} was overwritten");
            }
        }
        let mut references = vec![0; BLOCKS];
        for &block in self.live.iter().flat_map(|(sequence, _)| sequence.blocks()) {
            references[block as usize] += 1;
        }
        for (block, &seen) in references.iter().enumerate() {
            assert_eq!(self.cache.references(block as u32), seen, "block {block}");
        }
        let in_use = references.iter().filter(|&&seen| seen > 0).count();
        assert_eq!(self.cache.available(), BLOCKS - in_use, "a block is lost");
    }
}

/// The adapter that these tokens belong to.
fn owner(content: &[u32]) -> u32 {
    content.first().map_or(0, |first| first / ADAPTER)
}

/// One thing that happens to the sequences.
#[derive(Debug, Clone)]
enum Event {
    Begin(u32, Vec<u32>),
    Grow(usize, Vec<u32>),
    Fork(usize),
    Insert(usize),
    Release(usize),
}

fn event() -> impl Strategy<Value = Event> {
    // Few distinct tokens, so that sequences often share prefixes.
    let tokens = |most| prop::collection::vec(0_u32..2, 1..most);
    prop_oneof![
        (0_u32..2, tokens(20)).prop_map(|(adapter, tokens)| Event::Begin(adapter, tokens)),
        (any::<usize>(), tokens(10)).prop_map(|(at, tokens)| Event::Grow(at, tokens)),
        any::<usize>().prop_map(Event::Fork),
        any::<usize>().prop_map(Event::Insert),
        any::<usize>().prop_map(Event::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_block_is_lost_and_none_is_written_by_two(events in prop::collection::vec(event(), 1..120)) {
        let mut fixture = Fixture::new();
        for event in events {
            let count = fixture.live.len();
            match event {
                Event::Begin(adapter, tokens) => {
                    let found = fixture.cache.lookup(Some(adapter), &tokens);
                    let sequence = Sequence::beginning(found, &mut fixture.cache);
                    let known = sequence.tokens();
                    prop_assert!(known < tokens.len(), "a token is left to run");
                    let tokens: Vec<u32> = tokens.iter().map(|token| token + adapter * ADAPTER).collect();
                    fixture.live.push((sequence, tokens[..known].to_vec()));
                    fixture.grow(count, &tokens[known..]);
                }
                Event::Grow(at, tokens) if count > 0 => {
                    let own = owner(&fixture.live[at % count].1) * ADAPTER;
                    let tokens: Vec<u32> = tokens.iter().map(|token| token + own).collect();
                    fixture.grow(at % count, &tokens);
                }
                Event::Fork(at) if count > 0 => {
                    let (sequence, content) = &fixture.live[at % count];
                    let copy = (sequence.fork(&mut fixture.cache), content.clone());
                    fixture.live.push(copy);
                }
                Event::Insert(at) if count > 0 => {
                    let (sequence, content) = &fixture.live[at % count];
                    let tokens: Vec<u32> = content.iter().map(|token| token % ADAPTER).collect();
                    fixture.cache.insert(Some(owner(content)), sequence.blocks(), &tokens);
                }
                Event::Release(at) if count > 0 => {
                    let (mut sequence, _) = fixture.live.swap_remove(at % count);
                    sequence.release(&mut fixture.cache);
                }
                _ => {}
            }
            fixture.check();
        }
    }
}

#[test]
fn branches_share_their_prompt_and_the_last_writer_keeps_the_original() {
    let mut cache = pool(8);
    let (mut slots, mut copies) = (Vec::new(), Vec::new());
    let mut prompt = Sequence::default();
    prompt.grow(6, &mut cache, &mut slots, &mut copies);
    assert_eq!((prompt.blocks(), &slots[..]), (&[0, 1][..], &[0, 1, 2, 3, 4, 5][..]));
    let mut branches: Vec<Sequence> = (0..3).map(|_| prompt.fork(&mut cache)).collect();
    prompt.release(&mut cache);
    slots.clear();
    for branch in &mut branches {
        branch.grow(1, &mut cache, &mut slots, &mut copies);
    }
    assert_eq!(copies, [BlockCopy { from: 1, to: 2 }, BlockCopy { from: 1, to: 3 }]);
    assert_eq!(slots, [10, 14, 6]);
    branches.iter_mut().for_each(|branch| branch.release(&mut cache));
    assert_eq!(cache.available(), 8);
}

#[test]
fn cached_prompts_are_evicted_before_new_memory_is_used() {
    let mut cache = pool(1000);
    let used = (0..100).map(|prompt| {
        let tokens: Vec<u32> = (0..10 * SIZE as u32).map(|token| 1000 * prompt + token).collect();
        let mut sequence = Sequence::default();
        sequence.grow(tokens.len(), &mut cache, &mut Vec::new(), &mut Vec::new());
        cache.insert(None, sequence.blocks(), &tokens);
        let last = sequence.blocks().iter().max().copied();
        sequence.release(&mut cache);
        last
    });
    // Fourteen blocks: ten are in use at a time and four are cached, less than a third.
    assert_eq!(used.max().flatten(), Some(13));
}
