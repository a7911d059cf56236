//! The device's sampler, run by the simulator, against the sampler of the CPU: the same bits.

use crate::engine::SamplingParams;
use crate::engine::batch::{NextToken, SampleRequest};
use crate::engine::device::sampler::DeviceSampler;
use crate::engine::tests::sampling::HALVES;
use crate::engine::tests::support::tokens;
use crate::engine::{cpu::sampler::Sampler, request::SampledToken};
use device::{Any, Buffer, Device};
use record::failure::Result;
use record::philox::{Part, Stream};

/// Logits in rows of `stride`; values beyond the vocabulary must not matter.
fn rows(count: usize, vocabulary: usize, stride: usize) -> Vec<f32> {
    let mut all = vec![f32::NAN; count * stride];
    for row in 0..count {
        let numbers = tokens("device logits", row as u64, vocabulary);
        for (place, number) in all[row * stride..].iter_mut().zip(numbers) {
            // Many equal ones, both zeros, and a few that stand out.
            *place = match number % 29 {
                0 => -0.0,
                1 => 0.0,
                2 => number as f32 / 40.0,
                small => (small as f32 - 15.0) / 3.0,
            };
        }
    }
    all
}

fn settings() -> Vec<SamplingParams> {
    let mut all = vec![SamplingParams { greedy: true, temperature: 0.0, ..SamplingParams::PLAIN }];
    for temperature in [1.0, 0.7, 1.3] {
        for (top_p, top_k) in [
            (1.0, 0),
            (1.0, 7),
            (0.9, 0),
            (0.5, 0),
            (0.8, 20),
            (0.999, 3),
            (1e-6, 0),
            (1.0, 1),
            (0.3, 100_000),
        ] {
            all.push(SamplingParams { temperature, top_p, top_k, ..SamplingParams::PLAIN });
        }
        for (top_p, top_k, min_p) in
            [(1.0, 0, 0.3), (1.0, 0, 1.0), (0.9, 0, 0.05), (0.99, 40, 0.2), (1.0, 5, 1e-6)]
        {
            all.push(SamplingParams { temperature, top_p, top_k, min_p, greedy: false });
        }
    }
    all
}

/// What the device chooses, in two launches.
fn sample(
    device: &mut Any,
    logits: &Buffer<f32>,
    sizes: (usize, usize),
    requests: &[SampleRequest],
) -> Result<Vec<SampledToken>> {
    let mut sampler = DeviceSampler::new(device, requests.len(), sizes.0)?;
    sampler.upload(device, requests, usize::MAX)?;
    let half = requests.len() / 2;
    for which in [half..requests.len(), 0..half] {
        sampler.sample(device, logits.into(), sizes, which)?;
    }
    sampler.download(device, requests.len())
}

/// What the processor chooses.
fn choose(
    cpu: &mut Sampler,
    logits: &[f32],
    SampleRequest { sampling, next, .. }: &SampleRequest,
) -> SampledToken {
    cpu.prepare(logits, sampling).expect("numbers");
    match *next {
        NextToken::Sample(stream, position) => cpu.draw(logits, sampling, stream.uniform(position)),
        NextToken::Given(id) => SampledToken { id, logprob: cpu.logprob(logits, id) },
    }
}

#[test]
fn the_device_draws_what_the_cpu_draws() {
    let mut cpu = Sampler::default();
    // The last is three chunks, of which the third is one block.
    for (vocabulary, stride) in [(97, 97), (64, 80), (1000, 1024), (517, 520), (8202, 8208)] {
        let settings = settings();
        // Fewer rows than requests: branches of one prompt share theirs.
        let count = settings.len() / 2;
        let logits = rows(count, vocabulary, stride);
        for seed in 0..4 {
            let mut device = Any::for_tests(seed).expect("a device");
            device.reserve(8 << 20).expect("memory");
            let place = device.allocate::<f32>(logits.len()).expect("memory");
            device.upload(&logits, place.all()).expect("an upload");
            for position in [0, 1, 5 << 32 | 3] {
                let request = |(index, &sampling): (usize, &SamplingParams)| {
                    let stream = Stream::named(seed, &[Part::Text("row"), Part::Number(index as u64)]);
                    let next = match position {
                        1 => NextToken::Given((index * 13 % vocabulary) as u32),
                        _ => NextToken::Sample(stream, position),
                    };
                    SampleRequest { row: index % count, sampling, next }
                };
                let requests: Vec<SampleRequest> = settings.iter().enumerate().map(request).collect();
                let drawn = sample(&mut device, &place, (vocabulary, stride), &requests).expect("numbers");
                for (draw, request) in drawn.iter().zip(&requests) {
                    let logits = &logits[request.row * stride..][..vocabulary];
                    let wanted = choose(&mut cpu, logits, request);
                    assert_eq!(
                        (draw.id, draw.logprob.to_bits()),
                        (wanted.id, wanted.logprob.to_bits()),
                        "{vocabulary} {request:?} seed {seed}"
                    );
                }
            }
        }
    }
}

#[test]
fn tokens_that_weigh_exactly_top_p_are_enough() {
    let logits = HALVES.concat();
    let mut device = Any::for_tests(0).expect("a device");
    device.reserve(1 << 20).expect("memory");
    let place = device.allocate::<f32>(logits.len()).expect("memory");
    device.upload(&logits, place.all()).expect("an upload");
    let sampling = SamplingParams { top_p: 0.5, ..SamplingParams::PLAIN };
    let request = |at: u64| {
        let next = NextToken::Sample(Stream::named(4, &[]), at);
        SampleRequest { row: at as usize % HALVES.len(), sampling, next }
    };
    let requests: Vec<SampleRequest> = (0..16).map(request).collect();
    let drawn = sample(&mut device, &place, (2, 2), &requests).expect("numbers");
    assert!(drawn.iter().all(|token| token.id == 0), "{drawn:?}");
}

#[test]
fn a_whole_vocabulary_is_sampled_alike() {
    let vocabulary = 151_936;
    let settings =
        [SamplingParams::PLAIN, SamplingParams { top_p: 0.95, top_k: 200, ..SamplingParams::PLAIN }];
    let logits = rows(settings.len(), vocabulary, vocabulary);
    let mut device = Any::for_tests(1).expect("a device");
    device.reserve(8 << 20).expect("memory");
    let place = device.allocate::<f32>(logits.len()).expect("memory");
    device.upload(&logits, place.all()).expect("an upload");
    // Plain draws from one row, far apart, and one from the other.
    let draw = |position| NextToken::Sample(Stream::named(3, &[]), position);
    let mut requests: Vec<SampleRequest> =
        (0..8).map(|at| SampleRequest { row: 0, sampling: settings[0], next: draw(at) }).collect();
    requests.push(SampleRequest { row: 1, sampling: settings[1], next: draw(11) });
    let drawn = sample(&mut device, &place, (vocabulary, vocabulary), &requests).expect("numbers");
    let mut cpu = Sampler::default();
    for (draw, request) in drawn.iter().zip(&requests) {
        assert_eq!(*draw, choose(&mut cpu, &logits[request.row * vocabulary..][..vocabulary], request));
    }
}

#[test]
fn logits_that_are_not_numbers_are_refused() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut logits = rows(1, 100, 100);
        logits[70] = bad;
        let mut device = Any::for_tests(0).expect("a device");
        device.reserve(1 << 20).expect("memory");
        let place = device.allocate::<f32>(100).expect("memory");
        device.upload(&logits, place.all()).expect("an upload");
        let want = NextToken::Sample(Stream::named(0, &[]), 0);
        let requests = [SampleRequest { row: 0, sampling: SamplingParams::PLAIN, next: want }];
        let failure = sample(&mut device, &place, (100, 100), &requests).expect_err("not numbers");
        assert!(failure.message.contains("not numbers"), "{failure}");
    }
}
