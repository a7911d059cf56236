//! Host memory of a training, counted at the allocator: on a device a few of the largest tensors, whatever
//! their number, on the CPU no more than its plan says. The simulator's device memory is mapped, not
//! allocated, and so are files.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and prints figures"
)]

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "suite/numerics/small.rs"]
mod small;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser;
use device::Sim;
use policy::adapter::{Adapter, Target};
use policy::config::Config;
use policy::directory::Policy;
use policy::initial;
use policy::retention::Retention;
use record::failure::Result;
use serde_json::{Map, json};
use small::Weighted;
use update::arguments::Arguments;
use update::backend::Half;
use update::checkpoint::{Checkpoint, TrainerState};
use update::learner::{CpuLearner, DeviceLearner, Learner, Workers};
use update::model::{DeviceMemory, MemoryPlan, MemoryRequest, Source};
use update::optimizer::StepScale;
use update::optimizer::on_device::moment_bytes;
use update::plan::{ModelSpec, Planner};
use update::publish::{Change, NextVersion, gather_state_on_rank0, publish_next};
use update::ranks::SingleProcess;
use update::settings::Settings;
use update::tree::{Sequence, Tree, pack};

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
/// Tests of this program take turns, since all allocate from one place.
static TURN: Mutex<()> = Mutex::new(());

/// The system's allocator, with a count of the bytes that are out.
struct Counting;

fn taken(bytes: usize) {
    MOST.fetch_max(NOW.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that were out during `work`, beyond those before it.
fn most(work: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    work();
    MOST.load(Ordering::Relaxed) - before
}

/// A policy of 12 layers in which no tensor has more than a fortieth of the weights.
fn policy(folder: &Path, dtype: &str) -> Policy {
    let config = json!({
        "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 12,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 600, "torch_dtype": dtype,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "tie_word_embeddings": true,
        "hidden_act": "silu", "attention_bias": false,
    });
    let file = folder.join("config.json");
    fs::write(&file, config.to_string()).unwrap();
    initial::from_config(&folder.join(dtype), &file, 5).unwrap()
}

fn trees() -> [Tree; 1] {
    [pack(&[Sequence { prompt: &[5, 6, 7], completion: &[8, 9] }], true)]
}

/// One step, published.
fn step(from: &Policy, checkpoint: &Checkpoint, settings: &Settings, learner: &mut dyn Learner) {
    learner.zero_grad().unwrap();
    learner.accumulate(&trees(), 1.0, &Weighted).unwrap();
    let norm = learner.grad_norm(&SingleProcess).unwrap();
    learner.optimizer_step(&SingleProcess, StepScale { gradient: 1.0, norm, rate: 1.0 }).unwrap();
    let state = TrainerState {
        optimizer: record::stage::choice(&settings.training.optimizer.method),
        objective: "clip".to_owned(),
        optimizer_steps: learner.optimizer_steps(),
        loss_scale: None,
        settings: Map::new(),
        metrics: "{}".to_owned(),
    };
    let retention = Retention { keep: 2, pinned: &[] };
    let (formats, method) = (checkpoint.trained.formats(), settings.training.optimizer.method);
    gather_state_on_rank0(&SingleProcess, &formats.layout, learner, method, |learned| {
        let (input, change, trainer) = ("input", Change::All, Some(&state));
        publish_next(from, &NextVersion { formats, state: learned, input, change, trainer }, &retention)
    })
    .unwrap();
}

/// Two calls, the second of which goes on from the first's state; the most bytes that the larger took, and the bytes of the
/// largest tensor and of all.
fn two_calls(
    root: &Path,
    settings: &Settings,
    open: impl Fn(&Checkpoint, bool) -> Result<Box<dyn Learner>>,
) -> (usize, usize, usize) {
    let mut peak = 0;
    let (mut largest, mut all) = (0, 0);
    for call in 0..2 {
        let bytes = most(|| {
            let from = Policy::open(root).unwrap();
            assert_eq!(from.version.step, call);
            let config = Config::load(from.model()).unwrap();
            let checkpoint = Checkpoint::open(&from, &config).unwrap();
            let continued = checkpoint.state(settings.training.optimizer.method, "clip").unwrap().is_some();
            assert_eq!(continued, call == 1);
            let mut learner = open(&checkpoint, continued).unwrap();
            step(&from, &checkpoint, settings, learner.as_mut());
            let frozen = checkpoint.adapter().map(|(_, base)| base.layout());
            let layout = frozen.unwrap_or(checkpoint.trained.layout());
            largest = 4 * layout.entries.iter().map(|entry| entry.range.len()).max().unwrap();
            all = 4 * layout.len();
        });
        peak = peak.max(bytes);
    }
    Policy::open(root).unwrap().verify().unwrap();
    (peak, largest, all)
}

const ALONE: Workers = Workers { ranks: &SingleProcess, threads: 1 };

fn request() -> MemoryRequest {
    let tokens = trees()[0].len();
    let moments = Some(moment_bytes(update::optimizer::Method::Adamw));
    MemoryRequest {
        tokens,
        largest: tokens,
        rows: 8,
        part: 0,
        positions: 8,
        moments,
        ranks: 1,
        waiting: 0,
        half: Half::BFloat16,
    }
}

fn settings(threads: &str) -> Settings {
    let arguments = Arguments::try_parse_from(["update", "--policy", "p", "--threads", threads]);
    arguments.unwrap().settings().unwrap()
}

fn planner<'a>(settings: &'a Settings, spec: ModelSpec<'a>) -> Planner<'a> {
    Planner { hardware: &settings.hardware, training: &settings.training, spec }
}

#[test]
fn on_a_device_weights_and_moments_pass_by_in_pieces() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let settings = settings("1");
    for dtype in ["bfloat16", "float32"] {
        let root = policy(folder.path(), dtype).root;
        let (peak, largest, all) = two_calls(&root, &settings, |checkpoint, _| {
            let state = checkpoint.state(settings.training.optimizer.method, "clip")?;
            let available = DeviceMemory { free: 8 << 30, workspace: 0 };
            let plan = MemoryPlan::new(&checkpoint.config, None, request(), available)?;
            Ok(Box::new(DeviceLearner::new(
                Sim::new(1, 0)?,
                &plan,
                checkpoint,
                settings.training.optimizer,
                state.as_ref(),
                ALONE,
            )?))
        });
        println!(
            "{dtype}: {peak} bytes, {} of the largest tensor, of {all} bytes of weights in f32",
            peak / largest
        );
        assert!(all > 40 * largest);
        // Masters, their published values and bytes; a product of the simulator; names and headers; ten pieces that wait for the thread
        // that writes a large file.
        assert!(peak < 20 * largest, "{dtype}: {peak} bytes beside tensors of up to {largest}");
    }
}

#[test]
fn on_a_device_the_weights_under_an_adapter_pass_by_in_pieces() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let settings = settings("1");
    let base = policy(folder.path(), "bfloat16");
    let new = Adapter::new(8, 16.0, vec![Target::Query]);
    let root = initial::from_base(&folder.path().join("adapter"), &base.root, &new, 1).unwrap().root;
    let (peak, largest, all) = two_calls(&root, &settings, |checkpoint, _| {
        let state = checkpoint.state(settings.training.optimizer.method, "clip")?;
        let (adapter, _) = checkpoint.adapter().unwrap();
        let available = DeviceMemory { free: 8 << 30, workspace: 0 };
        let plan = MemoryPlan::new(&checkpoint.config, Some(adapter), request(), available)?;
        let (device, settings) = (Sim::new(1, 0)?, settings.training.optimizer);
        Ok(Box::new(DeviceLearner::new(device, &plan, checkpoint, settings, state.as_ref(), ALONE)?))
    });
    println!(
        "adapter: {peak} bytes, {} of the largest tensor, over {all} bytes of weights in f32",
        peak / largest
    );
    assert!(peak < 10 * largest, "{peak} bytes beside tensors of up to {largest}");
}

#[test]
fn on_the_cpu_it_is_what_the_plan_says() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let settings = settings("1");
    for dtype in ["bfloat16", "float32"] {
        let made = policy(folder.path(), dtype);
        let config = Config::load(&made.files).unwrap();
        let (peak, largest, _) = two_calls(&made.root, &settings, |checkpoint, _| {
            let state = checkpoint.state(settings.training.optimizer.method, "clip")?;
            let (model, weights) = checkpoint.on_host()?;
            Ok(Box::new(CpuLearner::new(model, weights, settings.training.optimizer, state.as_ref(), ALONE)?))
        });
        let spec = ModelSpec { config: &config, stored: config.dtype, adapter: None };
        let plan = planner(&settings, spec).estimate(&request()).unwrap();
        let total = plan.bytes.total as usize;
        println!("{dtype}: {peak} bytes of {total} planned");
        assert!(peak < total + 8 * largest, "{dtype}: {peak} bytes of {total} planned");
        assert!(peak > total / 2, "{dtype}: {peak} bytes of {total} planned: the plan says nothing");
    }
}

/// SmolLM2-135M's sizes.
fn smollm2(dtype: &str) -> Config {
    let sizes = json!({
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_152, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "rope_theta": 100_000.0, "tie_word_embeddings": true, "torch_dtype": dtype,
    });
    Config::from_value(&sizes, Path::new("config.json")).unwrap()
}

#[test]
fn a_model_of_135_million_weights_trains_in_three_gigabytes_and_threads_share_them() {
    // Groups of 8 answers of 48 tokens to a prompt of 100.
    let moments = Some(moment_bytes(update::optimizer::Method::Adamw));
    let request = MemoryRequest {
        tokens: 4096,
        largest: 484,
        rows: 3072,
        part: 0,
        positions: 148,
        moments,
        ranks: 1,
        waiting: 0,
        half: Half::BFloat16,
    };
    for dtype in ["float32", "bfloat16"] {
        let config = smollm2(dtype);
        let adapter = update::model::LoraAdapter::new(&Adapter::new(16, 32.0, Target::ALL.to_vec()), &config);
        for (adapter, most) in [(None, 3_000_000_000), (Some(&adapter), 1_200_000_000)] {
            for threads in ["1", "2", "4", "16", "192"] {
                let settings = settings(threads);
                let spec = ModelSpec { config: &config, stored: config.dtype, adapter };
                let bytes = planner(&settings, spec).estimate(&request).unwrap().bytes;
                // Each thread packs its operands.
                let packed = 11_000_000 * (threads.parse::<u64>().unwrap().min(16) - 1);
                assert!(
                    bytes.total <= most + packed,
                    "{dtype}, {threads} threads, adapter {}: {bytes:?}",
                    adapter.is_some()
                );
                let trained = adapter.map_or(134_515_008, |adapter| adapter.layout().len()) as u64;
                assert!(bytes.gradients <= 8 * trained && bytes.moments == 8 * trained, "{bytes:?}");
            }
        }
    }
}
