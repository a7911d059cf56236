//! The two backends side by side: the same operation on the CPU and on the device of the tests, under several
//! schedules, and the batches to run it on.

use crate::small::{Random, relative, wide};
use device::{Any, Device};
use half::bf16;
use update::backend::{Backend, Cpu, Gpu, Half, MicroBatch, Values};
use update::tree::{LossRow, Sequence, Tree, pack};

/// Allowed relative L2 of results in bf16, of attention's gradients, and of results in f32.
pub const HALF: f64 = 4e-3;
pub const GRADIENT: f64 = 1e-2;
pub const SINGLE: f64 = 1e-5;

/// A backend whose buffers can be filled and read.
pub trait Host: Backend {
    fn put(&mut self, values: &[f32]) -> Self::Buffer;
    fn put_single(&mut self, values: &[f32]) -> Self::Buffer;
    fn get(&mut self, buffer: &Self::Buffer, length: usize) -> Vec<f32>;
}

impl Host for Cpu {
    fn put(&mut self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }
    fn put_single(&mut self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }
    fn get(&mut self, buffer: &Vec<f32>, length: usize) -> Vec<f32> {
        buffer[..length].to_vec()
    }
}

impl Host for Gpu<Any> {
    fn put(&mut self, values: &[f32]) -> Values {
        let mut buffer = self.buffer();
        self.write(values, &mut buffer);
        buffer
    }
    fn put_single(&mut self, values: &[f32]) -> Values {
        let mut buffer = self.f32_buffer();
        self.write(values, &mut buffer);
        buffer
    }
    fn get(&mut self, buffer: &Values, length: usize) -> Vec<f32> {
        let mut values = vec![0.0; length];
        self.read(buffer, &mut values);
        self.check().unwrap();
        values
    }
}

pub fn frequencies(width: usize) -> Vec<f32> {
    (0..width / 2).map(|pair| 1e3f32.powf(-2.0 * pair as f32 / width as f32)).collect()
}

pub fn simulated(width: usize, seed: u64) -> Gpu<Any> {
    backend(width, Any::for_tests(seed).unwrap())
}

pub fn backend(width: usize, mut device: Any) -> Gpu<Any> {
    device.reserve(256 << 20).unwrap();
    Gpu::new(device, &frequencies(width))
}

/// Random values that bf16 holds exactly.
pub fn values(random: &mut Random, length: usize) -> Vec<f32> {
    (0..length).map(|_| bf16::from_f32(random.signed()).to_f32()).collect()
}

/// What an operation produced, by name, and how exact it should be.
pub type Results = Vec<(&'static str, Vec<f32>, f64)>;

/// The bound of f16 from bf16's: it has three bits more.
pub fn in_f16(allowed: f64) -> f64 {
    if allowed == SINGLE { SINGLE } else { allowed / 8.0 }
}

/// Runs an operation on the CPU and in the simulator in both 16-bit types, and compares the results.
pub fn compare(
    name: &str,
    width: usize,
    on_cpu: impl Fn(&mut Cpu) -> Results,
    on_device: impl Fn(&mut Gpu<Any>) -> Results,
) {
    let truth = on_cpu(&mut Cpu::new(&frequencies(width)));
    for half in [Half::BFloat16, Half::Float16] {
        let mut first: Option<Results> = None;
        for seed in Any::test_seeds() {
            let found = on_device(&mut simulated(width, seed).computing_in(half));
            for ((what, truth, _), (_, found, allowed)) in truth.iter().zip(&found) {
                let error = relative(found, &wide(truth));
                if seed == 0 {
                    println!("{name} in {half:?}: {what} {error:.1e}");
                }
                let allowed = if half == Half::Float16 { in_f16(*allowed) } else { *allowed };
                assert!(error <= allowed, "{name} in {half:?}, seed {seed}: {what} {error:.1e}");
            }
            // Whatever the order of threads, the same bits.
            let first = first.get_or_insert_with(|| found.clone());
            assert!(*first == found, "{name} in {half:?}: seed {seed} differs from seed 0");
        }
    }
}

/// A forest: a group with a shared prompt of `prompt` tokens and answers of `answers`, and another small tree.
pub fn forest(random: &mut Random, vocabulary: usize, prompt: usize, answers: &[usize]) -> MicroBatch {
    let shared = random.tokens(prompt, vocabulary);
    let answers: Vec<Vec<u32>> = answers.iter().map(|&length| random.tokens(length, vocabulary)).collect();
    let sequences: Vec<Sequence> =
        answers.iter().map(|answer| Sequence { prompt: &shared, completion: answer }).collect();
    let other = random.tokens(11, vocabulary);
    let second = pack(&[Sequence { prompt: &other[..4], completion: &other[4..] }], true);
    MicroBatch::new(&[pack(&sequences, true), second])
}

/// One node that predicts one token.
pub fn single() -> MicroBatch {
    let rows = vec![LossRow { node: 0, target: 3, sequence: 0, index: 0 }];
    MicroBatch::new(&[Tree { ids: vec![5], positions: vec![0], ends: vec![1], rows }])
}

/// Batches of all kinds: branches over several tiles, one token, one completion, an empty one among others.
pub fn batches(vocabulary: usize) -> Vec<(&'static str, MicroBatch)> {
    let mut random = Random(7);
    vec![
        ("branches", forest(&mut random, vocabulary, 75, &[40, 61, 3, 40])),
        ("one completion", forest(&mut random, vocabulary, 20, &[9])),
        ("an empty completion", forest(&mut random, vocabulary, 5, &[6, 0, 2])),
        ("a token", single()),
    ]
}
