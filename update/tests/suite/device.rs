//! Whole decoders on the simulated device, or the GPU that `TROUPE_TEST_DEVICE` names: log-probabilities and gradients
//! against transformers and PyTorch, trees against separate sequences, layers computed again, and optimizer steps.

use crate::golden;

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::common::GOLDEN;
use crate::golden::{Case, checkpoints, load, logprob_cases};
use crate::small::{Random, Weighted, cosine, llama, relative, samples, wide};
use device::Any;
use policy::config::Config;
use policy::weights::Weights as Tensors;
use update::backend::Half;
use update::loss_scale::Scaled;
use update::model::{
    DeviceMemory, DeviceModel, Entry, MemoryPlan, MemoryRequest, Model, Parameters, RowLoss, Scores, Source,
};
use update::optimizer::StateTensor;
use update::optimizer::on_device::DeviceOptimizer;
use update::optimizer::{self, Method, Optimizer, Settings, StepScale};
use update::tree::{Sequence, Tree, pack};

/// Least cosine between a whole gradient and PyTorch's in f64.
const COSINE: f64 = 0.999;
/// Allowed relative L2 of a tensor's gradient from PyTorch's in f64, where weights are of a size that multiplies no errors.
const CALM: f64 = 1e-2;
/// Allowed share of the error of PyTorch's bf16 there, of a whole gradient.
const CALM_SHARE: f64 = 0.5;
/// Allowed relative L2 of a whole gradient from the CPU's with the same bf16 weights. The random decoders
/// that are not calm multiply every rounding: there PyTorch's bf16 is off by 1.4e-2 to 2.8e-2, rounding only
/// the weights makes up to 1.5e-2, and rounding only the factors of products up to 1.1e-2.
const GRADIENT: f64 = 2e-2;
/// Allowed share of the error of PyTorch's bf16 there, of a whole gradient by the same weights.
const SHARE: f64 = 0.8;
/// How much further than PyTorch in bf16 a single tensor's gradient may be from the truth.
const TENSOR: f64 = 2.0;
/// Allowed relative L2 of log-probabilities.
const LOGPROBS: f64 = 1.5e-2;
/// The share of bf16's bounds for f16: it has three bits more.
const F16: f64 = 1.0 / 8.0;

/// A decoder on the simulated device for micro-batches of up to `tokens` tokens; a larger tree finds room in
/// the slack.
fn device_model(
    model: &Model,
    parameters: &Parameters,
    seed: u64,
    tokens: usize,
    recompute: bool,
) -> DeviceModel<Any> {
    device_model_in(Half::BFloat16, model, parameters, seed, tokens, recompute)
}

pub fn device_model_in(
    half: Half,
    model: &Model,
    parameters: &dyn Source,
    seed: u64,
    tokens: usize,
    recompute: bool,
) -> DeviceModel<Any> {
    let request = MemoryRequest {
        tokens,
        largest: tokens,
        rows: 4096,
        part: 0,
        positions: 128,
        moments: Some(8),
        ranks: 1,
        waiting: 0,
        half,
    };
    let available = DeviceMemory { free: 8 << 30, workspace: 64 << 20 };
    let plan = MemoryPlan { recompute, ..MemoryPlan::new(model.config(), None, request, available).unwrap() };
    DeviceModel::new(Any::for_tests(seed).unwrap(), model.config(), None, parameters, &plan).unwrap()
}

fn gradient(
    device_model: &mut DeviceModel<Any>,
    length: usize,
    trees: &[Tree],
    temperature: f32,
    loss: &dyn RowLoss,
) -> (Vec<f32>, Vec<Scores>) {
    device_model.clear_gradients().unwrap();
    let scores = device_model.accumulate(trees, temperature, loss).unwrap();
    let mut gradients = vec![0.0; length];
    device_model.gradients(&mut gradients).unwrap();
    (gradients, scores)
}

/// The goldens that the kernels can run, whose windows hide nothing.
fn for_devices(with: &str) -> Vec<PathBuf> {
    let runs = |directory: &PathBuf| {
        policy::graph::for_device(Config::load(directory).unwrap())
            .is_ok_and(|config| config.max_positions >= 128)
    };
    checkpoints(with).into_iter().filter(runs).collect()
}

#[test]
fn logprobs_are_near_those_of_transformers() {
    let found = for_devices("logprobs.json");
    assert!(found.len() >= 7);
    for directory in found {
        let (model, parameters) = load(&directory);
        let mut device_model = device_model(&model, &parameters, 1, 4096, false);
        let cases = logprob_cases(&directory);
        let tree = [pack(&cases.sequences(), true)];
        for (temperature, truth) in cases.truths() {
            let scores = device_model.logprobs(&tree, temperature).unwrap();
            let error = relative(&scores[0].logprobs, &truth);
            println!("{} at {temperature}: relative L2 {error:.1e}", directory.display());
            assert!(error < LOGPROBS, "{}: {error:.1e}", directory.display());
        }
    }
}

/// By f16's bounds: log-probabilities of all goldens, and gradients of the calm ones, with a loss scale.
#[test]
fn float16_is_nearer_to_the_truth_by_its_bits() {
    let mut gradients = 0;
    for directory in for_devices("gradient.json") {
        let calm = directory.to_string_lossy().ends_with("-calm");
        let (model, parameters) = load(&directory);
        let case = Case::read(&directory);
        let tensors = Tensors::open_file(&directory.join("gradient.safetensors")).unwrap();
        let entries = &parameters.layout().entries;
        let truth: Vec<f64> =
            entries.iter().flat_map(|entry| wide(&tensors.to_f32(&entry.name).unwrap())).collect();
        let tree = [pack(&case.sequences(), true)];
        let mut device_model = device_model_in(Half::Float16, &model, &parameters, 1, 512, false);
        let scaled = Scaled { loss: &case.slopes(), factor: 256.0 };
        let (found, scores) = gradient(&mut device_model, truth.len(), &tree, case.temperature, &scaled);
        let found: Vec<f32> = found.iter().map(|value| value / 256.0).collect();
        let (error, direction) = (relative(&found, &truth), cosine(&found, &truth));
        let logprobs = relative(&scores[0].logprobs, &case.logprobs);
        println!(
            "{} in f16: log-probabilities {logprobs:.1e}, gradient {error:.1e}, cosine {direction:.6}",
            directory.display()
        );
        assert!(logprobs <= LOGPROBS * F16, "{}: {logprobs:.1e}", directory.display());
        assert!(direction > COSINE, "{}: {direction}", directory.display());
        if calm {
            gradients += 1;
            assert!(error <= CALM * F16, "{}: {error:.1e}", directory.display());
        }
    }
    assert!(gradients >= 4);
}

/// The weights as the device's passes read them.
fn rounded(parameters: &Parameters) -> Parameters {
    let mut rounded = parameters.clone();
    rounded.values.iter_mut().for_each(|value| *value = half::bf16::from_f32(*value).to_f32());
    rounded
}

#[test]
fn gradients_are_nearer_to_the_truth_than_those_of_pytorch_in_bf16() {
    let mut families = BTreeSet::new();
    for directory in for_devices("gradient.json") {
        let name = directory.file_name().unwrap().to_str().unwrap();
        let calm = name.ends_with("-calm");
        let (model, parameters) = load(&directory);
        let case = Case::read(&directory);
        let tensors = Tensors::open_file(&directory.join("gradient.safetensors")).unwrap();
        let entries = &parameters.layout().entries;
        let truth: Vec<f64> =
            entries.iter().flat_map(|entry| wide(&tensors.to_f32(&entry.name).unwrap())).collect();
        let pytorch = golden::json(&directory.join("gradient.json"))["bf16_against_f64"].clone();
        let mut same_weights = model.gradients();
        let tree = [pack(&case.sequences(), true)];
        let weights = rounded(&parameters);
        model.accumulate(&weights, &tree, case.temperature, 1, &mut same_weights, &case.slopes());
        let same_weights = wide(&same_weights.values);
        let mut bits: Option<Vec<f32>> = None;
        // Every schedule for two, the shared and the unshared layout for all.
        let schedules = if [GOLDEN, "qwen3-4-2-calm"].contains(&name) { Any::test_seeds() } else { 1..2 };
        for (share, seed) in schedules.map(|seed| (true, seed)).chain([(false, 0)]) {
            let tree = [pack(&case.sequences(), share)];
            let mut device_model = device_model(&model, &parameters, seed, 512, false);
            let (found, scores) =
                gradient(&mut device_model, truth.len(), &tree, case.temperature, &case.slopes());
            let (error, direction) = (relative(&found, &truth), cosine(&found, &truth));
            let own = relative(&found, &same_weights);
            let logprobs = relative(&scores[0].logprobs, &case.logprobs);
            let of_tensor = |entry: &Entry| {
                let theirs = pytorch["relative_l2"][entry.name.as_str()].as_f64().unwrap();
                (relative(&found[entry.range.clone()], &truth[entry.range.clone()]), theirs)
            };
            let (worst, theirs, tensor) = entries
                .iter()
                .map(|entry| (of_tensor(entry).0, of_tensor(entry).1, &entry.name))
                .max_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)))
                .unwrap();
            let (largest, farthest) = entries
                .iter()
                .map(|entry| (of_tensor(entry).0, &entry.name))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .unwrap();
            let bound = pytorch["whole"].as_f64().unwrap();
            println!(
                "{name} share {share} seed {seed}: relative L2 {error:.1e} (PyTorch in bf16 {bound:.1e}), of the same \
                 weights {own:.1e}, cosine {direction:.6}, log-probabilities {logprobs:.1e}; {tensor} {worst:.1e} \
                 (PyTorch {theirs:.1e}), largest {farthest} {largest:.2e}"
            );
            assert!(error < bound && direction > COSINE, "{name}: {error:.1e}");
            assert!(own <= bound * if calm { CALM_SHARE } else { SHARE }, "{name}: {own:.1e} of {bound:.1e}");
            assert!(!calm || largest <= CALM, "{name}: {farthest} {largest:.1e}");
            assert!(worst <= TENSOR * theirs, "{name}: {tensor} {worst:.1e} against {theirs:.1e}");
            assert!(logprobs <= LOGPROBS, "{name}: {logprobs:.1e}");
            let norm = device_model.gradient_norm().unwrap();
            let sum = wide(&found).iter().map(|g| g * g).sum::<f64>().sqrt();
            assert!((norm / sum - 1.0).abs() < 1e-5, "norm {norm} of {sum}");
            if share {
                assert!(
                    *bits.get_or_insert_with(|| found.clone()) == found,
                    "seed {seed} differs from seed 0"
                );
            }
        }
        families.insert((calm, model.config().family));
    }
    // Qwen3, Qwen2, Llama, Mistral and SmolLM3, each of both kinds.
    assert_eq!(families.len(), 10, "{families:?}");
}

/// A Qwen3-like decoder of sizes that fill no tile, with enough layers to tell the last from the others.
pub fn decoder() -> (Model, Parameters) {
    let sizes = llama([64, 88, 3, 4, 2, 24, 97]);
    let rope_layers = vec![true, false, true];
    let model = Model::new(Config { qk_norm: true, attention_bias: true, rope_layers, ..sizes });
    let mut random = Random(21);
    let Ok(parameters) = model.parameters(|entry, values| {
        let norm = entry.name.contains("norm");
        let size = if norm { 0.4 } else { 0.2 };
        values.iter_mut().for_each(|value| *value = f32::from(norm) + size * random.signed());
        Ok::<(), std::convert::Infallible>(())
    });
    (model, parameters)
}

pub fn trees(share: bool) -> Vec<Tree> {
    let groups = samples(&mut Random(22), 97, 4);
    groups
        .iter()
        .map(|group| {
            let sequences: Vec<Sequence> =
                group.iter().map(|(prompt, completion)| Sequence { prompt, completion }).collect();
            pack(&sequences, share)
        })
        .collect()
}

#[test]
fn the_device_agrees_with_the_processor_however_the_work_is_cut() {
    let (model, parameters) = decoder();
    let mut truth = model.gradients();
    model.accumulate(&rounded(&parameters), &trees(true), 0.8, 1, &mut truth, &Weighted);
    let truth = wide(&truth.values);
    let mut bits: Option<Vec<f32>> = None;
    // One micro-batch, one for each tree, layers computed again, sequences by themselves.
    for (tokens, recompute, share) in
        [(4096, false, true), (4096, true, true), (1, false, true), (4096, false, false)]
    {
        let mut device_model = device_model(&model, &parameters, (tokens % 4) as u64, tokens, recompute);
        let (found, scores) = gradient(&mut device_model, truth.len(), &trees(share), 0.8, &Weighted);
        let (error, direction) = (relative(&found, &truth), cosine(&found, &truth));
        println!("{tokens} tokens, recompute {recompute}, share {share}: {error:.1e}, cosine {direction:.6}");
        assert!(error <= GRADIENT && direction > COSINE, "{error:.1e}");
        let again = device_model.logprobs(&trees(share), 0.8).unwrap();
        assert!(again == scores, "scoring alone says something else");
        if tokens == 4096 && share {
            let first = bits.get_or_insert_with(|| found.clone());
            assert!(*first == found, "layers computed again differ");
        }
    }
}

/// A loss of entropies alone, and of both.
struct Entropies(f32);

impl RowLoss for Entropies {
    fn rows(&self, tree_index: usize, tree: &Tree, logprobs: &[f32], derivative: &mut [f32]) {
        Weighted.rows(tree_index, tree, logprobs, derivative);
        derivative.iter_mut().for_each(|derivative| *derivative *= self.0);
    }

    fn entropies(&self, tree_index: usize, tree: &Tree, derivative: &mut [f32]) -> bool {
        for (row, derivative) in tree.rows.iter().zip(derivative) {
            *derivative = Weighted::weight(tree_index + 1, row.sequence, row.index);
        }
        true
    }
}

#[test]
fn an_entropy_term_has_the_processors_gradient_on_the_device() {
    let (model, parameters) = decoder();
    for loss in [Entropies(0.0), Entropies(1.0)] {
        let mut truth = model.gradients();
        model.accumulate(&rounded(&parameters), &trees(true), 0.8, 1, &mut truth, &loss);
        let truth = wide(&truth.values);
        let mut without = model.gradients();
        model.accumulate(&rounded(&parameters), &trees(true), 0.8, 1, &mut without, &Weighted);
        assert!(relative(&without.values, &truth) > 0.1, "the term changes nothing");
        let mut device_model = device_model(&model, &parameters, 0, 4096, false);
        let (found, _) = gradient(&mut device_model, truth.len(), &trees(true), 0.8, &loss);
        let (error, direction) = (relative(&found, &truth), cosine(&found, &truth));
        assert!(error <= GRADIENT && direction > COSINE, "{}: {error:.1e}, cosine {direction}", loss.0);
    }
}

#[test]
fn nothing_to_score_is_no_gradient() {
    let (model, parameters) = decoder();
    let mut device_model = device_model(&model, &parameters, 0, 4096, false);
    let empty = pack(&[Sequence { prompt: &[1, 2], completion: &[] }], true);
    for trees in [vec![], vec![empty.clone()], vec![empty.clone(), empty]] {
        let (found, scores) = gradient(&mut device_model, parameters.values.len(), &trees, 1.0, &Weighted);
        assert!(found.iter().all(|&value| value == 0.0));
        assert_eq!(scores, vec![Scores::default(); trees.len()]);
    }
    assert_eq!(device_model.gradient_norm().unwrap(), 0.0);
}

#[test]
fn masters_come_back_to_the_bit() {
    let (model, mut parameters) = decoder();
    let special =
        [0.0, -0.0, 1.0, f32::MIN_POSITIVE, 1e-40, -1e-40, 3.0e38, f32::from_bits(0x3f80_8000), 0.1];
    parameters.values[..special.len()].copy_from_slice(&special);
    let mut device_model = device_model(&model, &parameters, 0, 64, false);
    let mut found = vec![1.0; parameters.values.len()];
    device_model.masters(0, &mut found).unwrap();
    assert!(found.iter().zip(&parameters.values).all(|(a, b)| a.to_bits() == b.to_bits()));
}

#[test]
fn steps_are_those_of_the_processor_by_the_same_gradients() {
    for method in [Method::Adamw, Method::Sgd] {
        let (model, parameters) = decoder();
        // Small enough that a bf16 weight would not notice.
        let settings = Settings {
            method,
            lr: 1e-5,
            lr_other: 1e-5,
            betas: (0.9, 0.99),
            weight_decay: 0.1,
            max_grad_norm: 0.5,
        };
        let mut host = Optimizer::new(settings, parameters.layout());
        let mut device_model = device_model(&model, &parameters, 0, 4096, false);
        let mut moved = DeviceOptimizer::new(settings, &mut device_model).unwrap();
        let mut masters = parameters.clone();
        for step in 0..3 {
            let (found, _) = gradient(&mut device_model, masters.values.len(), &trees(true), 1.0, &Weighted);
            let mut gradients = model.gradients();
            gradients.values.copy_from_slice(&found);
            let norm = device_model.gradient_norm().unwrap();
            assert!((norm / optimizer::norm(&gradients) - 1.0).abs() < 1e-5);
            let scale = StepScale { gradient: 1.0, norm, rate: 0.5 };
            host.step(&mut masters, &gradients, scale, 1);
            moved.step(&mut device_model, scale).unwrap();
            let mut found = vec![0.0; masters.values.len()];
            device_model.masters(0, &mut found).unwrap();
            let differing =
                found.iter().zip(&masters.values).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            println!("{method:?} step {step}: {differing} of {} weights differ", found.len());
            // The simulator computes in the CPU's f32 without contraction, so every bit can be asked for.
            assert_eq!(differing, 0);
            assert!(found.iter().zip(&parameters.values).any(|(a, b)| a != b), "nothing moved");
        }
        // To another device, and back from there in pieces: every bit.
        let mut second = self::device_model(&model, &parameters, 0, 4096, false);
        let mut other = DeviceOptimizer::new(settings, &mut second).unwrap();
        let kept = optimizer::tensors(method, parameters.layout());
        other
            .restore(&mut second, moved.steps(), |name, from, values| {
                let kept = kept.iter().find(|kept| kept.name == name).unwrap();
                moved.moment(&mut device_model, kept.moment, kept.tensor, from, values)
            })
            .unwrap();
        assert_eq!((other.steps(), host.steps()), (3, 3));
        for StateTensor { name, tensor, moment } in &kept {
            let expected = host.moment(*moment, *tensor);
            let mut found = vec![0.0; expected.len()];
            let (head, tail) = found.split_at_mut(expected.len() / 3);
            other.moment(&mut second, *moment, *tensor, 0, head).unwrap();
            other.moment(&mut second, *moment, *tensor, head.len(), tail).unwrap();
            assert!(found == expected, "{name} is another");
        }
    }
}
