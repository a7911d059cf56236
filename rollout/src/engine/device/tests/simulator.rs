//! A real model on the simulator, compared with the CPU engine: the same tokens, and log-probabilities as
//! close as two orders of summation allow.

use crate::engine::SamplingParams;
use crate::engine::device::adapters::Adapters;
use crate::engine::device::attention_choice::AttentionChoice;
use crate::engine::device::config::{Activation, Capacity};
use crate::engine::device::operators::{domain, shared};
use crate::engine::device::runner::DeviceRunner;
use crate::engine::device::session::{Provider, Session};
use crate::engine::scheduler::Scheduler;
use crate::engine::tests::support::{
    BENCH, Geometry, Made, TINY, VOCABULARY, bits, drain, engine, request, runtime, tokens,
};
use device::{Device, Sim};
use half::{bf16, f16};
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Arithmetic, Kind};
use policy::weights::Weights;

/// The device engine on the simulator, for policies of one model.
pub fn scheduler(
    policies: &[Policy],
    blocks: usize,
    block_size: usize,
    rows: usize,
) -> Scheduler<DeviceRunner<Sim, f32>> {
    on(Sim::new(1, 0).expect("a simulator"), policies, blocks, block_size, rows)
}

/// Equal results on any device with memory in the host's address space.
pub fn on<D: Device + 'static>(
    device: D,
    policies: &[Policy],
    blocks: usize,
    block_size: usize,
    rows: usize,
) -> Scheduler<DeviceRunner<D, f32>> {
    opened(device, policies, None, Capacity { rows: rows + 64, sequences: rows, blocks, block_size })
}

/// The engine with activations of type `T` and an attention by its name.
pub fn opened<D: Device + 'static, T: Activation>(
    device: D,
    policies: &[Policy],
    attention: Option<&str>,
    capacity: Capacity,
) -> Scheduler<DeviceRunner<D, T>> {
    runtime();
    let files = policies[0].model();
    let config = Config::load(files).expect("a configuration");
    let adapters = Adapters::load(policies, &config).expect("adapters");
    let weights = Weights::open(files).expect("weights");
    let choice = AttentionChoice::new::<T>(attention, &config, Provider::Cpu).expect("an attention");
    let runner =
        DeviceRunner::open(config, &weights, &adapters, device, (Provider::Cpu, choice), |_| Ok(capacity));
    let runner = runner.expect("a runner");
    let config = runner.scheduler_config(vec![3]);
    Scheduler::new(runner, config)
}

const FAMILIES: [Geometry; 5] = [
    TINY,
    BENCH,
    Geometry {
        family: "qwen2",
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 1,
        head_size: 32,
        intermediate: 96,
    },
    Geometry {
        family: "llama",
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 4,
        head_size: 16,
        intermediate: 96,
    },
    Geometry {
        family: "smollm3",
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_size: 16,
        intermediate: 96,
    },
];

#[test]
fn blocks_change_nothing() {
    FAMILIES.into_iter().for_each(|geometry| compare(geometry, None));
}

#[test]
fn blocks_change_nothing_with_the_stand_in_for_onnx_runtimes_attention() {
    // Norms of heads; biases and one key head; layers without positions.
    [0, 2, 4].into_iter().for_each(|at| compare(FAMILIES[at], Some("onnxruntime")));
}

/// Compares completions of an attention with those of the CPU engine.
fn compare(geometry: Geometry, attention: Option<&str>) {
    let made = geometry.policy();
    let capacity = Capacity { rows: 84, sequences: 20, blocks: 96, block_size: 16 };
    let sim = Sim::new(1, 0).expect("a simulator");
    let mut paged = opened::<Sim, f32>(sim, std::slice::from_ref(&made.policy), attention, capacity);
    let plain = engine(&made.policy, None, 512);
    let mut decoder = plain.decoder();
    // Prompts with a common prefix, longer than one run, and ending inside and at the end of a block.
    for (id, prompt) in [(1, 37), (2, 80), (3, 16), (4, 100), (5, 1)] {
        let mut request = request(id, prompt, 1 + id as usize % 4, 20);
        request.prompt = tokens("prompt", id % 2, prompt);
        request.sampling = match id {
            3 => SamplingParams { top_p: 0.8, top_k: 20, ..SamplingParams::PLAIN },
            4 => SamplingParams { temperature: 0.7, ..SamplingParams::PLAIN },
            _ => SamplingParams::PLAIN,
        };
        paged.submit(None, request.clone()).expect("accepted");
        decoder.submit(None, request).expect("accepted");
    }
    let (ours, theirs) = (drain(&mut paged), drain(&mut decoder));
    assert_eq!(paged.pool().available(), 96, "a block is lost");
    for ((id, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        for (ours, theirs) in ours.iter().zip(theirs) {
            let family = geometry.family;
            // The stop token differs, because the CPU engine has none here.
            let length = ours.ids.len();
            assert_eq!(ours.ids, theirs.ids[..length], "{family}, group {id}");
            assert!(ours.stopped || length == 20);
            for (ours, theirs) in ours.logprobs.iter().zip(&theirs.logprobs) {
                assert!((ours - theirs).abs() <= 1e-4, "{family}, group {id}: {ours} and {theirs}");
            }
        }
    }
}

#[test]
fn given_tokens_have_the_log_probabilities_of_the_other_engine() {
    let made = TINY.policy();
    let prompt = tokens("prompt", 8, 50);
    let given: Vec<Vec<u32>> =
        (0..3).map(|branch| tokens("given", branch, 6 + 5 * branch as usize)).collect();
    let mut paged = scheduler(std::slice::from_ref(&made.policy), 32, 16, 8);
    paged.submit_scores(None, 1, prompt.clone(), &given, 0.7);
    let scored = drain(&mut paged).remove(0).1;
    let wanted = engine(&made.policy, None, 512).decoder().score(None, &prompt, &given, 0.7);
    for (ours, theirs) in scored.iter().zip(wanted) {
        for (ours, theirs) in ours.logprobs.iter().zip(&theirs) {
            assert!((ours - theirs).abs() <= 1e-4, "{ours} and {theirs}");
        }
    }
}

/// As much as a machine without a GPU can check: ONNX Runtime reads the graph for CUDA, resolves its types
/// and shapes, and lacks only CPU kernels for it.
#[test]
fn the_graphs_for_cuda_pass_the_checks_of_onnx_runtime() {
    runtime();
    for geometry in FAMILIES {
        let made = geometry.policy();
        let config = Config::load(&made.policy.files).expect("a configuration");
        let weights = Weights::open(&made.policy.files).expect("weights");
        assert_eq!(config.vocab_size, VOCABULARY);
        let graph_of = |kind| graph::decoder(&config, &weights, kind).expect("a graph");
        let sim = Sim::new(1, 0).expect("a simulator");
        let shared = shared(&sim).expect("memory");
        for arithmetic in [Arithmetic::BF16, Arithmetic::F16] {
            let open = |kind| {
                let operators = match arithmetic {
                    Arithmetic::F16 => domain::<Sim, f16>(&shared, Provider::Cpu),
                    _ => domain::<Sim, bf16>(&shared, Provider::Cpu),
                };
                Session::open(&graph_of(kind), Provider::Cpu, operators.expect("operators"))
            };
            let message = open(Kind::Paged(arithmetic)).err().expect("no processor has the kernels").message;
            // After its checks ONNX Runtime casts f16 to f32 on a CPU, and PagedAttention takes no f32.
            let wanted = match arithmetic {
                Arithmetic::F16 => "InsertedPrecisionFreeCast",
                _ => "Could not find an implementation for",
            };
            assert!(message.contains(wanted), "{arithmetic:?}: {message}");
            // Graphs with our attention use only our operators and the embeddings.
            open(Kind::Prefill(arithmetic)).expect("a session");
            open(Kind::Decode(arithmetic)).expect("a session");
        }
    }
}

/// Prompts in chunks or whole, alone or with others, computed or in the cache.
#[test]
fn a_prompt_has_the_same_bits_in_any_run() {
    let made = TINY.policy();
    let new = |prompt_tokens: usize| {
        let capacity = Capacity { rows: prompt_tokens + 16, sequences: 16, blocks: 96, block_size: 16 };
        let sim = Sim::new(1, 0).expect("a simulator");
        opened::<Sim, f32>(sim, std::slice::from_ref(&made.policy), Some("own"), capacity)
    };
    let complete = |scheduler: &mut Scheduler<DeviceRunner<Sim, f32>>, ids: &[u64]| {
        for &id in ids {
            // The last one repeats the first, and has one branch: of its prompt one token is new.
            let mut request = request(id, [81, 33, 7, 81][id as usize], if id == 3 { 1 } else { 2 }, 4);
            request.prompt = tokens("prompt", id % 3, request.prompt.len());
            request.streams.truncate(1);
            scheduler.submit(None, request).expect("accepted");
        }
        drain(scheduler).iter().map(|(_, completions)| bits(completions)).collect::<Vec<_>>()
    };
    let wanted = complete(&mut new(300), &[0, 1, 2, 3]);
    for prompt_tokens in [300, 64, 37] {
        assert_eq!(complete(&mut new(prompt_tokens), &[2, 1, 3, 0]), wanted, "{prompt_tokens} at a time");
        let mut alone = new(prompt_tokens);
        for (id, wanted) in wanted.iter().enumerate() {
            assert_eq!(
                complete(&mut alone, &[id as u64])[0],
                *wanted,
                "{prompt_tokens} at a time, {id} alone"
            );
        }
    }
}

/// The graphs and kernels of a card, against the CPU engine in f32: an f16 rounds to an eighth of a bf16.
#[test]
fn sixteen_bits_are_as_near_as_they_can_be() {
    let made = TINY.policy();
    let prompt = tokens("prompt", 8, 90);
    let given: Vec<Vec<u32>> =
        (0..3).map(|branch| tokens("given", branch, 6 + 5 * branch as usize)).collect();
    let wanted = engine(&made.policy, None, 512).decoder().score(None, &prompt, &given, 1.0);
    let in_bf16 = gaps::<bf16>(&made.policy, &prompt, &given, &wanted);
    let in_f16 = gaps::<f16>(&made.policy, &prompt, &given, &wanted);
    println!("mean and largest: bf16 {in_bf16:?}, f16 {in_f16:?}");
    assert!(in_bf16[0] > 0.0 && in_bf16[0] <= 0.02 && in_bf16[1] <= 0.1, "{in_bf16:?}");
    assert!(in_f16[0] <= in_bf16[0] / 4.0 && in_f16[1] <= 0.02, "{in_f16:?}");
}

/// Mean and largest difference of log-probabilities, nats.
fn gaps<T: Activation>(policy: &Policy, prompt: &[u32], given: &[Vec<u32>], wanted: &[Vec<f32>]) -> [f32; 2] {
    let capacity = Capacity { rows: 80, sequences: 16, blocks: 12, block_size: 64 };
    let sim = Sim::new(1, 0).expect("a simulator");
    let mut engine = opened::<Sim, T>(sim, std::slice::from_ref(policy), None, capacity);
    let found = engine.score(None, prompt, given, 1.0);
    let far = found.iter().flatten().zip(wanted.iter().flatten()).map(|(one, other)| (one - other).abs());
    let far: Vec<f32> = far.collect();
    [far.iter().sum::<f32>() / far.len() as f32, far.into_iter().fold(0.0, f32::max)]
}

/// Sharing changes the speed and nothing else.
#[test]
fn a_branch_has_the_same_bits_among_any_number_of_branches() {
    let made = TINY.policy();
    let complete = |groups: &[(u64, usize, usize)]| {
        let mut scheduler = scheduler(std::slice::from_ref(&made.policy), 96, 16, 20);
        for &(id, prompt, branches) in groups {
            scheduler.submit(None, request(id, prompt, branches, 6)).expect("accepted");
        }
        drain(&mut scheduler)
    };
    // Prompts that end at the end of a block, in one, and in the first one.
    let prompts = [(0, 32), (1, 45), (2, 7)];
    let together = complete(&prompts.map(|(id, prompt)| (id, prompt, 5)));
    for (id, prompt) in prompts {
        let wanted = bits(&together[id as usize].1);
        for branches in [1, 3] {
            let found = bits(&complete(&[(id, prompt, branches)])[0].1);
            assert_eq!(found, wanted[..branches], "a prompt of {prompt} tokens, {branches} branches");
        }
    }
}

/// A runner that reloads another version computes the same as a runner opened for it.
#[test]
fn a_runner_that_stays_computes_what_a_new_one_does() {
    let versions = [TINY.policy(), TINY.seeded(8)];
    let complete = |scheduler: &mut Scheduler<DeviceRunner<Sim, f32>>| {
        for id in 0..3 {
            scheduler.submit(None, request(id, 40, 2, 9)).expect("accepted");
        }
        drain(scheduler)
    };
    let new = |version: &Made| complete(&mut scheduler(std::slice::from_ref(&version.policy), 48, 16, 16));
    let mut staying = scheduler(std::slice::from_ref(&versions[0].policy), 48, 16, 16);
    let mut found = Vec::new();
    for version in [&versions[0], &versions[1], &versions[0]] {
        // The prefix cache holds another version's blocks.
        staying.release().expect("released");
        assert!(staying.reload(std::slice::from_ref(&version.policy), &[3]).expect("reloaded"));
        found.push(complete(&mut staying));
        assert_eq!(found.last(), Some(&new(version)));
    }
    assert_ne!(found[0], found[1]);
    staying.release().expect("released");
    let other = BENCH.policy();
    assert!(!staying.reload(std::slice::from_ref(&other.policy), &[3]).expect("another architecture"));
}
