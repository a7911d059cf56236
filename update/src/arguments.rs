//! The command line of `update`: flags, their defaults, and which of them contradict each other.
//!
//! A flag that has no effect with the others is an error: whoever passes `--clip` with `--objective nll` expects
//! something else.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};
use std::thread::Builder;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use device::DeviceKind;
use device::cuda::{self, Library, open_library};
use gemm::{Isa, Precision};
use record::failure::{Failure, Result};
use record::stage;

use crate::aggregate::Aggregate;
use crate::loss::{Importance, LossConfig, RatioLevel, WeightLevel};
use crate::objective::WeightBounds;
use crate::optimizer::schedule::Schedule;
use crate::optimizer::{Method, Settings, on_device};

const EXAMPLES: &str = "\
Examples:
  One on-policy step from a whole stream; the new version goes into the policy directory
    … | group | advantage | update --policy run/policies/shared --lr 1e-6

  One policy a role, in one process; each trains on its own agent's samples
    … | advantage | update --policy tool=run/tool --policy planner=run/planner

  A supervised warm-up on demonstrations
    envs demo plan-path --count 9600 | policy encode --policy run/tool |
      update --policy run/tool --objective nll --minibatches 1200 --optimizer muon --lr 0.03 \\
        --lr-other 4e-3 --schedule cosine --warmup 50

  Do rollout and update agree on the log-probabilities? Publishes nothing
    update --policy run/tool --check < samples.jsonl

  What would it do, and how much memory would it take?
    update --policy run/tool --dry-run < samples.jsonl

  Four processes that share the work, and their machines' memory does not: the same bytes as by one with --parts 8
    mpirun -n 4 update-mpi --policy run/tool --parts 8 < samples.jsonl

  Two policies at the same time, two processes each
    mpirun -n 4 update-mpi --policy tool=run/tool --policy planner=run/planner --side-by-side --parts 8 < samples.jsonl

  Does this geometry fit the GPU? A directory with a config.json is enough
    update --policy Qwen3-8B --dry-run --device cuda --max-tokens-per-batch 32768 < /dev/null
";

const FORMULAS: &str = "\
The loss of one optimizer batch, with N samples, n_i completion tokens in sample i, and l_ij the term of a token:
  --aggregate token      sum_ij l_ij / sum_i n_i
  --aggregate sequence   (1/N) sum_i (1/n_i) sum_j l_ij
  --aggregate constant   sum_ij l_ij / (N * L), L from --max-tokens
  --objective clip       l = -min(r*A, clip(r, 1-clip, 1+clip_high)*A) + kl*k3, r = exp(new - recorded)
                         k3 = exp(d) - d - 1, d = reference - new (arXiv 2402.03300)
  --importance-cap C     l = -w*min(...) with r = exp(new - start), w = min(exp(start - recorded), C), start the
                         trainer's own log-probability before the first step (Yao et al. 2025, \"Your efficient RL
                         framework secretly brings you off-policy RL training\")
  --ratio sequence       r = exp(mean_j(new - recorded)), one for the whole completion (GSPO, arXiv 2507.18071, whose clip
                         range is 3e-4 and 4e-4, with --aggregate sequence: token would weigh long answers more)
  --objective cispo      l = -min(r, 1+clip_high)*A*new, the ratio a constant (arXiv 2506.13585); its value has no meaning
  --importance-level sequence    w of the whole completion: exp(sum_j(start - recorded))
  --importance-outside mask      w = 0 above C and below --importance-floor
  --entropy C            l = ... - C*H, H the entropy of the distribution that the token was drawn from, at its temperature
  --mask-negative-above D        l = 0 where A < 0 and mean_j(recorded - new) > D (DeepSeek-V3.2)
  --objective nll        l = -w*new, w the sample's advantage where it has one, else 1
In the first optimizer step of a rollout r is 1, and clip, GSPO and CISPO have the same gradient under the same
--aggregate: they differ from the second one on.
Samples of flat groups (all advantages 0, no --kl) are not computed but count in N and sum_i n_i. A batch of flat groups
only takes no optimizer step; the next version is published with the same weights.

The optimizer's state (moments and the number of steps, which --warmup counts) is saved in the policy directory and
continues from call to call. It starts fresh, with a message, when --optimizer or --objective changes.

Exit codes: 0 done, 1 the work or --check failed, 2 usage, 65 bad record or incomplete stream (nothing is published),
69 device unavailable, 74 I/O, 130 and 143 interrupted (nothing is published).";

/// The build, its instruction set on this machine, and the CUDA installation.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let isa = Isa::best();
    // Looking for a GPU takes a while, so only `--version` does it.
    let asked = std::env::args().any(|argument| argument == "--version" || argument == "-V");
    let cuda = if asked { cuda::installation() } else { String::new() };
    format!("{} (cpu: {isa}; cuda: {cuda})", stage::build())
});

/// The loss of `--objective`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Objective {
    /// Clipped surrogate on token ratios (PPO, GRPO, AT-GRPO)
    Clip,
    /// Policy gradient with a ratio that is held from above and not differentiated (CISPO)
    Cispo,
    /// Weighted negative log-likelihood (supervised)
    Nll,
}

/// What becomes of an importance weight above the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImportanceOutside {
    /// It is the cap
    Truncate,
    /// It is 0: the token or the sequence is dropped
    Mask,
}

/// Turns samples with advantages into the next version of each policy.
///
/// Reads a whole stream from stdin, trains every policy named on the samples of the agents it owns, starting from the
/// version that the samples name, and publishes the next version. A stream that is not whole publishes nothing.
#[derive(Debug, Clone, Parser)]
#[command(name = "update", version = VERSION.as_str(), before_help = EXAMPLES, after_help = FORMULAS)]
pub struct Arguments {
    /// Policy directory to train; with AGENT= only that agent's samples are its own. Flags that name one directory are
    /// one policy with one optimizer (a second one: policy init NEW --from DIR)
    #[arg(long, value_name = "[AGENT=]DIR", required = true)]
    pub policy: Vec<String>,

    /// Objective to minimize
    #[arg(long, value_enum, default_value = "clip", help_heading = "Objective")]
    pub objective: Objective,

    /// Of what the ratio of --objective clip is [default: token]
    #[arg(long, value_enum, value_name = "LEVEL", help_heading = "Objective")]
    pub ratio: Option<RatioLevel>,

    /// Clip range of a token's ratio below 1 (and above, without --clip-high) [default: 0.2]
    #[arg(long, value_name = "X", help_heading = "Objective")]
    pub clip: Option<f64>,

    /// Clip range above 1 [default: --clip]
    #[arg(long, value_name = "X", help_heading = "Objective")]
    pub clip_high: Option<f64>,

    /// Weight of the KL divergence from --reference
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Objective")]
    pub kl: f64,

    /// Reference policy of --kl: a policy or Hugging Face directory
    #[arg(long, value_name = "[AGENT=]DIR", help_heading = "Objective")]
    pub reference: Vec<String>,

    /// Reward the entropy of the policy: the loss is less by C times the mean entropy of the tokens' distributions, nats, averaged
    /// as --aggregate says. Samples of flat groups are not computed, so they add none
    #[arg(long, value_name = "C", default_value_t = 0.0, help_heading = "Objective")]
    pub entropy: f64,

    /// Weight each token by its trainer-to-sampler probability ratio, truncated at C (truncated importance sampling; 2 is
    /// usual) [default: off]
    #[arg(long, value_name = "C", help_heading = "Objective")]
    pub importance_cap: Option<f64>,

    /// Of what an importance weight is [default: token]
    #[arg(long, value_enum, value_name = "LEVEL", requires = "importance_cap", help_heading = "Objective")]
    pub importance_level: Option<WeightLevel>,

    /// What becomes of a weight above the cap: the cap, or 0 [default: truncate]
    #[arg(long, value_enum, value_name = "WHAT", requires = "importance_cap", help_heading = "Objective")]
    pub importance_outside: Option<ImportanceOutside>,

    /// With --importance-outside mask: the least weight that is not dropped [default: 0]
    #[arg(long, value_name = "C", requires = "importance_cap", help_heading = "Objective")]
    pub importance_floor: Option<f64>,

    /// Leave out samples with a negative advantage that have become less likely by more than D, nats a token (they count in the
    /// averages) [default: off]
    #[arg(long, value_name = "D", allow_negative_numbers = true, help_heading = "Objective")]
    pub mask_negative_above: Option<f64>,

    /// How token terms are averaged; formulas below
    #[arg(long, value_enum, default_value = "token", help_heading = "Objective")]
    pub aggregate: Aggregate,

    /// L of --aggregate constant, completion tokens [default: the longest completion in the stream]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Objective")]
    pub max_tokens: Option<u64>,

    /// Optimizer steps per epoch; tasks are dealt to this many minibatches
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Optimizer")]
    pub minibatches: u64,

    /// Passes over the samples
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Optimizer")]
    pub epochs: u64,

    /// Optimizer
    #[arg(long, value_enum, default_value = "adamw", help_heading = "Optimizer")]
    pub optimizer: Method,

    /// Peak learning rate
    #[arg(long, value_name = "X", default_value_t = 1e-6, help_heading = "Optimizer")]
    pub lr: f64,

    /// Peak learning rate of the tensors that AdamW updates under Muon: embedding, head, norms, biases
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    pub lr_other: Option<f64>,

    /// Learning rate after warm-up; the cosine spans the optimizer steps of this call
    #[arg(long, value_enum, default_value = "constant", help_heading = "Optimizer")]
    pub schedule: Schedule,

    /// Optimizer steps of linear warm-up, counted over all calls
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Optimizer")]
    pub warmup: u64,

    /// Decoupled weight decay of matrices (never of norms and biases)
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Optimizer")]
    pub weight_decay: f64,

    /// Decay rates of AdamW's two moments [default: 0.9,0.999]
    #[arg(long, value_name = "B1,B2", value_delimiter = ',', num_args = 1, help_heading = "Optimizer")]
    pub betas: Vec<f64>,

    /// Clip the gradient's global norm to this; 0: off
    #[arg(long, value_name = "X", default_value_t = 1.0, help_heading = "Optimizer")]
    pub max_grad_norm: f64,

    /// Tokens computed at once, at most, shared prefixes counted once: the one memory knob
    #[arg(long, value_name = "N", default_value_t = crate::minibatch::DEFAULT_TOKENS,
          value_parser = clap::value_parser!(u64).range(1..), help_heading = "Running")]
    pub max_tokens_per_batch: u64,

    /// Limit of the difference in nats between a recorded log-probability and the trainer's before the first
    /// step; the mean's limit is a tenth. Beyond it nothing is published; 0: off [default: 0.01, or 0.5 if
    /// weights, --dtype or rollout's dtype have 16 bits or rollout's is unknown: then one token in a hundred
    /// may differ by more, and none by more than ten times]
    #[arg(long, value_name = "X", help_heading = "Running")]
    pub max_logprob_gap: Option<f64>,

    /// cpu, cuda or cuda:N (an NVIDIA GPU), or sim (the GPU's kernels run on the CPU: for tests, far too slow for work)
    #[arg(long, default_value = "cpu", help_heading = "Running")]
    pub device: String,

    /// Type in which linear layers compute; use rollout's. On a CPU bfloat16 may be faster or slower: measure
    /// [default: float32 on the CPU, bfloat16 on devices, which have no other]
    #[arg(long, value_name = "TYPE", help_heading = "Running",
          value_parser = PossibleValuesParser::new(Precision::NAMES).try_map(|name| name.parse::<Precision>()))]
    pub dtype: Option<Precision>,

    /// Instruction set of all CPU kernels; avx512-bf16, avx512 and avx2 give the same bytes [default: the
    /// fastest]
    #[arg(long, value_name = "NAME", help_heading = "Running",
          value_parser = PossibleValuesParser::new(Isa::NAMES).try_map(|name| name.parse::<Isa>()))]
    pub isa: Option<Isa>,

    /// Sum each optimizer batch's gradient as a tree of N parts, a power of two. The bytes of the result
    /// depend on N, and not on the number of processes that share the parts: mpirun -n R update-mpi, with R a
    /// power of two up to N
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Running")]
    pub parts: u64,

    /// Train the policies at the same time, each on an equal share of the processes: mpirun -n R update-mpi,
    /// with R a multiple of their number. Gives the same bytes as training one after another on all
    /// processes, which takes less memory
    #[arg(long, conflicts_with_all = ["check", "dry_run"], help_heading = "Running")]
    pub side_by_side: bool,

    /// With --dry-run: plan the memory of each of R processes
    #[arg(long, value_name = "R", requires = "dry_run", value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Running")]
    pub ranks: Option<u64>,

    /// Device memory to use at most, GB (10^9 bytes); with --dry-run, the memory to plan for [default: what is free]
    #[arg(long, value_name = "GB", help_heading = "Running")]
    pub device_memory: Option<f64>,

    /// Shuffle tasks with this seed before each epoch [default: the stream's order]
    #[arg(long, value_name = "N", help_heading = "Running")]
    pub seed: Option<u64>,

    /// Threads; any number gives bit-identical weights [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Running")]
    pub threads: Option<u64>,

    /// Print the plan (parameters, those trained and all, samples, tokens, optimizer steps, bytes of memory) as one JSON
    /// object a policy, and do nothing; without samples, what --max-tokens-per-batch takes, of a config.json alone if there are no weights
    #[arg(long, conflicts_with_all = ["check", "pass_through"], help_heading = "Running")]
    pub dry_run: bool,

    /// Recompute the recorded log-probabilities and report the gap; fail above --max-logprob-gap [default here: 1e-3 for
    /// f32 weights and --dtype float32, 0.5 otherwise]; publish nothing
    #[arg(long, help_heading = "Running")]
    pub check: bool,

    /// With --check, write each token to FILE, a JSON object a line: policy, sample (counted in the order of episodes), group,
    /// position in the sequence, token, and both log-probabilities, recorded and recomputed
    #[arg(long, value_name = "FILE", requires = "check", help_heading = "Running")]
    pub per_token: Option<PathBuf>,

    /// Copy the input to stdout before the metrics
    #[arg(long, help_heading = "Running")]
    pub pass_through: bool,

    /// Versions to keep in the policy directory
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Running")]
    pub keep: u64,

    /// Train on a stream without a complete set of end lines
    #[arg(long, help_heading = "Running")]
    pub allow_incomplete: bool,

    /// Train on greedy samples and on samples of top-p, top-k or min-p sampling, whose recorded log-probabilities
    /// do not match the distribution they came from
    #[arg(long, help_heading = "Running")]
    pub allow_truncated_sampling: bool,

    /// Take one part of the input after another, each up to its `end` line. Each part is an update and is
    /// answered with an `end` line. Weights and moments stay in memory in between; with `--device` only the
    /// optimizer's state, in host memory
    #[arg(long, conflicts_with_all = ["check", "dry_run"], help_heading = "Running")]
    pub resident: bool,

    /// Save the optimizer's state every N steps and at the end of the input, instead of with every version.
    /// Another process can resume only from a saved state
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..),
          requires = "resident", help_heading = "Running")]
    pub save_every: u64,

    /// No progress and no messages on stderr
    #[arg(long, short, help_heading = "Running")]
    pub quiet: bool,
}

impl Arguments {
    /// Fails for values out of range and flags that have no effect.
    ///
    /// # Errors
    /// Usage (exit 2), or 69 for a device that this build does not have.
    pub fn check(&self) -> Result<()> {
        self.check_device()?;
        let cpu = self.device_kind()? == DeviceKind::Cpu;
        let nll = self.objective == Objective::Nll;
        let aggregate = format!("--aggregate {}", stage::choice(&self.aggregate));
        let optimizer = format!("--optimizer {}", stage::choice(&self.optimizer));
        let device = format!("--device {}", self.device);
        let (muon, sgd) = (self.optimizer == Method::Muon, self.optimizer == Method::Sgd);
        // A flag, whether it was given although another setting leaves it without effect, and that setting.
        let cispo = self.objective == Objective::Cispo;
        let sequence = self.ratio == Some(RatioLevel::Sequence);
        let drops = self.importance_outside == Some(ImportanceOutside::Mask);
        let idle = [
            ("--clip", cispo && self.clip.is_some(), "--objective cispo"),
            ("--ratio sequence", cispo && sequence, "--objective cispo"),
            ("--ratio sequence", nll && sequence, "--objective nll"),
            ("--entropy", nll && self.entropy != 0.0, "--objective nll"),
            ("--mask-negative-above", nll && self.mask_negative_above.is_some(), "--objective nll"),
            (
                "--importance-floor",
                !drops && self.importance_floor.is_some(),
                "--importance-outside truncate",
            ),
            ("--clip", nll && self.clip.is_some(), "--objective nll"),
            ("--clip-high", nll && self.clip_high.is_some(), "--objective nll"),
            ("--kl", nll && self.kl != 0.0, "--objective nll"),
            ("--importance-cap", nll && self.importance_cap.is_some(), "--objective nll"),
            ("--max-logprob-gap", nll && self.max_logprob_gap.is_some(), "--objective nll"),
            ("--reference", self.kl == 0.0 && !self.reference.is_empty(), "--kl 0"),
            ("--max-tokens", self.aggregate != Aggregate::Constant && self.max_tokens.is_some(), &aggregate),
            ("--lr-other", !muon && self.lr_other.is_some(), &optimizer),
            ("--betas", sgd && !self.betas.is_empty(), &optimizer),
            ("--isa", !cpu && self.isa.is_some(), &device),
            ("--device-memory", cpu && self.device_memory.is_some(), "--device cpu"),
        ];
        if let Some((flag, _, setting)) = idle.iter().find(|(_, idle, _)| *idle) {
            return Err(Failure::usage(format!("{flag} has no effect with {setting}"))
                .hint(format!("leave {flag} out")));
        }
        if self.kl > 0.0 && self.reference.is_empty() {
            return Err(Failure::usage("--kl needs --reference")
                .hint("name the reference policy, such as --reference run/base"));
        }
        if muon && self.lr_other.is_none() {
            return Err(Failure::usage("--optimizer muon needs --lr-other").hint(
                "Muon updates the layers' matrices at --lr; AdamW updates the rest at --lr-other, such as 1e-3",
            ));
        }
        if let Some(isa) = self.isa {
            isa.select().map_err(|error| Failure::unavailable(format!("--isa {isa}: {error}")))?;
        }
        self.check_ranges()?;
        self.ranks.map_or(Ok(()), |ranks| self.check_parts(ranks as usize))?;
        self.check_threads()
    }

    /// Fails if `ranks` processes cannot share the work on the policies.
    ///
    /// # Errors
    /// Usage (exit 2).
    pub fn check_ranks(&self, count: usize, policies: usize) -> Result<()> {
        if let Some(flag) =
            [("--check", self.check), ("--dry-run", self.dry_run)].into_iter().find(|flag| flag.1)
            && count > 1
        {
            return Err(Failure::usage(format!("{} is for one process, and these are {count}", flag.0))
                .hint("run it without mpirun or srun"));
        }
        if count > 1 && self.save_every > 1 && self.device_kind()? != DeviceKind::Cpu {
            return Err(Failure::usage(format!(
                "--save-every has no effect with ranks on --device {}",
                self.device
            ))
            .hint("leave it out: there every step saves its state"));
        }
        if !self.side_by_side {
            return self.check_parts(count);
        }
        if policies == 1 {
            return Err(Failure::usage("--side-by-side has no effect with one policy").hint("leave it out"));
        }
        if !count.is_multiple_of(policies) {
            return Err(Failure::usage(format!(
                "--side-by-side: {policies} policies cannot have as many of {count} ranks each"
            ))
            .hint(format!(
                "start a multiple of {policies}, such as mpirun -n {policies} update-mpi, or leave it out"
            )));
        }
        self.check_parts(count / policies)
    }

    fn check_parts(&self, count: usize) -> Result<()> {
        if self.parts.is_multiple_of(count as u64) {
            return Ok(());
        }
        let (parts, least) = (self.parts, count.next_power_of_two());
        Err(Failure::usage(format!(
            "--parts {parts} cannot be dealt to {count} ranks: each computes as many of them"
        ))
        .hint(match least == count {
            true => format!("--parts {least}, or more; the bytes of the result depend on it"),
            false => "as many ranks as a power of two, and no more than --parts".to_owned(),
        }))
    }

    /// The device of `--device`.
    ///
    /// # Errors
    /// Usage (exit 2) for an unknown device.
    pub fn device_kind(&self) -> Result<DeviceKind> {
        DeviceKind::parse("--device", &self.device)
    }

    /// The precision of linear layers, by `--dtype` or by the device.
    ///
    /// # Errors
    /// As for [`Arguments::device_kind`].
    pub fn dtype(&self) -> Result<Precision> {
        let default =
            if self.device_kind()? == DeviceKind::Cpu { Precision::Float32 } else { Precision::BFloat16 };
        Ok(self.dtype.unwrap_or(default))
    }

    /// Fails for an unavailable device before anything is read.
    fn check_device(&self) -> Result<()> {
        let kind = self.device_kind()?;
        if kind != DeviceKind::Cpu {
            on_device::check(self.optimizer)?;
            if self.dtype == Some(Precision::Float32) {
                return Err(Failure::usage(
                    "--dtype float32 is for the CPU only: devices compute in bfloat16",
                )
                .hint("leave --dtype out, or train with --device cpu"));
            }
        }
        match kind {
            DeviceKind::Cuda(_) if !self.dry_run => {
                open_library(Library::Driver)?;
                open_library(Library::Nvrtc)?;
                open_library(Library::CublasLt).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    fn check_ranges(&self) -> Result<()> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let not_negative = |x: f64| x.is_finite() && x >= 0.0;
        let below_one = |x: f64| (0.0..1.0).contains(&x);
        let betas =
            self.betas.is_empty() || (self.betas.len() == 2 && self.betas.iter().all(|&b| below_one(b)));
        let checks = [
            (
                "--parts",
                "a power of two up to 1024, such as 8",
                self.parts.is_power_of_two() && self.parts <= 1024,
            ),
            ("--clip", "between 0 and 1", self.clip.is_none_or(|x| positive(x) && x < 1.0)),
            ("--clip-high", "above 0", self.clip_high.is_none_or(positive)),
            ("--kl", "0 or above", not_negative(self.kl)),
            ("--entropy", "0 or above", not_negative(self.entropy)),
            ("--importance-cap", "above 0", self.importance_cap.is_none_or(positive)),
            ("--importance-floor", "0 or above", self.importance_floor.is_none_or(not_negative)),
            ("--mask-negative-above", "a finite number", self.mask_negative_above.is_none_or(f64::is_finite)),
            ("--lr", "0 or above", not_negative(self.lr)),
            ("--lr-other", "0 or above", self.lr_other.is_none_or(not_negative)),
            ("--weight-decay", "0 or above", not_negative(self.weight_decay)),
            ("--betas", "two numbers from 0 to below 1, such as 0.9,0.999", betas),
            ("--max-grad-norm", "0 (off) or above", not_negative(self.max_grad_norm)),
            ("--device-memory", "above 0", self.device_memory.is_none_or(positive)),
            ("--max-logprob-gap", "0 (off) or above", self.max_logprob_gap.is_none_or(not_negative)),
        ];
        match checks.iter().find(|(_, _, fine)| !fine) {
            Some((flag, range, _)) => {
                Err(Failure::usage(format!("{flag} must be {range}")).hint("see update --help"))
            }
            None => Ok(()),
        }
    }

    /// The clip range: how far the ratio may go below and above 1.
    pub fn clip_range(&self) -> (f64, f64) {
        let low = self.clip.unwrap_or(0.2);
        (low, self.clip_high.unwrap_or(low))
    }

    /// The objective and its coefficients.
    pub fn loss_config(&self) -> LossConfig {
        let outside = |cap: f64| WeightBounds {
            floor: self.importance_floor.unwrap_or(0.0),
            cap,
            mask: self.importance_outside == Some(ImportanceOutside::Mask),
        };
        let level = self.importance_level.unwrap_or_default();
        LossConfig {
            objective: self.objective,
            clip_range: self.clip_range(),
            ratio: self.ratio.unwrap_or_default(),
            kl: self.kl,
            entropy: self.entropy,
            importance: self.importance_cap.map(|cap| Importance { level, outside: outside(cap) }),
            mask_negative_above: self.mask_negative_above,
        }
    }

    /// The optimizer's settings.
    pub fn optimizer_settings(&self) -> Settings {
        Settings {
            method: self.optimizer,
            lr: self.lr,
            lr_other: self.lr_other.unwrap_or(self.lr),
            betas: match self.betas[..] {
                [first, second] => (first, second),
                _ => (0.9, 0.999),
            },
            weight_decay: self.weight_decay,
            max_grad_norm: self.max_grad_norm,
        }
    }

    /// Prints a message on stderr, unless `--quiet`.
    pub fn log(&self, text: impl Display) {
        if !self.quiet {
            stage::note("update", text);
        }
    }

    /// Fails where the system does not start so many threads (69).
    fn check_threads(&self) -> Result<()> {
        let threads = self.thread_count();
        let gate = Mutex::new(());
        let closed = gate.lock();
        std::thread::scope(|scope| {
            // Each waits until all have started.
            let wait = || drop(gate.lock());
            let started = (1..threads).try_for_each(|_| Builder::new().spawn_scoped(scope, wait).map(|_| ()));
            drop(closed);
            started
        })
        .map_err(|error| {
            Failure::unavailable(format!("{threads} threads cannot be started: {error}"))
                .hint("lower --threads, or raise the limits that ulimit -u and -v show")
        })
    }

    /// The number of threads to use.
    pub fn thread_count(&self) -> usize {
        self.threads
            .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |n| n as usize)
    }
}
