//! The command line of `rollout`, and the checked settings it comes to.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Arg, ArgAction, Args, Parser, ValueEnum, value_parser};
use device::DeviceKind;
use gemm::Isa;
use policy::ownership::{Owner, Ownership};
use record::failure::{Failure, Result};
use record::sample::Sampling;

use crate::engine::{Precision, SamplingParams};
use crate::episode::joint::{Expand, JointConfig, Mode};
use crate::episode::{EpisodeConfig, Frozen, Select};
use crate::fill::{FillBy, FillConfig};
use crate::lines::RunMetadata;
use crate::prompts::raw_json;
use crate::server::Patience;
use crate::widths::Widths;

const EXAMPLES: &str = "\
Examples:
  # one policy for all agents, 4 candidates at every turn, the best one is executed
  envs tasks plan-path --count 32 | rollout --policy run/shared --branches 4 > samples.jsonl

  # one policy per role, at most 4 turns, on to the update
  envs tasks plan-path --count 32 --seed 7 |
    rollout --policy tool=run/tool --policy planner=run/planner --branches 4 --turns 4 --seed 7 |
    group | advantage | update --policy tool=run/tool --policy planner=run/planner

  # the planner is a large model on a server, which is not trained
  envs tasks plan-path --count 32 | rollout --policy tool=run/tool --policy planner=http://localhost:8000/v1 > samples.jsonl

  # MAGRPO: what two agents say at once is scored together, and every joint action is followed
  envs tasks math --count 32 | rollout --policy run/shared --joint aligned --expand all --turns 2 |
    group | advantage --credit tree --estimator dr-grpo > samples.jsonl

  # one of 8 processes, whose machine copies the weights to its own disk once for all of them there
  rollout --policy run/shared --shard 3/8 --local /tmp/troupe < tasks.jsonl > shard-3.jsonl

  # success rate on held-out tasks
  envs tasks plan-path --split test --count 200 | rollout --policy run/shared --greedy |
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
    /// A policy directory, for one agent or, without AGENT=, for all agents that no other flag names.
    /// Repeatable; flags that name one directory are one policy (a second one: policy init NEW --from DIR).
    /// Or an OpenAI-compatible server, which plays and is not trained:
    /// 'http://HOST:PORT/v1?model=NAME&max_tokens=N&temperature=T' (each of the three may be left out); its
    /// key is in OPENAI_API_KEY, or in another variable with api_key_var=NAME.
    #[arg(long, value_name = "[AGENT=]DIR|URL", required_unless_present = "version")]
    pub policy: Vec<String>,

    /// The environment's workflow: the agents that act, and their order; a name, or a TOML file. Default: the environment's first.
    #[arg(long, value_name = "NAME")]
    pub workflow: Option<String>,

    /// Candidates a group, up to 4096, of all agents or of one: --branches 4 --branches checker=8. Default: 4; with --greedy 1.
    #[arg(long, value_name = "[ROLE=]K")]
    pub branches: Vec<String>,

    /// Turn limit of an episode. Default: the environment's.
    #[arg(long, value_name = "T", value_parser = value_parser!(u32).range(1..))]
    pub turns: Option<u32>,

    /// tree: candidates branch off at every turn. parallel: K whole episodes, as trajectory-level methods sample.
    #[arg(long, value_enum, default_value = "tree")]
    pub sampling: SamplingMode,

    /// The candidate to execute: the best (the lowest branch on a tie), or a random one.
    #[arg(long, value_enum, default_value = "best")]
    pub select: Select,

    /// Score joint actions of the agents of a stage: a candidate's reward is the mean over its joint actions.
    /// Each joint action has a `joint` line.
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Joint actions")]
    pub joint: Option<Mode>,

    /// Joint actions from which an episode continues. Default: one.
    #[arg(long, value_enum, value_name = "WHICH", requires = "joint", help_heading = "Joint actions")]
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

    /// Play tasks in waves until N of them teach, or all are played: those whose groups are not all flat. All that is played is
    /// written; advantage --drop-flat leaves out what does not teach.
    #[arg(long, value_name = "N", help_heading = "Refill", value_parser = value_parser!(u64).range(1..))]
    pub fill: Option<u64>,

    /// What makes a task teach: rewards that differ in one of its groups, or plays of which some succeed and some do not.
    /// Default: reward.
    #[arg(long, value_enum, value_name = "WHAT", requires = "fill", help_heading = "Refill")]
    pub fill_by: Option<FillBy>,

    /// Tasks of a wave, after which it is counted how many teach. Default: N.
    #[arg(long, value_name = "W", requires = "fill", help_heading = "Refill",
          value_parser = value_parser!(u64).range(1..))]
    pub fill_wave: Option<u64>,

    /// Rewards that differ by no more than E are equal. Default: 0.
    #[arg(long, value_name = "E", requires = "fill", help_heading = "Refill")]
    pub flat_below: Option<f64>,

    /// Fail where too few tasks teach.
    #[arg(long, requires = "fill", help_heading = "Refill")]
    pub fill_strict: bool,

    /// Logits are divided by this before the softmax. Default: 1.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,

    /// Nucleus sampling: sample from the most likely tokens that hold this share of the probability. Default: 1, all.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,

    /// Sample from this many of the most likely tokens. Default: 0, all.
    #[arg(long, value_name = "N")]
    pub top_k: Option<u32>,

    /// Completion limit in tokens, the stop token included.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..))]
    pub max_tokens: u32,

    /// Weight of the team reward: r = WEIGHT x team + local.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0, allow_negative_numbers = true)]
    pub team_weight: f64,

    /// Seed of all random streams, below 2^53. Equal seeds give equal bytes, for any number of threads.
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = value_parser!(u64).range(..=MAX_INTEGER))]
    pub seed: u64,

    /// The training step of these samples, with --resident of the first part; part of every episode's name.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = value_parser!(u64).range(..=MAX_INTEGER))]
    pub step: u64,

    /// Take the most likely token every time, one candidate a group: for evaluation.
    #[arg(long)]
    pub greedy: bool,

    /// Play every n-th task, from number i on; `cat` joins the outputs of all shards, in any order
    #[arg(long, value_name = "I/N", default_value = "0/1")]
    pub shard: String,

    /// Where the model runs.
    #[arg(long, default_value = "cpu", help = format!("Where the model runs: {}.", DeviceKind::HELP))]
    pub device: String,

    /// Precision of the operands of matrix products; sums are float32. bfloat16 is faster on some processors
    /// (AMD Zen 4) and slower on others (Intel Sapphire Rapids). Default: float32; with --device cuda always
    /// bfloat16.
    #[arg(long, value_name = "TYPE",
          value_parser = PossibleValuesParser::new(Precision::NAMES).try_map(|name| name.parse::<Precision>()))]
    pub dtype: Option<Precision>,

    /// Instruction set of all CPU kernels, to get the same bytes on another processor; avx512-bf16, avx512 and
    /// avx2 agree. Default: the fastest.
    #[arg(long, value_name = "NAME",
          value_parser = PossibleValuesParser::new(Isa::NAMES).try_map(|name| name.parse::<Isa>()))]
    pub isa: Option<Isa>,

    /// Read weights from a copy in DIR, a folder on a local disk. The first process that needs a version
    /// copies it, and the others wait. Unused copies are removed when a newer copy of their policy is made.
    #[arg(long, value_name = "DIR")]
    pub local: Option<PathBuf>,

    /// Threads that play episodes; on the CPU another thread per player runs its models. Default: the number
    /// of processors.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub threads: Option<usize>,

    /// Play with this program instead of a built-in environment. It answers one line for each line, as `envs step`
    /// does.
    #[arg(long, value_name = "COMMAND")]
    pub env_command: Option<String>,

    /// Seconds after which a silent --env-command is restarted and asked once more. Default: 30.
    #[arg(long, value_name = "SECONDS", requires = "env_command")]
    pub timeout: Option<f64>,

    /// Timeout of a server call in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, help_heading = "Servers")]
    pub server_timeout: f64,

    /// Retries of a server call after a transient failure (a lost connection, 408, 409, 429, 5xx), with
    /// pauses of 0.5, 1, 2, … seconds or the server's Retry-After.
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Servers", value_parser = value_parser!(u32).range(..=20))]
    pub server_retries: u32,

    /// Fail when more than this share of the episodes could not be scored.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub max_error_rate: f64,

    /// Accept a stream without a good `end` or with tasks missing, and play its tasks.
    #[arg(long)]
    pub allow_incomplete: bool,

    /// Play one part of the input after another, each up to its `end` line. Each part is a step, uses the
    /// newest versions of the policies, and is answered with an `end` line.
    #[arg(long)]
    pub resident: bool,

    /// No progress on stderr.
    #[arg(long, short, action = ArgAction::SetTrue)]
    pub quiet: bool,
}

/// Plays tasks with policies: task lines in, sample lines out.
#[derive(Debug, Parser)]
#[command(name = "rollout", before_help = EXAMPLES, disable_version_flag = true, max_term_width = 110)]
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

/// --version takes no other flags.
fn refuse_with_version(argument: Arg) -> Arg {
    let allowed = ["version", "format"].contains(&argument.get_id().as_str());
    if allowed { argument } else { argument.conflicts_with("version") }
}

/// How the version is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people.
    Text,
    /// One JSON object.
    Json,
}

/// One of several shards of the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 0.
    pub number: u32,
    /// How many there are.
    pub count: u32,
}

impl FromStr for Shard {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Shard> {
        let parsed = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let (number, count) = parsed.filter(|(number, count)| number < count).ok_or_else(|| {
            Failure::usage(format!("--shard {text}: not I/N with I below N"))
                .hint("the two halves are 0/2 and 1/2")
        })?;
        Ok(Shard { number, count })
    }
}

/// A command line that makes sense.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The flags as they were given.
    pub flags: Arguments,
    /// The policy of each agent.
    pub team: Ownership,
    /// How long and how often servers are asked.
    pub patience: Patience,
    /// How episodes are played.
    pub episodes: Arc<EpisodeConfig>,
    /// What all lines share.
    pub metadata: RunMetadata,
    /// How tokens are sampled.
    pub sampling: SamplingParams,
    /// The tasks to play.
    pub shard: Shard,
    /// How many of them must teach.
    pub fill: Option<FillConfig>,
    /// Worker threads.
    pub threads: usize,
    /// Where the model runs.
    pub device: DeviceKind,
    /// Precision of the operands of matrix products.
    pub dtype: Precision,
    /// The external environment program, and its time limit for an answer.
    pub env_command: Option<(String, Duration)>,
}

impl Arguments {
    /// Checks the values and fills in the defaults.
    ///
    /// # Errors
    /// Usage, with the flag and its valid values. A missing device: unavailable.
    pub fn resolve(self) -> Result<Settings> {
        self.check_greedy()?;
        if !(0.0..=1.0).contains(&self.max_error_rate) {
            return Err(Failure::usage(format!(
                "--max-error-rate {}: must be from 0 to 1",
                self.max_error_rate
            ))
            .hint("0 allows no failed episode, 1 any number of them"));
        }
        if !self.team_weight.is_finite() {
            return Err(Failure::usage(format!("--team-weight {}: must be finite", self.team_weight)));
        }
        let timeout = self.timeout.unwrap_or(30.0);
        let timeout = Duration::try_from_secs_f64(timeout)
            .ok()
            .filter(|timeout| !timeout.is_zero())
            .ok_or_else(|| Failure::usage(format!("--timeout {timeout}: must be above 0 seconds")))?;
        let shard: Shard = self.shard.parse()?;
        let device = DeviceKind::parse("--device", &self.device)?;
        if let Some(isa) = self.isa {
            if device != DeviceKind::Cpu {
                return Err(Failure::usage(format!("--isa has no effect with --device {device}"))
                    .hint("leave out --isa, or use --device cpu"));
            }
            isa.select().map_err(|error| Failure::unavailable(format!("--isa {isa}: {error}")))?;
        }
        let sampling = SamplingParams {
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(0),
            greedy: self.greedy,
        };
        sampling.check()?;
        let SamplingParams { temperature, top_p, top_k, greedy } = sampling;
        let team = Ownership::parse("--policy", &self.policy)?;
        let widths = self.widths(&team)?;
        let served = team.owners().iter().any(Owner::is_server);
        if served && self.joint.is_some() {
            return Err(Failure::usage(
                "--joint: a server's agent has one candidate, so that its actions have no joint ones",
            )
            .hint("leave out --joint, or let a policy directory play every agent"));
        }
        let branches = widths.common;
        Ok(Settings {
            patience: self.patience()?,
            episodes: Arc::new(EpisodeConfig {
                turns: self.turns,
                select: self.select,
                team_weight: self.team_weight,
                joint: self.joint_config()?,
                widths,
                frozen: Frozen(served.then(|| Arc::new(team.clone()))),
            }),
            team,
            metadata: RunMetadata {
                step: self.step,
                shard: format!("{}/{}", shard.number, shard.count),
                branches,
                parallel: self.sampling == SamplingMode::Parallel,
                sampling: raw_json(&Sampling { temperature, top_p, top_k, greedy, seed: self.seed })?,
            },
            sampling,
            fill: self.fill_config(shard)?,
            shard,
            threads: self
                .threads
                .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
            device,
            dtype: self.precision(device)?,
            env_command: self.env_command.clone().map(|command| (command, timeout)),
            flags: self,
        })
    }

    /// How many candidates each agent has. Parallel episodes have one, and an agent that is not trained has one.
    fn widths(&self, team: &Ownership) -> Result<Widths> {
        let widths = Widths::parse(&self.branches, if self.greedy { 1 } else { 4 })?;
        let Some(role) = widths.own.keys().next().filter(|_| self.sampling == SamplingMode::Parallel) else {
            return match widths.own.iter().find(|(role, width)| team.is_served(role) && **width > 1) {
                None => Ok(widths),
                Some((role, width)) => Err(Failure::usage(format!(
                    "--branches {role}={width}: a server plays {role}, which has one candidate a turn"
                ))
                .hint(format!("leave out --branches {role}={width}"))),
            };
        };
        Err(Failure::usage(format!(
            "--branches {role}=… has no effect with --sampling parallel, where a task has as many episodes as branches"
        ))
        .hint("--branches K is the number of episodes; --sampling tree has candidates by agent"))
    }

    /// How long and how often servers are asked.
    fn patience(&self) -> Result<Patience> {
        let seconds = self.server_timeout;
        let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
        let timeout = timeout
            .ok_or_else(|| Failure::usage(format!("--server-timeout {seconds}: must be above 0 seconds")))?;
        Ok(Patience { timeout, retries: self.server_retries, quiet: self.quiet })
    }

    /// When to stop playing. Shards would have to wait for each other.
    fn fill_config(&self, shard: Shard) -> Result<Option<FillConfig>> {
        let Some(wanted) = self.fill else { return Ok(None) };
        if shard.count > 1 {
            return Err(Failure::usage(
                "--fill counts the tasks of all shards, which cannot wait for each other",
            )
            .hint("leave out --shard, or --fill"));
        }
        let flat_below = self.flat_below.unwrap_or(0.0);
        if !(flat_below.is_finite() && flat_below >= 0.0) {
            return Err(Failure::usage(format!("--flat-below {flat_below}: must be a number from 0")));
        }
        Ok(Some(FillConfig {
            wanted,
            by: self.fill_by.unwrap_or(FillBy::Reward),
            wave: self.fill_wave.unwrap_or(wanted),
            flat_below,
            strict: self.fill_strict,
        }))
    }

    /// How joint actions are scored. Parallel episodes have one candidate an agent each, and one path.
    fn joint_config(&self) -> Result<Option<JointConfig>> {
        let Some(mode) = self.joint else { return Ok(None) };
        let parallel = self.sampling == SamplingMode::Parallel;
        let expand = self.expand.unwrap_or(Expand::One);
        for (flag, conflicts) in
            [("--joint cross", mode == Mode::Cross), ("--expand all", expand == Expand::All)]
        {
            if parallel && conflicts {
                return Err(Failure::usage(format!("{flag} has no effect with --sampling parallel"))
                    .hint("each parallel episode has one candidate an agent: use --joint aligned, or --sampling tree"));
            }
        }
        match self.stop_above.filter(|threshold| !threshold.is_finite()) {
            Some(threshold) => Err(Failure::usage(format!("--stop-above {threshold}: must be finite"))),
            None => Ok(Some(JointConfig { mode, expand, stop_above: self.stop_above, parallel })),
        }
    }

    /// Refuses sampling flags that `--greedy` would ignore. Their greedy value is allowed.
    fn check_greedy(&self) -> Result<()> {
        let conflicts = [
            ("--branches", Widths::parse(&self.branches, 1)?.most() != 1, "1"),
            ("--temperature", self.temperature.is_some_and(|temperature| temperature != 1.0), "1"),
            ("--top-p", self.top_p.is_some_and(|top_p| top_p != 1.0), "1"),
            ("--top-k", self.top_k.is_some_and(|top_k| top_k != 0), "0"),
        ];
        match conflicts.iter().find(|(_, conflicts, _)| self.greedy && *conflicts) {
            None => Ok(()),
            Some((flag, _, only)) => {
                Err(Failure::usage(format!("{flag} has no effect with --greedy, where it is always {only}"))
                    .hint(format!("leave out {flag} or --greedy")))
            }
        }
    }

    /// The precision that was asked for, or the device's default. Only the CPU has a choice.
    fn precision(&self, device: DeviceKind) -> Result<Precision> {
        let default = match device {
            DeviceKind::Cpu | DeviceKind::Sim => Precision::Float32,
            DeviceKind::Cuda(_) => Precision::BFloat16,
        };
        match self.dtype {
            Some(asked) if device != DeviceKind::Cpu && asked != default => {
                let (asked, default) = (asked.name(), default.name());
                Err(Failure::usage(format!("--dtype {asked}: --device {device} computes in {default}"))
                    .hint("leave out --dtype, or use --device cpu"))
            }
            asked => Ok(asked.unwrap_or(default)),
        }
    }
}
