//! `policy graph`: the decoder as a file that other tools can open.

use std::fs;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Arithmetic, Kind};
use policy::weights::Weights;
use record::failure::{Failure, Result};

/// Write the decoder graph as model.onnx, to look at it
///
/// Examples:
///   policy graph run/tool
///   policy graph run/tool --kind shared-prefix --output decoder.onnx
///
/// The weights stay where they are: the model refers to the safetensors beside which it is written.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Graph {
    /// A policy directory or a Hugging Face directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Which attention
    #[arg(long, value_name = "KIND", default_value = "group-query")]
    kind: Attention,
    /// Where to write instead of model.onnx beside the weights; elsewhere it can be looked at, not run
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Attention {
    /// GroupQueryAttention: runs in any ONNX Runtime
    GroupQuery,
    /// The operator that rollout brings along, which shares prompts between branches
    SharedPrefix,
    /// PagedAttention in bf16: what rollout runs on CUDA
    Paged,
}

pub fn run(arguments: &Graph) -> Result<()> {
    let policy = Policy::open(&arguments.directory)?;
    let config = Config::load(policy.model())?;
    let weights = Weights::open(policy.model())?;
    let kind = match arguments.kind {
        Attention::GroupQuery => Kind::GroupQuery,
        Attention::SharedPrefix => Kind::SHARED_PREFIX,
        Attention::Paged => Kind::Paged(Arithmetic::BF16),
    };
    let model = graph::decoder(&config, &weights, kind)?;
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => weights.folder()?.join("model.onnx"),
    };
    fs::write(&path, model).map_err(|error| Failure::io(format!("{}: {error}", path.display())))?;
    super::check::print(&[path.display().to_string()])
}
