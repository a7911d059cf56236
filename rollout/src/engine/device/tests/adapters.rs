//! Adapters on the simulator: log-probabilities against PEFT (tests/golden/adapters) and the CPU engine,
//! several adapters in one run, and a prefix cache that separates them.

use super::simulator::scheduler;
use crate::engine::device::adapters::Adapters;
use crate::engine::device::attention_choice::AttentionChoice;
use crate::engine::device::config::Capacity;
use crate::engine::device::operators::{domain, shared};
use crate::engine::device::runner::DeviceRunner;
use crate::engine::device::session::{Provider, Session};
use crate::engine::scheduler::Scheduler;
use crate::engine::tests::adapters::{golden, policy, read};
use crate::engine::tests::support::{bits, drain, request, runtime};
use crate::engine::{Engine, Options, Request};
use device::Sim;
use half::bf16;
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Arithmetic, Kind};
use policy::weights::Weights;
use serde_json::Value;
use std::path::Path;

type Paged = Scheduler<DeviceRunner<Sim, f32>>;

/// Adapters with different ranks, scales and targets over one base.
const SEVERAL: [&str; 2] = ["all", "some"];

fn policies(folder: &Path, names: &[&str]) -> Vec<Policy> {
    names.iter().map(|name| policy(folder, name)).collect()
}

fn paged(policies: &[Policy]) -> Paged {
    scheduler(policies, 96, 16, 24)
}

/// A group with tokens in the goldens' vocabulary.
fn small(id: u64) -> Request {
    let mut request = request(id, 9 + id as usize, 3, 12);
    request.prompt.iter_mut().for_each(|id| *id %= 64);
    request
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

#[test]
fn logprobs_are_those_of_peft_with_one_base_for_all() {
    let folder = tempfile::tempdir().expect("a folder");
    for names in [&SEVERAL[..], &["bias"]] {
        let mut paged = paged(&policies(folder.path(), names));
        let plain = if names.len() == 2 { "qwen3-6-3-untied" } else { "qwen2-4-2-bf16-shards" };
        let adapted = names.iter().map(|name| golden().join("adapters").join(name));
        let places = std::iter::once(golden().join(plain)).chain(adapted);
        let expected: Vec<Value> = places.map(|place| read(&place.join("logprobs.json"))).collect();
        // All at once, so that runs mix rows of the base and of every adapter.
        let mut wanted = Vec::new();
        for (index, expected) in expected.iter().enumerate() {
            for case in expected["cases"].as_array().expect("cases") {
                let completions = case["completions"].as_array().expect("completions");
                let given: Vec<Vec<u32>> =
                    completions.iter().map(|item| ids(&item["completion_ids"])).collect();
                let adapter = (index as u32).checked_sub(1);
                let id = wanted.len() as u64;
                paged.submit_scores(adapter, id, ids(&case["prompt_ids"]), &given, 1.0);
                wanted.push(completions);
            }
        }
        let mut worst = 0.0_f32;
        for ((_, found), wanted) in drain(&mut paged).into_iter().zip(wanted) {
            for (found, item) in found.iter().zip(wanted) {
                let wanted: Vec<f32> = serde_json::from_value(item["logprobs"].clone()).expect("numbers");
                assert_eq!(found.logprobs.len(), wanted.len());
                for (found, wanted) in found.logprobs.iter().zip(wanted) {
                    worst = std::cmp::max_by(worst, (found - wanted).abs(), f32::total_cmp);
                }
            }
        }
        println!("{names:?}: largest difference {worst:.2e}");
        assert!(worst <= 1e-4, "{names:?}: {worst:.2e}");
    }
}

#[test]
fn several_adapters_in_one_run_complete_as_on_the_processor() {
    let folder = tempfile::tempdir().expect("a folder");
    let policies = policies(folder.path(), &SEVERAL);
    let mut paged = paged(&policies);
    let engine =
        Engine::load_all(&policies.iter().collect::<Vec<_>>(), &Options::default(), None).expect("an engine");
    let mut decoder = engine.decoder();
    let owners = [None, Some(0), Some(1), Some(0), None, Some(1)];
    for (id, owner) in owners.into_iter().enumerate() {
        paged.submit(owner, small(id as u64)).expect("submitted");
        decoder.submit(owner, small(id as u64)).expect("submitted");
    }
    for ((id, ours), (_, theirs)) in drain(&mut paged).iter().zip(&drain(&mut decoder)) {
        for (ours, theirs) in ours.iter().zip(theirs) {
            // The stop token differs, because the CPU engine has none here.
            assert_eq!(ours.ids, theirs.ids[..ours.ids.len()], "group {id}");
            assert!(ours.stopped || ours.ids.len() == 12);
            for (ours, theirs) in ours.logprobs.iter().zip(&theirs.logprobs) {
                assert!((ours - theirs).abs() <= 1e-4, "group {id}: {ours} and {theirs}");
            }
        }
    }
}

#[test]
fn a_group_gives_the_same_bits_in_any_company_and_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let policies = policies(folder.path(), &SEVERAL);
    let owners = [None, Some(0), Some(1), Some(0), None, Some(1)];
    let run = |ids: &[usize]| {
        let mut paged = paged(&policies);
        for &id in ids {
            paged.submit(owners[id], small(id as u64)).expect("submitted");
        }
        drain(&mut paged)
    };
    let together = run(&[0, 1, 2, 3, 4, 5]);
    let backwards = run(&[5, 4, 3, 2, 1, 0]);
    for (id, group) in &together {
        let alone = run(&[*id as usize]);
        assert_eq!(bits(group), bits(&alone[0].1), "group {id}, alone");
        assert_eq!(bits(group), bits(&backwards[*id as usize].1), "group {id}, backwards");
    }
}

#[test]
fn prefixes_of_one_adapter_are_not_reused_for_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let policies = policies(folder.path(), &SEVERAL);
    // The prompt is longer than a block, so the second group would find the first one's blocks if
    // adapters were not separated.
    let long = || Request { prompt: (0..40).map(|at| at * 7 % 64).collect(), ..small(3) };
    let mut one_after_another = paged(&policies);
    for owner in [Some(0), None, Some(1), Some(0)] {
        one_after_another.submit(owner, long()).expect("submitted");
        let found = drain(&mut one_after_another).remove(0).1;
        let mut fresh = paged(&policies);
        fresh.submit(owner, long()).expect("submitted");
        let wanted = drain(&mut fresh).remove(0).1;
        for (found, wanted) in found.iter().zip(&wanted) {
            assert_eq!(found.ids, wanted.ids, "{owner:?}");
            for (found, wanted) in found.logprobs.iter().zip(&wanted.logprobs) {
                assert!((found - wanted).abs() <= 1e-5, "{owner:?}: {found} and {wanted}");
            }
        }
    }
}

#[test]
fn numbers_that_would_reach_the_rows_of_other_adapters_are_refused() {
    runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let policies = policies(folder.path(), &SEVERAL);
    let file = policies[1].files.join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&file).expect("a file");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(&file, bytes).expect("written");
    let config = Config::load(policies[0].model()).expect("a configuration");
    let weights = Weights::open(policies[0].model()).expect("weights");
    let adapters = Adapters::load(&policies, &config).expect("adapters");
    let capacity = Capacity { rows: 16, sequences: 8, blocks: 8, block_size: 16 };
    let device = Sim::new(1, 0).expect("a simulator");
    let choice = AttentionChoice::new::<f32>(None, &config, Provider::Cpu).expect("an attention");
    let provider = (Provider::Cpu, choice);
    let opened =
        DeviceRunner::<Sim, f32>::open(config, &weights, &adapters, device, provider, |_| Ok(capacity));
    let failure = opened.err().expect("refused");
    assert_eq!(failure.code, record::failure::DATA);
    assert!(failure.message.contains("some") && failure.message.ends_with("is not finite"), "{failure}");
}

/// As much as a machine without a GPU can check: ONNX Runtime reads the graph for CUDA, resolves its types
/// and shapes, and lacks only CPU kernels for it.
#[test]
fn the_graphs_for_cuda_pass_the_checks_of_onnx_runtime() {
    runtime();
    let folder = tempfile::tempdir().expect("a folder");
    for names in [&SEVERAL[..], &["bias"]] {
        let policies = policies(folder.path(), names);
        let config = Config::load(policies[0].model()).expect("a configuration");
        let weights = Weights::open(policies[0].model()).expect("weights");
        let adapters = Adapters::load(&policies, &config).expect("adapters");
        let kind = Kind::Paged(Arithmetic::BF16);
        let graph = graph::adapted_decoder(&config, &weights, kind, adapters.stack());
        let sim = Sim::new(1, 0).expect("a simulator");
        let operators =
            domain::<Sim, bf16>(&shared(&sim).expect("memory"), Provider::Cpu).expect("operators");
        let opened = Session::open(&graph.expect("a graph"), Provider::Cpu, operators);
        let message = opened.err().expect("no processor has the kernels").message;
        assert!(message.contains("Could not find an implementation for"), "{message}");
    }
}
