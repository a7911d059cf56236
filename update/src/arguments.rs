//! The command line of `update`: the flags as they are typed. [`Arguments::settings`] checks them and makes the
//! [`Settings`](crate::settings::Settings) that the rest of the program works with.

mod check;
mod help;

use std::path::PathBuf;

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use device::ComputeDtype;
use gemm::Isa;

use crate::aggregate::Averaging;
use crate::loss_config::{Importance, Objective, RatioLevel};
use crate::minibatch::DEFAULT_TOKENS;
use crate::optimizer::Method;
use crate::optimizer::schedule::Schedule;
use help::{EXAMPLES, FORMULAS, VERSION};

/// Turns samples with advantages into the next version of each policy.
///
/// Reads a complete stream from stdin, trains every named policy on the samples of its agents, starting from
/// the version that the samples name, and publishes the next version. An incomplete stream publishes nothing.
#[derive(Debug, Clone, Parser)]
#[command(name = "update", version = VERSION.as_str(), before_long_help = EXAMPLES, after_long_help = FORMULAS)]
pub struct Arguments {
    /// Policy directory to train, on all samples or, with AGENT=, on this agent's
    ///
    /// Flags with the same directory are one policy with one optimizer (for a copy: policy init NEW --from DIR).
    #[arg(long, value_name = "[AGENT=]DIR", required = true, help_heading = "Policies")]
    pub policy: Vec<String>,

    /// Objective to minimize
    #[arg(long, value_enum, default_value = "clip", help_heading = "Objective")]
    pub objective: Objective,

    /// Level of the ratio of --objective clip [default: token]
    #[arg(long, value_enum, value_name = "LEVEL", help_heading = "Objective")]
    pub ratio: Option<RatioLevel>,

    /// Clip range of a token's ratio, below and above 1; one number is both [default: 0.2]
    ///
    /// DAPO's clip-higher (arXiv 2503.14476) is 0.2,0.28.
    #[arg(long, value_name = "LOW[,HIGH]", value_delimiter = ',', num_args = 1, help_heading = "Objective")]
    pub clip: Vec<f64>,

    /// Weight of the KL divergence from --reference
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Objective")]
    pub kl: f64,

    /// Reference policy of --kl: a policy or Hugging Face directory
    #[arg(long, value_name = "[AGENT=]DIR", help_heading = "Objective")]
    pub reference: Vec<String>,

    /// Entropy bonus: subtract from the loss C times the mean entropy of the tokens' distributions, in nats, averaged
    /// as --aggregate says
    ///
    /// Samples of flat groups are not computed, so they add nothing.
    #[arg(long, value_name = "C", default_value_t = 0.0, help_heading = "Objective")]
    pub entropy: f64,

    /// Weight each token by its trainer-to-sampler probability ratio, truncated at C [default: off]
    ///
    /// Truncated importance sampling; 2 is usual. level=sequence weights whole completions. With mask a weight above C
    /// is 0 instead of C, and with floor=F also one below F.
    #[arg(long, value_name = "C[,level=sequence][,mask[,floor=F]]", help_heading = "Objective")]
    pub importance: Option<Importance>,

    /// Drop samples with a negative advantage that have become less likely by more than D nats per token
    /// (they count in the averages) [default: off]
    #[arg(long, value_name = "D", allow_negative_numbers = true, help_heading = "Objective")]
    pub mask_negative_above: Option<f64>,

    /// How token losses are averaged: token | sequence | constant[=L]; formulas below
    ///
    /// L is a number of completion tokens, by default of the longest completion in the stream.
    #[arg(long, value_name = "HOW", default_value = "token", help_heading = "Objective")]
    pub aggregate: Averaging,

    /// Optimizer steps per epoch; tasks are dealt to this many minibatches
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Optimizer")]
    pub minibatches: u64,

    /// Passes over the samples
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Optimizer")]
    pub epochs: u64,

    /// Optimizer
    #[arg(long, value_enum, default_value = "adamw", help_heading = "Optimizer")]
    pub optimizer: Method,

    /// Peak learning rate, with AGENT= of this agent's policy, repeatable [default: 1e-3 for a tiny policy, 1e-5 for a
    /// pretrained one; for adapters of one 5e-4, or 1e-4 from 0.3 billion parameters]
    #[arg(long, value_name = "[AGENT=]X", value_parser = rate, help_heading = "Optimizer")]
    pub lr: Vec<(String, f64)>,

    /// Peak learning rate of the tensors that AdamW updates under Muon: embedding, head, norms, biases
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    pub lr_other: Option<f64>,

    /// Learning rate after warm-up; the cosine spans the optimizer steps of this call
    #[arg(long, value_enum, default_value = "constant", help_heading = "Optimizer")]
    pub schedule: Schedule,

    /// Optimizer steps of linear warm-up, counted over all calls [default: 5; 2 for a pretrained policy]
    #[arg(long, value_name = "N", help_heading = "Optimizer")]
    pub lr_warmup: Option<u64>,

    /// Decoupled weight decay of matrices (never of norms and biases)
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Optimizer")]
    pub weight_decay: f64,

    /// Decay rates of AdamW's two moments [default: 0.9,0.95]
    #[arg(long, value_name = "B1,B2", value_delimiter = ',', num_args = 1, help_heading = "Optimizer")]
    pub betas: Vec<f64>,

    /// Clip the gradient's global norm to this; 0: off
    #[arg(long, value_name = "X", default_value_t = 1.0, help_heading = "Optimizer")]
    pub max_grad_norm: f64,

    /// Most tokens in a micro-batch, with shared prefixes counted once; decides the memory for activations
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TOKENS,
          value_parser = clap::value_parser!(u64).range(1..), help_heading = "Machine")]
    pub max_tokens_per_batch: u64,

    /// Largest difference in nats between a recorded log-probability and the trainer's before the first step; a tenth
    /// of it is the limit of the mean [default: 0.01, or 0.5 if weights, --dtype or rollout's dtype have 16 bits or
    /// rollout's is unknown: then one token in a hundred may differ by more, and none by more than ten times]
    ///
    /// If it is larger, nothing is published; 0: off.
    #[arg(long, value_name = "X", help_heading = "Checks")]
    pub max_logprob_gap: Option<f64>,

    /// cpu, cuda or cuda:N (an NVIDIA GPU), or sim (the GPU's kernels run on the CPU: for tests, far too slow for
    /// work)
    ///
    /// Each rank of update-mpi takes one GPU: of all with cuda, of a list with cuda:0-3 or cuda:0,2.
    #[arg(long, default_value = "cpu", help_heading = "Machine")]
    pub device: String,

    /// Type in which linear layers compute; use rollout's [default: float32 on the CPU, bfloat16 on devices]
    ///
    /// On a CPU bfloat16 may be faster or slower: measure. float16 is for devices: eight times as exact as bfloat16,
    /// with a dynamic loss scale.
    #[arg(long, value_name = "TYPE", help_heading = "Machine",
          value_parser = PossibleValuesParser::new(ComputeDtype::NAMES).try_map(|name| name.parse::<ComputeDtype>()))]
    pub dtype: Option<ComputeDtype>,

    /// Instruction set of all CPU kernels; avx512-bf16, avx512 and avx2 give the same bytes [default: the
    /// fastest]
    #[arg(long, value_name = "NAME", help_heading = "Machine",
          value_parser = PossibleValuesParser::new(Isa::NAMES).try_map(|name| name.parse::<Isa>()))]
    pub isa: Option<Isa>,

    /// Sum each optimizer batch's gradient as a tree of N parts, a power of two
    ///
    /// The bytes of the result depend on N, and not on the number of processes that share the parts: mpirun -n R
    /// update-mpi, with R a power of two up to N.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Machine")]
    pub parts: u64,

    /// Train the policies at the same time, each on an equal share of the processes: mpirun -n R update-mpi, with R a
    /// multiple of their number
    ///
    /// Gives the same bytes as training one after another on all processes, which takes less memory.
    #[arg(long, conflicts_with_all = ["check", "dry_run"], help_heading = "Machine")]
    pub side_by_side: bool,

    /// With --dry-run: plan the memory of each of R processes
    #[arg(long, value_name = "R", requires = "dry_run", value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Machine")]
    pub ranks: Option<u64>,

    /// Device memory to use, in GB (10^9 bytes); with --dry-run, the memory to plan for [default: all free
    /// memory]
    #[arg(long, value_name = "GB", help_heading = "Machine")]
    pub device_memory: Option<f64>,

    /// Seed by which each epoch deals the tasks to minibatches
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Optimizer")]
    pub seed: u64,

    /// Number of threads; any number gives bit-identical weights [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Machine")]
    pub threads: Option<u64>,

    /// Only print the plan of each policy as a JSON object: parameters, trainable parameters, samples, tokens,
    /// optimizer steps, bytes of memory
    ///
    /// Without samples it plans for --max-tokens-per-batch; a config.json without weights is enough.
    #[arg(long, conflicts_with_all = ["check", "pass_through"], help_heading = "Checks")]
    pub dry_run: bool,

    /// Recompute the recorded log-probabilities and report the gap; publish nothing
    ///
    /// Fails above --max-logprob-gap, whose default is then 1e-3 for f32 weights and --dtype float32, 0.5 otherwise.
    /// With =FILE, writes one JSON line per token to FILE: policy, sample (its index in the order of episodes),
    /// group, position in the sequence, token, and the recorded and the recomputed log-probability.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, help_heading = "Checks")]
    pub check: Option<Option<PathBuf>>,

    /// Copy the input to stdout before the metrics
    #[arg(long, help_heading = "Stream")]
    pub pass_through: bool,

    /// Versions to keep in the policy directory
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Policies")]
    pub keep: u64,

    /// Train on a stream without a complete set of end lines
    #[arg(long, help_heading = "Stream")]
    pub allow_incomplete: bool,

    /// Train on greedy samples and on samples of top-p, top-k or min-p sampling, whose recorded log-probabilities
    /// do not match the distribution they came from
    #[arg(long, help_heading = "Stream")]
    pub allow_truncated_sampling: bool,

    /// Process one part of the input after another, each up to its `end` line
    ///
    /// Each part is an update and is answered with an `end` line. Weights and moments stay in memory between parts;
    /// with a GPU only the optimizer's state does, in host memory.
    #[arg(long, conflicts_with_all = ["check", "dry_run"], help_heading = "Policies")]
    pub resident: bool,

    /// Save the optimizer's state every N steps and at the end of the input, instead of with every version
    ///
    /// Another process can resume only from a saved state.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..),
          requires = "resident", help_heading = "Policies")]
    pub save_every: u64,

    /// No progress and no messages on stderr
    #[arg(long, short, help_heading = "Stream")]
    pub quiet: bool,
}

/// An agent, or nothing for all others, and a learning rate.
fn rate(text: &str) -> Result<(String, f64), String> {
    let (agent, number) = text.split_once('=').unwrap_or(("", text));
    let rate =
        number.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0 && !text.starts_with('='));
    Ok((agent.to_owned(), rate.ok_or("not 0 or above, or AGENT=X")?))
}
