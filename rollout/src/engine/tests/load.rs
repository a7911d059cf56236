//! Random load: groups of all sizes come and go while blocks are reused. In tests every block is filled with NaN before its
//! first token is stored, so reads of what nobody wrote would show.

use super::support::{TINY, bits, drain, engine, request, tokens};
use crate::engine::{Completion, Decoder, Request};
use record::philox::{Draws, Stream};

/// Blocks that sequences reference.
fn in_use(decoder: &Decoder) -> usize {
    decoder.pool().config().blocks - decoder.pool().available()
}

fn random_request(id: u64, draws: &mut Draws) -> Request {
    let prompt = 1 + draws.below(90) as usize;
    let branches = 1 + draws.below(9) as usize;
    request(id, prompt, branches, 1 + draws.below(40) as usize)
}

#[test]
fn random_load_gives_what_each_group_gives_alone() {
    let made = TINY.policy();
    let mut engine = engine(&made.policy, None, 40);
    // A third of the tokens end a completion, so that branches of a group end at different times.
    let model = std::sync::Arc::get_mut(&mut engine.model).expect("nobody else has it yet");
    model.scheduler.stop_ids = (0..512).filter(|id| id % 29 == 0).collect();
    let mut decoder = engine.decoder();
    let mut draws = Draws::new(Stream::named(11, &[]));
    let mut finished: Vec<(u64, Vec<Completion>)> = Vec::new();
    let mut submitted = Vec::new();
    while submitted.len() < 150 || !decoder.is_idle() {
        if submitted.len() < 150 && draws.below(3) == 0 {
            let request = random_request(submitted.len() as u64, &mut draws);
            submitted.push(request.clone());
            decoder.submit(None, request).expect("accepted");
        }
        finished.extend(decoder.advance().expect("a run"));
    }
    assert_eq!(in_use(&decoder), 0, "blocks were lost");
    finished.sort_by_key(|&(id, _)| id);
    let (mut stopped, mut cut) = (0, 0);
    for (request, (id, completions)) in submitted.into_iter().zip(&finished) {
        assert_eq!(request.id, *id);
        for completion in completions {
            assert!(completion.logprobs.iter().all(|logprob| logprob.is_finite() && *logprob <= 0.0));
            assert_eq!(completion.ids.len(), completion.logprobs.len());
            assert_eq!(completion.stopped, completion.ids.last().is_some_and(|id| id % 29 == 0));
            assert!(completion.stopped || completion.ids.len() == request.max_tokens);
            assert!(
                completion.ids.iter().rev().skip(1).all(|id| id % 29 != 0),
                "it went on after a stop token"
            );
            (stopped, cut) = if completion.stopped { (stopped + 1, cut) } else { (stopped, cut + 1) };
        }
        let mut alone = engine.decoder();
        alone.submit(None, request).expect("accepted");
        assert_eq!(bits(&drain(&mut alone)[0].1), bits(completions), "group {id}");
    }
    println!("{stopped} completions stopped, {cut} reached their length");
    assert!(stopped > 50 && cut > 50, "both ends occur");
}

#[test]
fn memory_is_bounded_and_a_group_that_is_too_large_still_runs() {
    let made = TINY.policy();
    let mut engine = engine(&made.policy, None, 16);
    std::sync::Arc::get_mut(&mut engine.model).expect("nobody else has it yet").scheduler.cache.blocks = 30;
    let mut decoder = engine.decoder();
    for id in 0..20 {
        // 3 blocks of prompt and 4 x 2 of branches: two groups fit.
        decoder.submit(None, request(id, 40, 4, 30)).expect("accepted");
    }
    decoder.submit(None, request(20, 200, 24, 20)).expect("accepted");
    let mut most = 0;
    let mut finished = 0;
    while !decoder.is_idle() {
        for (id, _) in decoder.advance().expect("a run") {
            finished += 1;
            if id == 19 {
                println!("at most {most} blocks in use");
                assert!(most <= 30, "{most} blocks in use");
            }
        }
        most = most.max(in_use(&decoder));
    }
    assert_eq!(finished, 21);
}

#[test]
fn impossible_requests_are_refused_and_do_no_harm() {
    let made = TINY.policy();
    let engine = engine(&made.policy, None, 16);
    let mut decoder = engine.decoder();
    let good = request(0, 10, 2, 4);
    let mut outside = good.clone();
    outside.prompt.push(512);
    let mut hot = good.clone();
    hot.sampling.temperature = 0.0;
    let mut narrow = good.clone();
    narrow.sampling.top_p = 0.0;
    let refused = [
        (Request { prompt: Vec::new(), ..good.clone() }, 65),
        (Request { streams: Vec::new(), ..good.clone() }, 2),
        (Request { max_tokens: 0, ..good.clone() }, 2),
        (Request { prompt: tokens("long", 0, 2040), max_tokens: 9, ..good.clone() }, 65),
        (outside, 65),
        (hot, 2),
        (narrow, 2),
    ];
    for (request, code) in refused {
        let failure = decoder.submit(None, request).expect_err("refused");
        assert_eq!(failure.code, code, "{failure}");
    }
    assert!(decoder.is_idle());
    assert!(decoder.advance().expect("nothing to do").is_empty());
    decoder.submit(None, good).expect("accepted");
    assert_eq!(drain(&mut decoder).len(), 1);
}
