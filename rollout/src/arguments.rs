//! The command line of `rollout`; [`crate::settings`] checks it.

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Arg, ArgAction, Args, Parser, ValueEnum, value_parser};
use device::{ComputeDtype, Devices};
use gemm::Isa;

use crate::episode::Select;
use crate::episode::joint::{Expand, Mode};
use crate::fill::Fill;
use crate::opponents::Pool;

const EXAMPLES: &str = "\
Examples:
  # one policy for all agents, 4 candidates at every turn, the best one is executed
  envs tasks plan-path --count 32 | rollout --policy run/shared --branches 4 --select best > samples.jsonl

  # one policy per role, at most 4 turns, on to the update
  envs tasks plan-path --count 32 --seed 7 |
    rollout --policy tool=run/tool --policy planner=run/planner --branches 4 --turns 4 --seed 7 |
    group | advantage | update --policy tool=run/tool --policy planner=run/planner

  # a large model on a server plays the planner; it is not trained
  envs tasks plan-path --count 32 |
    rollout --policy tool=run/tool --policy planner=http://localhost:8000/v1 > samples.jsonl

  # MAGRPO: the answers of two agents are scored together, and every joint action is continued
  envs tasks math --count 32 | rollout --policy run/shared --joint aligned --expand all --turns 2 |
    group | advantage --credit tree --estimator dr-grpo > samples.jsonl

  # four GPUs for all agents; or one GPU per agent
  rollout --policy run/shared --device cuda:0-3 < tasks.jsonl > samples.jsonl
  rollout --policy tool=run/tool@cuda:0 --policy planner=run/planner@cuda:1 \\
    < tasks.jsonl > samples.jsonl

  # one of 8 processes
  rollout --policy run/shared --shard 3/8 < tasks.jsonl > shard-3.jsonl

  # an OpenAI-compatible server with two models, tool and planner; curl http://127.0.0.1:8000/v1/models
  rollout --serve 8000 --policy tool=run/tool --policy planner=run/planner --max-tokens 512

  # success rate on held-out tasks
  envs tasks plan-path --split test --count 200 | rollout --policy run/shared --temperature 0 |
    jq -s 'map(select(.type == \"episode\").success) | (map(select(.)) | length) / length'
";

/// The largest integer that every JSON reader keeps exactly.
const MAX_INTEGER: u64 = (1 << 53) - 1;

/// How the candidates of a group are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SamplingMode {
    /// At every turn, for each agent, K candidates from one prompt; one of them is executed.
    Tree,
    /// K whole episodes of each task in parallel.
    Parallel,
}

/// How tasks are played.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// A policy directory, for one agent or, without AGENT=, for all agents that no other flag names
    ///
    /// Repeatable; flags with the same directory are one policy (for a copy: policy init NEW --from DIR). DIR@DEVICE
    /// runs the policy on that device instead of --device: tool=run/tool@cuda:1. A URL names an OpenAI-compatible
    /// server, which is not trained: 'http://HOST:PORT/v1?model=NAME&max_tokens=N&temperature=T' (the three settings
    /// are optional). Its key is in the variable OPENAI_API_KEY, or in the one named by api_key_var=NAME.
    #[arg(
        long,
        value_name = "[AGENT=]DIR[@DEVICE]|URL",
        required_unless_present = "version",
        help_heading = "Team"
    )]
    pub policy: Vec<String>,

    /// Serve the policies to clients of OpenAI's API instead of playing tasks: each is a model with the name of its agent
    ///
    /// /v1/chat/completions (streaming, tools, logprobs, stop, seed), /v1/models and /health. A port, which only this
    /// machine reaches, or HOST:PORT, which needs a key in the variable TROUPE_API_KEY if others reach it. Sampling flags
    /// are the defaults of calls. A text of a call's `stop` is cut from the answer, a text of --stop stays in it. A stream
    /// comes token by token; calls of tools and what follows a thought come in one chunk at the end.
    #[arg(long, value_name = "[HOST:]PORT", help_heading = "Serving")]
    pub serve: Option<String>,

    /// Replace this agent's answers with TEXT, or with nothing
    ///
    /// Play the same tasks and seed with and without the agent to see how often it helps: report evaluate WITH
    /// --against WITHOUT. Repeatable.
    #[arg(long, value_name = "AGENT[=TEXT]", help_heading = "Team")]
    pub absent: Vec<String>,

    /// The workflow: which agents act, in which order. A name, or a TOML file [default: the environment's first]
    #[arg(long, value_name = "NAME", help_heading = "Team")]
    pub workflow: Option<String>,

    /// Candidates per group, up to 4096, for all agents or for one: --branches 4 --branches checker=8 [default: 8; at
    /// --temperature 0 it is 1]
    #[arg(long, value_name = "[AGENT=]K", help_heading = "Episodes")]
    pub branches: Vec<String>,

    /// Turn limit of an episode [default: the environment's]
    #[arg(long, value_name = "T", value_parser = value_parser!(u32).range(1..), help_heading = "Episodes")]
    pub turns: Option<u32>,

    /// How candidates are sampled
    #[arg(long, value_enum, default_value = "tree", help_heading = "Episodes")]
    pub sampling: SamplingMode,

    /// The candidate to execute: a random one, or the best (the lowest branch on a tie).
    #[arg(long, value_enum, default_value = "random", help_heading = "Episodes")]
    pub select: Select,

    /// Score joint actions of the agents of a stage: a candidate's reward is the mean over its joint actions
    ///
    /// Each joint action has a `joint` line.
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Joint actions")]
    pub joint: Option<Mode>,

    /// Joint actions from which an episode continues [default: one]
    ///
    /// one: the joint action that --select picks. all: every joint action, a tree. ends=M: every joint action on the
    /// executed path, with M plays to the end of each; the cost grows with the square of the turns.
    #[arg(long, value_name = "one|all|ends=M", requires = "joint", help_heading = "Joint actions")]
    pub expand: Option<Expand>,

    /// Do not expand nodes whose mean reward exceeds R.
    #[arg(
        long,
        value_name = "R",
        requires = "joint",
        allow_negative_numbers = true,
        help_heading = "Joint actions"
    )]
    pub stop_above: Option<f64>,

    /// Self-play: in each episode one agent learns (the agents take turns), and every other agent is played by a
    /// version of its policy drawn from the last K published ones, including the newest
    ///
    /// Opponents have `served` lines, which are not trained on. past:0: the newest version plays all agents.
    #[arg(
        long,
        value_name = "past:K",
        default_value = "past:0",
        hide_default_value = true,
        help_heading = "Team"
    )]
    pub opponents: Pool,

    /// Play tasks in waves until N of them teach, or all are played
    ///
    /// A task teaches if the rewards of one of its groups differ by more than flat-below (default 0), or with
    /// by=success if some of its plays succeed and some do not. They are counted after each wave of W tasks (default
    /// N). strict: fail if fewer than N tasks teach. All played tasks are written; advantage --drop-flat drops the flat
    /// groups. A step stops when it has found enough, so its share of tasks that teach is above the true one: .818 for
    /// .80 with N = W = 8.
    #[arg(long, value_name = "N[,by=success][,wave=W][,flat-below=E][,strict]", help_heading = "Episodes")]
    pub fill: Option<Fill>,

    /// Divide logits by T before the softmax, for all agents or for one: --temperature 0.7 --temperature planner=1
    /// [default: 1]
    ///
    /// 0 takes the most likely token every time, with one candidate per group, as evaluations do.
    #[arg(long, value_name = "[AGENT=]T", help_heading = "Sampling")]
    pub temperature: Vec<String>,

    /// Nucleus sampling: sample from the most likely tokens that hold this share of the probability [default: 1, all]
    #[arg(long, value_name = "[AGENT=]P", help_heading = "Sampling")]
    pub top_p: Vec<String>,

    /// Sample from this many of the most likely tokens [default: 0, all]
    #[arg(long, value_name = "[AGENT=]N", help_heading = "Sampling")]
    pub top_k: Vec<String>,

    /// Sample from tokens at least this likely relative to the most likely one, after top-k and top-p [default: 0,
    /// all]
    #[arg(long, value_name = "[AGENT=]P", help_heading = "Sampling")]
    pub min_p: Vec<String>,

    /// Completion limit in tokens, the stop token included [default: 256]
    #[arg(long, value_name = "[AGENT=]N", help_heading = "Sampling")]
    pub max_tokens: Vec<String>,

    /// End a completion with the token that completes TEXT; TEXT stays in the completion
    ///
    /// Repeatable; texts for one agent replace the texts for all agents. Write '=TEXT' if TEXT contains =.
    #[arg(long, value_name = "[AGENT=]TEXT", help_heading = "Sampling")]
    pub stop: Vec<String>,

    /// Weight of the team reward: r = WEIGHT x team + local.
    #[arg(
        long,
        value_name = "WEIGHT",
        default_value_t = 1.0,
        allow_negative_numbers = true,
        help_heading = "Episodes"
    )]
    pub team_weight: f64,

    /// Seed of all random streams, below 2^53
    ///
    /// Equal seeds give equal bytes, for any number of threads.
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = value_parser!(u64).range(..=MAX_INTEGER), help_heading = "Episodes")]
    pub seed: u64,

    /// The training step of these samples (with --resident, of the first part); part of every episode's name.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = value_parser!(u64).range(..=MAX_INTEGER), help_heading = "Episodes")]
    pub step: u64,

    /// Play every N-th task, from number I on; join the outputs of all shards with `cat`, in any order
    #[arg(long, value_name = "I/N", default_value = "0/1", help_heading = "Stream")]
    pub shard: String,

    /// Where models run.
    #[arg(long, default_value = "cpu", help = format!("Where models run: {}.", Devices::HELP), help_heading = "Machine")]
    pub device: String,

    /// Memory to use on each GPU for all policies together, including KV caches, activations and a reserve of 1 GiB
    /// per policy: in GB (10^9 bytes), or a share such as 50% [default: all free memory]
    #[arg(long, value_name = "GB|SHARE%", help_heading = "Machine")]
    pub device_memory: Option<String>,

    /// Type of the operands of matrix products; sums are float32 [default: float32; with --device cuda bfloat16]
    ///
    /// bfloat16 is faster on some processors (AMD Zen 4) and slower on others (Intel Sapphire Rapids). A GPU computes
    /// in bfloat16, or in float16 and eight times as exactly.
    #[arg(long, value_name = "TYPE",
          value_parser = PossibleValuesParser::new(ComputeDtype::NAMES).try_map(|name| name.parse::<ComputeDtype>()), help_heading = "Machine")]
    pub dtype: Option<ComputeDtype>,

    /// Instruction set of all CPU kernels, to get the same bytes on another processor; avx512-bf16, avx512 and avx2
    /// agree [default: the fastest]
    #[arg(long, value_name = "NAME",
          value_parser = PossibleValuesParser::new(Isa::NAMES).try_map(|name| name.parse::<Isa>()), help_heading = "Machine")]
    pub isa: Option<Isa>,

    /// Threads that play episodes; on the CPU each has a second thread that runs its models [default: the number of
    /// processors]
    ///
    /// With several devices each thread uses one.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024), help_heading = "Machine")]
    pub threads: Option<usize>,

    /// Play with this program instead of a built-in environment
    ///
    /// It answers each line with one line, as `envs step` does.
    #[arg(long, value_name = "COMMAND", help_heading = "Environment")]
    pub env_command: Option<String>,

    /// Seconds of silence after which --env-command is restarted and gets the request once more [default: 60]
    #[arg(long, value_name = "SECONDS", requires = "env_command", help_heading = "Environment")]
    pub timeout: Option<f64>,

    /// Timeout of a server call in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, help_heading = "Servers")]
    pub server_timeout: f64,

    /// Retries of a server call after a transient failure (a lost connection, 408, 409, 429, 5xx), with
    /// pauses of 0.5, 1, 2, … seconds or the server's Retry-After.
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Servers", value_parser = value_parser!(u32).range(..=20))]
    pub server_retries: u32,

    /// Fail when more than this share of the episodes could not be scored.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, help_heading = "Environment")]
    pub max_error_rate: f64,

    /// Accept a stream without a valid `end` or with missing tasks, and play its tasks.
    #[arg(long, help_heading = "Stream")]
    pub allow_incomplete: bool,

    /// Play one part of the input after another, each up to its `end` line
    ///
    /// Each part is a step, is played with the newest versions of the policies, and is answered with an `end` line.
    #[arg(long, help_heading = "Stream")]
    pub resident: bool,

    /// No progress on stderr.
    #[arg(long, short, action = ArgAction::SetTrue, help_heading = "Stream")]
    pub quiet: bool,
}

/// Plays tasks with policies: task lines in, sample lines out.
#[derive(Debug, Parser)]
#[command(name = "rollout", after_long_help = EXAMPLES, disable_version_flag = true, max_term_width = 110)]
#[command(mut_args = refuse_with_version)]
pub struct CommandLine {
    /// How to play.
    #[command(flatten)]
    pub arguments: Arguments,

    /// Print the version, and the libraries that would be used.
    #[arg(long, short = 'V')]
    pub version: bool,

    /// How to print the version.
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "HOW", requires = "version")]
    pub format: Format,
}

/// --version takes no other flags, and --serve none that concerns tasks.
fn refuse_with_version(argument: Arg) -> Arg {
    if ["version", "format"].contains(&argument.get_id().as_str()) {
        return argument;
    }
    let heading = argument.get_help_heading().unwrap_or_default();
    let of_tasks = ["Episodes", "Joint actions", "Environment", "Servers", "Stream"].contains(&heading)
        || ["absent", "workflow", "opponents"].contains(&argument.get_id().as_str());
    let plays = of_tasks && !["quiet", "seed"].contains(&argument.get_id().as_str());
    argument.conflicts_with_all(if plays { &["version", "serve"][..] } else { &["version"] })
}

/// How the version is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people.
    Text,
    /// One JSON object.
    Json,
}
