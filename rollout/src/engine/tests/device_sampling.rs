//! The device's sampler, run by the simulator, against the sampler of the CPU: the same bits.

use super::support::tokens;
use crate::engine::SamplingParams;
use crate::engine::device_sampler::{DeviceSampler, Wanted};
use crate::engine::isa::Isa;
use crate::engine::sampler::Sampler;
use device::{Any, Device};
use record::philox::{Part, Stream};

/// Logits in rows of `stride`; what lies beyond the vocabulary must not matter.
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
            all.push(SamplingParams { temperature, top_p, top_k, greedy: false });
        }
    }
    all
}

/// Kernels whose products are fused as those of the device are, if this processor has such.
fn fused() -> Option<crate::engine::isa::Kernels> {
    Isa::available()
        .into_iter()
        .filter(|isa| *isa != Isa::Portable || cfg!(target_arch = "aarch64"))
        .find_map(|isa| isa.kernels(16))
}

#[test]
fn the_device_draws_what_the_cpu_draws() {
    let Some(kernels) = fused() else { return };
    let mut cpu = Sampler::new(kernels);
    for (vocabulary, stride) in [(97, 97), (64, 80), (1000, 1024), (517, 520)] {
        let settings = settings();
        let logits = rows(settings.len(), vocabulary, stride);
        for seed in 0..4 {
            let mut device = Any::for_tests(seed).expect("a device");
            device.reserve(8 << 20).expect("memory");
            let place = device.allocate::<f32>(logits.len()).expect("memory");
            device.upload(&logits, place.all()).expect("an upload");
            let mut sampler = DeviceSampler::new();
            for position in [0, 1, 5 << 32 | 3] {
                let wanted: Vec<(SamplingParams, Wanted)> = settings
                    .iter()
                    .enumerate()
                    .map(|(row, &sampling)| {
                        let stream = Stream::named(seed, &[Part::Text("row"), Part::Number(row as u64)]);
                        let wanted = if position == 1 {
                            Wanted::Score((row * 13 % vocabulary) as u32)
                        } else {
                            Wanted::Draw(stream, position)
                        };
                        (sampling, wanted)
                    })
                    .collect();
                let drawn = sampler
                    .sample(&mut device, (&place).into(), (vocabulary, stride), &wanted)
                    .expect("numbers");
                for (row, (draw, (sampling, wanted))) in drawn.iter().zip(&wanted).enumerate() {
                    let logits = &logits[row * stride..][..vocabulary];
                    cpu.prepare(logits, sampling).expect("numbers");
                    let (id, logprob) = match *wanted {
                        Wanted::Draw(stream, position) => {
                            let draw = cpu.draw(logits, sampling, stream.uniform(position));
                            (draw.id, draw.logprob)
                        }
                        Wanted::Score(id) => (id, cpu.logprob(logits, sampling, id)),
                    };
                    let found = (draw.id, draw.logprob.to_bits());
                    assert_eq!(
                        found,
                        (id, logprob.to_bits()),
                        "{vocabulary} row {row} {sampling:?} {wanted:?} seed {seed}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_whole_vocabulary_is_sampled_alike() {
    let Some(kernels) = fused() else { return };
    let vocabulary = 151_936;
    let settings =
        [SamplingParams::PLAIN, SamplingParams { top_p: 0.95, top_k: 200, ..SamplingParams::PLAIN }];
    let logits = rows(settings.len(), vocabulary, vocabulary);
    let mut device = Any::for_tests(1).expect("a device");
    device.reserve(8 << 20).expect("memory");
    let place = device.allocate::<f32>(logits.len()).expect("memory");
    device.upload(&logits, place.all()).expect("an upload");
    let stream = Stream::named(3, &[]);
    let wanted = settings.map(|sampling| (sampling, Wanted::Draw(stream, 11)));
    let drawn = DeviceSampler::new()
        .sample(&mut device, (&place).into(), (vocabulary, vocabulary), &wanted)
        .expect("numbers");
    let mut cpu = Sampler::new(kernels);
    for (row, sampling) in settings.iter().enumerate() {
        let logits = &logits[row * vocabulary..][..vocabulary];
        cpu.prepare(logits, sampling).expect("numbers");
        assert_eq!(drawn[row], cpu.draw(logits, sampling, stream.uniform(11)));
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
        let wanted = [(SamplingParams::PLAIN, Wanted::Draw(Stream::named(0, &[]), 0))];
        let failure = DeviceSampler::new()
            .sample(&mut device, (&place).into(), (100, 100), &wanted)
            .expect_err("not numbers");
        assert!(failure.message.contains("not numbers"), "{failure}");
    }
}
