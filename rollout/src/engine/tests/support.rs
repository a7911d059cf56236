//! Shared by the tests: the runtime library, small random policies, and requests.

use crate::engine::group::{Group, Source};
use crate::engine::scheduler::{Runner, Scheduler};
use crate::engine::{Completion, Engine, Options, Precision, Request, SamplingParams};
use gemm::Isa;
use policy::directory::Policy;
use policy::initial;
use record::philox::{Draws, Part, Stream};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fetches ONNX Runtime if it is missing, and disables its telemetry before it loads.
pub fn runtime() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: tests set no other variable, and nothing reads this one earlier.
        unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let fetched = Command::new(root.join("scripts/fetch-runtime.sh"))
            .output()
            .expect("scripts/fetch-runtime.sh runs");
        assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
    });
}

/// A folder that is removed when the test ends.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("troupe-engine-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A temporary folder left behind is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The sizes of a random policy.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    pub family: &'static str,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub intermediate: usize,
}

/// The sizes of `policy init --preset tiny`.
pub const TINY: Geometry = Geometry {
    family: "qwen3",
    hidden: 96,
    layers: 3,
    heads: 6,
    kv_heads: 3,
    head_size: 16,
    intermediate: 256,
};

/// The sizes of `policy init --preset bench`.
pub const BENCH: Geometry = Geometry {
    family: "qwen3",
    hidden: 256,
    layers: 4,
    heads: 4,
    kv_heads: 2,
    head_size: 64,
    intermediate: 768,
};

/// Vocabulary of every random policy.
pub const VOCABULARY: usize = 512;

/// A random policy and its folder.
pub struct Made {
    pub policy: Policy,
    _folder: Folder,
}

impl Geometry {
    pub fn policy(&self) -> Made {
        self.seeded(7)
    }

    /// The same sizes with weights from `seed`.
    pub fn seeded(&self, seed: u64) -> Made {
        let folder = Folder::new();
        let class = match self.family {
            "qwen2" => "Qwen2ForCausalLM",
            "llama" => "LlamaForCausalLM",
            "mistral" => "MistralForCausalLM",
            "smollm3" => "SmolLM3ForCausalLM",
            "phi3" => "Phi3ForCausalLM",
            "gemma3_text" => "Gemma3ForCausalLM",
            _ => "Qwen3ForCausalLM",
        };
        let config: Value = json!({
            "architectures": [class],
            "model_type": self.family,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "hidden_act": if self.family == "gemma3_text" { "gelu_pytorch_tanh" } else { "silu" },
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "no_rope_layer_interval": 2,
            "sliding_window_pattern": 2,
            "sliding_window": 50,
            "partial_rotary_factor": if self.family == "phi3" { 0.75 } else { 1.0 },
            "tie_word_embeddings": self.family != "llama",
            "torch_dtype": "float32",
            "vocab_size": VOCABULARY,
        });
        let file = folder.0.join("config.json");
        std::fs::write(&file, config.to_string()).expect("written");
        let policy = initial::from_config(&folder.0.join("policy"), &file, seed).expect("a random policy");
        Made { policy, _folder: folder }
    }
}

pub fn engine(policy: &Policy, isa: Option<Isa>, max_rows: usize) -> Engine {
    engine_in(Precision::Float32, policy, isa, max_rows)
}

/// An engine with the given precision.
pub fn engine_in(precision: Precision, policy: &Policy, isa: Option<Isa>, max_rows: usize) -> Engine {
    runtime();
    let options = Options { threads: 1, max_rows, precision, isa, ..Options::default() };
    Engine::load(policy, &options).expect("the engine loads")
}

/// The default engine, and one for each instruction set.
pub fn instruction_sets() -> impl Iterator<Item = Option<Isa>> {
    [None].into_iter().chain(Isa::available().into_iter().map(Some))
}

/// Both precisions.
pub const PRECISIONS: [Precision; 2] = [Precision::Float32, Precision::BFloat16];

/// Token ids that depend only on `name` and `number`.
pub fn tokens(name: &str, number: u64, count: usize) -> Vec<u32> {
    let mut draws = Draws::new(Stream::named(3, &[Part::Text(name), Part::Number(number)]));
    (0..count).map(|_| draws.below(VOCABULARY as u32)).collect()
}

/// A request whose id determines its prompt and its random numbers.
pub fn request(id: u64, prompt: usize, branches: usize, max_tokens: usize) -> Request {
    let stream = |branch| Stream::named(5, &[Part::Number(id), Part::Number(branch)]);
    Request {
        id,
        prompt: tokens("prompt", id, prompt),
        streams: (0..branches as u64).map(stream).collect(),
        max_tokens,
        sampling: SamplingParams::PLAIN,
        stop: None,
        watch: None,
    }
}

/// Runs the model until all groups are finished; returns them in the order of their ids.
pub fn drain(decoder: &mut Scheduler<impl Runner>) -> Vec<(u64, Vec<Completion>)> {
    let mut finished = Vec::new();
    while !decoder.is_idle() {
        finished.extend(decoder.advance().expect("a run"));
    }
    finished.sort_by_key(|&(id, _)| id);
    finished
}

/// A group's completions as bits, for exact comparisons.
pub fn bits(completions: &[Completion]) -> Vec<(Vec<u32>, Vec<u32>, bool)> {
    let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect();
    completions.iter().map(|c| (c.ids.clone(), bits(&c.logprobs), c.stopped)).collect()
}

impl<R: Runner> Scheduler<R> {
    /// Queues a group that scores given completions of at least one token. It takes the same runs as a
    /// generating group; its completions are the given tokens with their log-probabilities.
    pub fn submit_scores(
        &mut self,
        adapter: Option<u32>,
        id: u64,
        prompt: Vec<u32>,
        completions: &[Vec<u32>],
        temperature: f32,
    ) {
        let max_tokens = completions.iter().map(Vec::len).max().expect("a completion");
        let sampling = SamplingParams { temperature, ..SamplingParams::PLAIN };
        let request =
            Request { id, prompt, streams: Vec::new(), max_tokens, sampling, stop: None, watch: None };
        self.push(Group::new(adapter, request, completions.iter().cloned().map(Source::Given)));
    }

    /// The log-probabilities of given completions of at least one token.
    pub fn score(
        &mut self,
        adapter: Option<u32>,
        prompt: &[u32],
        completions: &[Vec<u32>],
        temperature: f32,
    ) -> Vec<Vec<f32>> {
        assert!(self.is_idle());
        self.submit_scores(adapter, 0, prompt.to_vec(), completions, temperature);
        drain(self).remove(0).1.into_iter().map(|completion| completion.logprobs).collect()
    }
}
