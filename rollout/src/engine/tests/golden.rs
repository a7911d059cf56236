//! Log-probabilities against those that `transformers` computed from small random checkpoints (tests/golden).

use super::support::{engine, engine_in, instruction_sets, runtime};
use crate::engine::Precision;
use policy::directory::Policy;
use serde_json::Value;
use std::path::Path;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number") as f32).collect()
}

#[test]
fn logprobs_are_those_of_the_reference() {
    runtime();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("tests/golden");
    let mut checked = 0;
    for entry in std::fs::read_dir(&folder).expect("the goldens").map(|entry| entry.expect("an entry").path())
    {
        let Ok(text) = std::fs::read_to_string(entry.join("logprobs.json")) else { continue };
        let golden: Value = serde_json::from_str(&text).expect("JSON");
        let policy = Policy::open(&entry).expect("a policy");
        for isa in instruction_sets() {
            let mut decoder = engine(&policy, isa, 64).decoder();
            let (mut worst, mut tokens) = (0.0_f32, 0);
            for case in golden["cases"].as_array().expect("cases") {
                let completions = case["completions"].as_array().expect("completions");
                let given: Vec<Vec<u32>> = completions.iter().map(|c| ids(&c["completion_ids"])).collect();
                for (temperature, key) in [(1.0, "logprobs"), (0.7, "logprobs_temperature_0.7")] {
                    let scored = decoder.score(None, &ids(&case["prompt_ids"]), &given, temperature);
                    for (ours, theirs) in scored.iter().zip(completions) {
                        let theirs = floats(&theirs[key]);
                        assert_eq!(ours.len(), theirs.len());
                        tokens += ours.len();
                        for (a, b) in ours.iter().zip(&theirs) {
                            worst = worst.max(if a.is_finite() { (a - b).abs() } else { f32::INFINITY });
                        }
                    }
                }
            }
            println!(
                "{}: {isa:?}: {tokens} log-probabilities, largest difference {worst:.2e}",
                entry.display()
            );
            assert!(worst <= 1e-4, "{}: {isa:?}: {worst:.2e}", entry.display());
            assert!(tokens > 0);
            checked += 1;
        }
    }
    assert!(checked >= 10, "only {checked} checks ran");
}

/// Rounding operands to bf16 moves log-probabilities by a bounded amount, where weights are of a size that multiplies no
/// errors; for the others the bounds only tell a mistake from rounding.
#[test]
fn bfloat16_stays_near_the_reference() {
    runtime();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("tests/golden");
    let mut checked = 0;
    for entry in std::fs::read_dir(&folder).expect("the goldens").map(|entry| entry.expect("an entry").path())
    {
        let Ok(text) = std::fs::read_to_string(entry.join("logprobs.json")) else { continue };
        let golden: Value = serde_json::from_str(&text).expect("JSON");
        let policy = Policy::open(&entry).expect("a policy");
        let most = if entry.to_string_lossy().ends_with("-calm") { (3e-3, 0.05) } else { (0.03, 0.3) };
        for isa in instruction_sets() {
            let mut decoder = engine_in(Precision::BFloat16, &policy, isa, 64).decoder();
            let (mut worst, mut sum, mut tokens) = (0.0_f32, 0.0_f32, 0);
            for case in golden["cases"].as_array().expect("cases") {
                let completions = case["completions"].as_array().expect("completions");
                let given: Vec<Vec<u32>> = completions.iter().map(|c| ids(&c["completion_ids"])).collect();
                let scored = decoder.score(None, &ids(&case["prompt_ids"]), &given, 1.0);
                for (ours, theirs) in scored.iter().zip(completions) {
                    for (a, b) in ours.iter().zip(&floats(&theirs["logprobs"])) {
                        let gap = if a.is_finite() { (a - b).abs() } else { f32::INFINITY };
                        (worst, sum, tokens) = (worst.max(gap), sum + gap, tokens + 1);
                    }
                }
            }
            let mean = sum / tokens as f32;
            let place = format!("{} {isa:?}", entry.display());
            println!("{place}: {tokens} log-probabilities, mean difference {mean:.2e}, largest {worst:.2e}");
            assert!(mean <= most.0 && worst <= most.1, "{place}: mean {mean:.2e}, largest {worst:.2e}");
            // Were it f32, it would be a hundred times nearer.
            assert!(mean > 1e-5, "{place}: nothing was rounded");
            checked += 1;
        }
    }
    assert!(checked >= 10, "only {checked} checks ran");
}

/// Weights in the layout of a download cache, links into a folder of blobs, lie where ONNX Runtime may look.
#[test]
fn a_snapshot_of_links_gives_the_same_logits() {
    runtime();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let golden = root.join("tests/golden/qwen2-4-2-bf16-shards");
    let folder = tempfile::tempdir().expect("a folder");
    let (blobs, snapshot) = (folder.path().join("blobs"), folder.path().join("snapshots/1"));
    std::fs::create_dir_all(&blobs).expect("a folder");
    std::fs::create_dir_all(&snapshot).expect("a folder");
    for (index, entry) in std::fs::read_dir(&golden).expect("the golden").enumerate() {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, blobs.join(index.to_string())).expect("copied");
        let link = snapshot.join(path.file_name().expect("a name"));
        std::os::unix::fs::symlink(format!("../../blobs/{index}"), link).expect("linked");
    }
    let score = |directory: &Path| {
        let policy = Policy::open(directory).expect("a policy");
        let mut decoder = engine(&policy, None, 64).decoder();
        decoder.score(None, &[5, 6, 7], &[vec![8, 9, 2]], 1.0)
    };
    assert_eq!(score(&snapshot), score(&golden));
}
