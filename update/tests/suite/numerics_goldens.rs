//! Log-probabilities as `transformers` computes them, and gradients as PyTorch's autograd does, of tiny
//! checkpoints of every family (see `tests/golden/README.md`).

use crate::golden::{Case, checkpoints, load, logprob_cases};
use crate::small::relative;
use gemm::Precision;
use policy::weights::Weights;
use update::tree::pack;

#[test]
fn logprobs_are_those_of_transformers() {
    let found = checkpoints("logprobs.json");
    assert!(found.len() >= 3);
    for directory in found {
        let (model, parameters) = load(&directory);
        let cases = logprob_cases(&directory);
        let tree = [pack(&cases.sequences(), true)];
        for (temperature, truth) in cases.truths() {
            let scores = model.logprobs(&parameters, &tree, temperature, 1);
            let worst = scores[0]
                .logprobs
                .iter()
                .zip(&truth)
                .map(|(&found, truth)| (f64::from(found) - truth).abs())
                .max_by(f64::total_cmp)
                .unwrap();
            println!("{} at {temperature}: largest difference {worst:.1e}", directory.display());
            assert_eq!(scores[0].logprobs.len(), truth.len());
            assert!(worst < 1e-4, "{} at {temperature}: {worst:.1e}", directory.display());
        }
    }
}

#[test]
fn gradients_are_those_of_pytorch() {
    let found = checkpoints("gradient.safetensors");
    assert!(found.len() >= 3);
    for directory in found {
        let (model, parameters) = load(&directory);
        let case = Case::read(&directory);
        let truth =
            Weights::open_file(&directory.join("gradient.safetensors")).unwrap().split(model.config());
        for share in [true, false] {
            let tree = [pack(&case.sequences(), share)];
            let mut gradients = model.gradients();
            let scores =
                model.accumulate(&parameters, &tree, case.temperature, 1, &mut gradients, &case.loss());
            let error = relative(&scores[0].logprobs, &case.logprobs);
            assert!(error < 1e-5, "{}: logprobs {error:.1e}", directory.display());
            let mut worst = 0.0f64;
            for (entry, gradient) in gradients.tensors() {
                let truth: Vec<f64> = truth.to_f32(&entry.name).unwrap().into_iter().map(f64::from).collect();
                let error = relative(gradient, &truth);
                worst = worst.max(error);
                assert!(error < 1e-4, "{}: {}: {error:.1e}", directory.display(), entry.name);
            }
            println!("{}: largest relative difference of a tensor {worst:.1e}", directory.display());
        }
    }
}

/// With operands rounded to bf16, on the checkpoints whose weights are of a trained model's size. On the others, whose
/// weights are large on purpose, any bf16 computation strays further, PyTorch's too.
#[test]
fn rounded_to_bfloat16_both_stay_near() {
    let calm = |with: &str| {
        let mut found = checkpoints(with);
        found.retain(|directory| directory.to_string_lossy().ends_with("-calm"));
        assert!(found.len() >= 3);
        found
    };
    for directory in calm("logprobs.json") {
        let (model, parameters) = load(&directory);
        let model = model.rounding(Precision::BFloat16);
        let cases = logprob_cases(&directory);
        let tree = [pack(&cases.sequences(), true)];
        for (temperature, truth) in cases.truths() {
            let scores = model.logprobs(&parameters, &tree, temperature, 1);
            let pairs = scores[0].logprobs.iter().zip(&truth);
            let gaps: Vec<f64> = pairs.map(|(&found, truth)| (f64::from(found) - truth).abs()).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let worst = gaps.iter().copied().fold(0.0, f64::max);
            println!("{} at {temperature}: mean {mean:.1e}, largest {worst:.1e}", directory.display());
            assert!(mean < 3e-3 && worst < 1e-2, "{} at {temperature}", directory.display());
            assert!(mean > 1e-5, "{} at {temperature}: nothing was rounded", directory.display());
        }
    }
    for directory in calm("gradient.safetensors") {
        let (model, parameters) = load(&directory);
        let model = model.rounding(Precision::BFloat16);
        let case = Case::read(&directory);
        let truth =
            Weights::open_file(&directory.join("gradient.safetensors")).unwrap().split(model.config());
        let tree = [pack(&case.sequences(), true)];
        let mut gradients = model.gradients();
        model.accumulate(&parameters, &tree, case.temperature, 1, &mut gradients, &case.loss());
        let mut worst = 0.0f64;
        for (entry, gradient) in gradients.tensors() {
            let truth: Vec<f64> = truth.to_f32(&entry.name).unwrap().into_iter().map(f64::from).collect();
            let error = relative(gradient, &truth);
            worst = worst.max(error);
            assert!(error < 1e-2, "{}: {}: {error:.1e}", directory.display(), entry.name);
        }
        println!("{}: largest relative difference of a tensor {worst:.1e}", directory.display());
    }
}
