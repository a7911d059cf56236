//! The command line of `policy`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use policy::adapter::{Adapter, Target};
use policy::gguf::Format;
use policy::weights::ElementType;
use serde_json::Value;

/// Policies on disk: make, check and export them, encode text for them, write their decoder graph
///
/// Examples:
///   policy init run/tool --preset tiny --seed 7
///   policy check run/tool
///   envs demo plan-path --count 1000 --seed 7 | policy encode --policy run/tool > demonstrations.jsonl
///   policy export run/tool tool-export
///   policy graph run/tool
#[derive(Parser)]
#[command(name = "policy", version, verbatim_doc_comment, subcommand_required = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,

    /// Print nothing on stderr but errors
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

#[derive(Subcommand)]
pub enum Command {
    Init(Init),
    Fetch(Fetch),
    Encode(Encode),
    Check(Check),
    Export(Export),
    Graph(Graph),
}

/// Make a policy directory
///
/// Examples:
///   policy init run/tool --preset tiny --seed 7
///   policy init run/tool --preset smollm2
///   policy init run/tool --from hf:Qwen/Qwen3-0.6B --chat-template-kwargs '{"enable_thinking":false}'
///   policy init run/tool --from ~/models/Qwen3-0.6B-Q8_0.gguf
///   policy init run/tool --from run/base --adapter rank=8,alpha=16,targets=q_proj+v_proj
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Init {
    /// The directory to make
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// tiny: 0.35 million random weights; bench: 3.3 million, for measurements; smollm2:
    /// SmolLM2-135M-Instruct, a pretrained chat model, downloaded once with pip (93 MB)
    #[arg(long, value_name = "NAME", hide_possible_values = true, conflicts_with_all = ["config", "from"], required_unless_present_any = ["config", "from"])]
    pub preset: Option<Preset>,
    /// Random weights with the sizes of this config.json, and a new tokenizer
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub config: Option<PathBuf>,
    /// Copy a Hugging Face directory, a hub model or a GGUF file; omitted files are named
    #[arg(long, value_name = "HF_DIR|hf:ORG/NAME[/FILE.gguf][@REVISION]|GGUF")]
    pub from: Option<PathBuf>,
    /// Type of the weights of a GGUF file or smollm2: float32, float16, bfloat16 (default)
    #[arg(long, value_name = "TYPE", hide_possible_values = true, conflicts_with_all = ["config", "adapter"])]
    pub dtype: Option<Dtype>,
    /// Additional variables for the chat template, as a JSON object; stored with the policy
    #[arg(long, value_name = "JSON", requires = "from", value_parser = variables)]
    pub chat_template_kwargs: Option<Value>,
    /// A LoRA adapter over --from, which is never changed. Default targets: all modules
    #[arg(long, value_name = "rank=R,alpha=A[,targets=M+M]", requires = "from", conflicts_with = "chat_template_kwargs",
          value_parser = adapter)]
    pub adapter: Option<Adapter>,
    /// Seed of the random weights [default: 1]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
}

/// Download or convert a model, and print its directory
///
/// Examples:
///   policy check $(policy fetch smollm2)
///   policy fetch hf:Qwen/Qwen3-0.6B
///   policy fetch hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
///
/// A GGUF file is converted once, into the user's cache; policies made from it share these weights.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Fetch {
    /// smollm2, a hub model, one of its GGUF files, a local GGUF file, or a directory
    #[arg(value_name = "smollm2|hf:ORG/NAME[/FILE.gguf][@REVISION]|GGUF|DIR")]
    pub model: PathBuf,
    /// Type of the weights of a GGUF file
    #[arg(long, value_name = "TYPE", hide_possible_values = true, default_value = "bfloat16")]
    pub dtype: Dtype,
    /// text: the directory; json: also the number of parameters
    #[arg(long, value_name = "FORMAT", hide_possible_values = true, default_value = "text")]
    pub format: FetchFormat,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum FetchFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    Tiny,
    Bench,
    Smollm2,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Dtype {
    Float32,
    Bfloat16,
    Float16,
}

impl From<Dtype> for ElementType {
    fn from(dtype: Dtype) -> ElementType {
        match dtype {
            Dtype::Float32 => ElementType::F32,
            Dtype::Float16 => ElementType::F16,
            Dtype::Bfloat16 => ElementType::BF16,
        }
    }
}

/// Add token ids to samples that have only text (a filter)
///
/// Examples:
///   envs demo plan-path --count 1000 --seed 7 | policy encode --policy run/all > samples.jsonl
///   policy encode --policy tool=run/tool --policy planner=run/planner < demonstrations.jsonl
///
/// Adds prompt_ids, completion_ids (the stop token included) and policy_version.
/// Samples with ids, samples of agents without a policy, and all other lines pass unchanged.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Encode {
    /// The policy that will train on one agent's samples, or on all (repeatable)
    #[arg(long = "policy", value_name = "[AGENT=]DIR", required = true)]
    pub policies: Vec<String>,
    /// Accept an incomplete stream
    #[arg(long)]
    pub allow_incomplete: bool,
}

/// Check a policy and describe it
///
/// Examples:
///   policy check run/tool
///   policy check ~/models/Qwen3-0.6B
///
/// Reads the newest version: configuration, every weight (shape, type, finite), tokenizer,
/// chat template, stop tokens.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Check {
    /// A policy directory or a Hugging Face directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Write a version for other tools: without optimizer state, with a model card
///
/// Examples:
///   policy export run/tool tool-merged --merge --push ORG/NAME
///   policy export run/tool/step-000012 tool-adapter --base Qwen/Qwen3-0.6B
///   policy export run/tool --gguf tool.gguf --dtype q8_0
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Export {
    /// A policy directory, one of its versions, or a Hugging Face directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The directory to make
    #[arg(value_name = "OUT", required_unless_present = "gguf")]
    pub output: Option<PathBuf>,
    /// Write a GGUF file for llama.cpp, adapters merged, and a Modelfile for Ollama next to it
    #[arg(long, value_name = "FILE")]
    pub gguf: Option<PathBuf>,
    /// Type of its weights: float32, float16, bfloat16, q8_0 [default: the type of the policy]
    #[arg(long, value_name = "TYPE", requires = "gguf", value_parser = gguf_format)]
    pub dtype: Option<Format>,
    /// Upload OUT to the hub through huggingface_hub; a new model is private
    #[arg(long, value_name = "ORG/NAME", requires = "output")]
    pub push: Option<String>,
    /// Merge the adapter into the weights of its base: a complete model
    #[arg(long)]
    pub merge: bool,
    /// The base's name for other users: a hub model, or a path [default: its name on the hub]
    #[arg(long, value_name = "NAME")]
    pub base: Option<String>,
    /// The run to describe in the card [default: RUN of RUN/policies/NAME]
    #[arg(long, value_name = "RUN")]
    pub run: Option<PathBuf>,
}

/// Write the decoder graph as model.onnx, for inspection
///
/// Examples:
///   policy graph run/tool
///   policy graph run/tool --kind shared-prefix --output decoder.onnx
///
/// The model refers to the safetensors in its folder; the weights are not copied.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Graph {
    /// A policy directory or a Hugging Face directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Kind of attention
    #[arg(long, value_name = "KIND", default_value = "group-query")]
    pub kind: Attention,
    /// Write here instead of model.onnx in the folder of the weights; elsewhere it can be inspected but not
    /// run
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Attention {
    /// GroupQueryAttention: runs in any ONNX Runtime
    GroupQuery,
    /// The operator that rollout brings along, which shares prompts between branches
    SharedPrefix,
    /// PagedAttention in bf16: what rollout runs on CUDA
    Paged,
}

fn variables(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}

fn gguf_format(text: &str) -> Result<Format, String> {
    match text {
        "float32" | "f32" => Ok(Format::F32),
        "float16" | "f16" => Ok(Format::F16),
        "bfloat16" | "bf16" => Ok(Format::BF16),
        "q8_0" | "Q8_0" => Ok(Format::Q8_0),
        _ => Err("types: float32, float16, bfloat16, q8_0".to_owned()),
    }
}

/// `rank=8,alpha=16,targets=q_proj+v_proj`.
fn adapter(text: &str) -> Result<Adapter, String> {
    let (mut rank, mut alpha, mut targets) = (None, None, Target::ALL.to_vec());
    for setting in text.split(',') {
        let (key, value) = setting.split_once('=').ok_or_else(|| format!("{setting:?} is not key=value"))?;
        match key {
            "rank" => rank = value.parse().ok().filter(|rank| (1..=1024).contains(rank)),
            "alpha" => alpha = value.parse().ok().filter(|alpha: &f32| *alpha > 0.0 && alpha.is_finite()),
            "targets" => {
                let named = |name| {
                    let known = Target::ALL.map(Target::name).join("+");
                    let fused = Target::FUSED.map(Target::name).join("+");
                    Target::named(name)
                        .ok_or_else(|| format!("no module {name:?}; modules are {known}, of Phi3 {fused}"))
                };
                targets = value.split('+').map(named).collect::<Result<_, String>>()?;
            }
            _ => return Err(format!("no setting {key:?}; settings are rank, alpha and targets")),
        }
    }
    match (rank, alpha) {
        (Some(rank), Some(alpha)) => Ok(Adapter::new(rank, alpha, targets)),
        _ => Err("needs rank=, a whole number from 1 to 1024, and alpha=, above 0".to_owned()),
    }
}
