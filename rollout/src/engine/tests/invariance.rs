//! A branch's tokens and log-probabilities are bit-identical in any batch, on any number of threads.

use super::support::{BENCH, Geometry, PRECISIONS, TINY, bits, drain, engine_in, request, tokens};
use crate::engine::{Precision, Request};
use gemm::Isa;

fn with_precisions<const N: usize>(shapes: [Geometry; N]) -> impl Iterator<Item = (Geometry, Precision)> {
    shapes.into_iter().flat_map(|shape| PRECISIONS.map(|precision| (shape, precision)))
}

/// Jobs of mixed sizes, so that batches have every number of rows from one to many.
fn requests() -> Vec<Request> {
    let sizes = [
        (20, 8, 5),
        (1, 1, 40),
        (33, 3, 12),
        (128, 4, 9),
        (17, 16, 7),
        (300, 2, 21),
        (5, 5, 30),
        (64, 1, 64),
    ];
    let all = (0..24).map(|number| (number, sizes[number as usize % sizes.len()]));
    all.map(|(id, (prompt, branches, length))| request(id, prompt, branches, length)).collect()
}

#[test]
fn a_group_is_the_same_alone_and_in_company() {
    let odd = Geometry { hidden: 72, intermediate: 88, family: "qwen2", ..BENCH };
    for (shape, precision) in with_precisions([TINY, BENCH, odd]) {
        let made = shape.policy();
        let engine = engine_in(precision, &made.policy, None, 200);
        let alone: Vec<_> = requests()
            .into_iter()
            .map(|request| {
                let mut decoder = engine.decoder();
                decoder.submit(None, request).expect("accepted");
                bits(&drain(&mut decoder)[0].1)
            })
            .collect();
        let mut decoder = engine.decoder();
        for request in requests() {
            decoder.submit(None, request).expect("accepted");
        }
        let together = drain(&mut decoder);
        assert_eq!(together.len(), alone.len());
        for ((id, together), alone) in together.iter().zip(&alone) {
            assert_eq!(&bits(together), alone, "{shape:?} {precision:?}: group {id}");
        }
    }
}

/// Instruction sets with fused multiply-add give the same bits, so runs can move between such machines.
#[test]
fn instruction_sets_give_the_same_bits() {
    for (shape, precision) in with_precisions([TINY, BENCH]) {
        let made = shape.policy();
        let run = |isa| {
            let mut decoder = engine_in(precision, &made.policy, Some(isa), 64).decoder();
            requests().into_iter().for_each(|request| decoder.submit(None, request).expect("accepted"));
            drain(&mut decoder).iter().map(|(_, completions)| bits(completions)).collect::<Vec<_>>()
        };
        let all: Vec<Isa> = Isa::available().into_iter().filter(|isa| *isa != Isa::Portable).collect();
        for isa in all.iter().skip(1) {
            assert!(run(*isa) == run(all[0]), "{shape:?} {precision:?}: {isa} and {}", all[0]);
        }
    }
}

/// Each number of rows takes a different path through the matrix products; all are compared.
#[test]
fn a_row_is_the_same_in_a_batch_of_every_size() {
    for (shape, precision) in with_precisions([TINY, BENCH]) {
        let made = shape.policy();
        let engine = engine_in(precision, &made.policy, None, 512);
        let mut decoder = engine.decoder();
        let completions: Vec<Vec<u32>> = (0..160).map(|branch| tokens("completion", branch, 4)).collect();
        let prompt = tokens("prompt", 0, 23);
        let bits = |scores: &[Vec<f32>]| -> Vec<Vec<u32>> {
            scores.iter().map(|row| row.iter().map(|number| number.to_bits()).collect()).collect()
        };
        let all = bits(&decoder.score(None, &prompt, &completions, 1.0));
        for size in (1..=40).chain([48, 63, 64, 65, 80, 96, 100, 127, 128, 129, 144]) {
            for first in [0, 160 - size] {
                let part = &completions[first..first + size];
                let scored = bits(&decoder.score(None, &prompt, part, 1.0));
                assert_eq!(
                    scored,
                    all[first..first + size],
                    "{shape:?} {precision:?}: {size} rows from {first}"
                );
            }
        }
    }
}

/// The same for the rows of a prompt, computed at once, in chunks, and among other rows.
#[test]
fn a_prompt_is_the_same_in_pieces() {
    for (shape, precision) in with_precisions([TINY, BENCH]) {
        let made = shape.policy();
        let engine = engine_in(precision, &made.policy, None, 512);
        // Longer than the prompt budget of a run, so that it spans several runs.
        let long = || request(1, 1100, 2, 6);
        let mut decoder = engine.decoder();
        decoder.submit(None, long()).expect("accepted");
        let alone = bits(&drain(&mut decoder)[0].1);
        for before in [1, 7, 100, 511] {
            let mut decoder = engine.decoder();
            decoder.submit(None, request(0, before, 3, 12)).expect("accepted");
            decoder.submit(None, long()).expect("accepted");
            let together = drain(&mut decoder);
            assert_eq!(bits(&together[1].1), alone, "{shape:?} {precision:?}: after a prompt of {before}");
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same() {
    for precision in PRECISIONS {
        let made = TINY.policy();
        let engine = engine_in(precision, &made.policy, None, 64);
        let mut decoder = engine.decoder();
        for request in requests() {
            decoder.submit(None, request).expect("accepted");
        }
        let expected: Vec<_> = drain(&mut decoder).iter().map(|(_, completions)| bits(completions)).collect();
        for threads in [2, 3, 8] {
            let mut found: Vec<(u64, Vec<_>)> = std::thread::scope(|scope| {
                let run = |thread: usize| {
                    let mut decoder = engine.decoder();
                    for request in
                        requests().into_iter().filter(|request| request.id as usize % threads == thread)
                    {
                        decoder.submit(None, request).expect("accepted");
                    }
                    drain(&mut decoder)
                };
                let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
                handles.into_iter().flat_map(|handle| handle.join().expect("a thread")).collect()
            });
            found.sort_by_key(|&(id, _)| id);
            let found: Vec<_> = found.iter().map(|(_, completions)| bits(completions)).collect();
            assert_eq!(found, expected, "{threads} threads, {precision:?}");
        }
    }
}

/// Cached blocks hold the bits that would be computed again, whatever chunks and
/// batches they were computed in.
#[test]
fn a_prefix_cache_hit_gives_the_same_bits_as_no_hit() {
    for (shape, precision) in with_precisions([TINY, BENCH]) {
        let made = shape.policy();
        let engine = engine_in(precision, &made.policy, None, 512);
        // The second prompt continues the first, whose last block is partly filled; the third diverges early.
        let long = tokens("prompt", 7, 1100);
        let prompts = [&long[..610], &long[..], &[&long[..40], &tokens("other", 7, 90)[..]].concat()[..]];
        let group = |id: usize| Request { prompt: prompts[id].to_vec(), ..request(id as u64, 1, 3, 9) };
        let mut warm = engine.decoder();
        // The number of idle blocks is limited in proportion to the used ones.
        (0..8).for_each(|id| warm.submit(None, request(200 + id, 1100, 1, 9)).expect("accepted"));
        drain(&mut warm);
        for (id, cached) in [(0, 0), (1, 38), (2, 2), (1, 68), (0, 38)] {
            let mut cold = engine.decoder();
            cold.submit(None, group(id)).expect("accepted");
            let expected = bits(&drain(&mut cold)[0].1);
            assert_eq!(warm.pool().lookup(None, prompts[id]).len(), cached, "blocks of prompt {id}");
            // Another prompt in the batch shifts the rows.
            warm.submit(None, request(100 + id as u64, 5 + id, 2, 9)).expect("accepted");
            warm.submit(None, group(id)).expect("accepted");
            assert_eq!(bits(&drain(&mut warm)[0].1), expected, "{shape:?} {precision:?}: prompt {id}");
        }
    }
}
