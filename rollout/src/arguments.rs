//! The command line, and what it comes to.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Parser, ValueEnum};
use device::Choice;
use record::failure::{Failure, Result};
use record::sample::Sampling;

use crate::engine::{Precision, SamplingParams};
use crate::episode::{Rules, Select};
use crate::team::Team;

const EXAMPLES: &str = "\
Examples:
  # one policy for all agents, 4 candidates at every turn, the best one is played
  envs tasks plan-path --count 32 | rollout --policy run/shared --branches 4 > samples.jsonl

  # one policy for each role, at most 4 turns, on to the update
  envs tasks plan-path --count 32 --seed 7 |
    rollout --policy tool=run/tool --policy planner=run/planner --branches 4 --turns 4 --seed 7 |
    group | advantage | update --policy tool=run/tool --policy planner=run/planner

  # success rate on held-out tasks
  envs tasks plan-path --split test --count 200 | rollout --policy run/shared --greedy |
    jq -s 'map(select(.type == \"episode\").success) | (map(select(.)) | length) / length'
";

/// How the candidates of a group come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// At every turn, for each agent, K candidates from one prompt; the episode goes on from one of them.
    Tree,
    /// K whole episodes of each task, side by side.
    Parallel,
}

/// Play tasks with policies: task lines in, sample lines out.
#[derive(Debug, Parser)]
#[command(name = "rollout", before_help = EXAMPLES, disable_version_flag = true, max_term_width = 110)]
pub struct Arguments {
    /// A policy and the agent that it speaks for; without AGENT= it speaks for all. Repeatable.
    #[arg(long, value_name = "[AGENT=]DIR", required = true)]
    pub policy: Vec<String>,

    /// The environment's workflow: which agents act, in which order. Default: the environment's first.
    #[arg(long, value_name = "NAME")]
    pub workflow: Option<String>,

    /// Candidates a group. Default: 4; with --greedy 1.
    #[arg(long, value_name = "K")]
    pub branches: Option<u32>,

    /// Turns after which an episode is cut off. Default: the environment's limit.
    #[arg(long, value_name = "T")]
    pub turns: Option<u32>,

    /// tree: candidates branch off at every turn. parallel: K whole episodes, as trajectory-wise methods do.
    #[arg(long, value_enum, default_value = "tree")]
    pub sampling: Strategy,

    /// Which candidate the episode goes on from: the best (of equal ones the lowest branch), or a random one.
    #[arg(long, value_enum, default_value = "best")]
    pub select: Select,

    /// Logits are divided by this before the softmax. Default: 1.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,

    /// Sample from the likeliest tokens that hold this share of the probability. Default: 1, all of them.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,

    /// Sample from this many of the likeliest tokens. Default: 0, all of them.
    #[arg(long, value_name = "N")]
    pub top_k: Option<u32>,

    /// Longest completion in tokens, the stop token included.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_tokens: u32,

    /// The team's share in a candidate's reward: r = WEIGHT x team + local.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0, allow_negative_numbers = true)]
    pub team_weight: f64,

    /// Names the random streams, below 2^53. The same seed gives the same bytes, whatever the threads.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,

    /// The training step that these samples are for; part of every episode's name.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub step: u64,

    /// Take the likeliest token every time, one candidate a group: for evaluation.
    #[arg(long)]
    pub greedy: bool,

    /// Play the i-th of n shares of the tasks; `cat` joins the outputs of all shares.
    #[arg(long, value_name = "I/N", default_value = "0/1")]
    pub shard: String,

    /// Where the model runs.
    #[arg(long, default_value = "cpu", help = format!("Where the model runs: {}.", Choice::HELP))]
    pub device: String,

    /// What the operands of matrix products are rounded to; sums stay float32. Default: float32; with --device cuda
    /// always bfloat16.
    #[arg(long, value_name = "TYPE",
          value_parser = PossibleValuesParser::new(Precision::NAMES).try_map(|name| name.parse::<Precision>()))]
    pub dtype: Option<Precision>,

    /// Threads, each with episodes of its own. Default: the number of processors.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Play with this program instead of the shipped environments: it answers one line for each line, as
    /// `envs step` does.
    #[arg(long, value_name = "COMMAND")]
    pub env_command: Option<String>,

    /// Seconds after which a silent --env-command is replaced; the request is then put once more. Default: 30.
    #[arg(long, value_name = "SECONDS", requires = "env_command")]
    pub timeout: Option<f64>,

    /// Fail when more than this share of the episodes could not be scored.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub max_error_rate: f64,

    /// No progress on stderr.
    #[arg(long, short, action = ArgAction::SetTrue)]
    pub quiet: bool,

    /// Print the version, and the ONNX Runtime that would be used.
    #[arg(long, short = 'V', exclusive = true)]
    pub version: bool,
}

/// A command line that makes sense.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who speaks for whom.
    pub team: Team,
    /// The environment's workflow; `None`: its default.
    pub workflow: Option<String>,
    /// How episodes go.
    pub rules: Rules,
    /// Candidates a group.
    pub branches: u32,
    /// Tree or parallel.
    pub strategy: Strategy,
    /// How tokens are chosen, as the engine wants it.
    pub sampling: SamplingParams,
    /// The longest completion.
    pub max_tokens: usize,
    /// Names the random streams.
    pub seed: u64,
    /// The training step.
    pub step: u64,
    /// This shard's number, below `shards`.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// Threads.
    pub threads: usize,
    /// Where the model runs.
    pub device: Choice,
    /// What is multiplied there.
    pub dtype: Precision,
    /// The program that is the environment, and how long it may take to answer.
    pub env_command: Option<(String, Duration)>,
    /// Largest share of episodes that may fail.
    pub max_error_rate: f64,
    /// No progress.
    pub quiet: bool,
}

impl Settings {
    /// How tokens are chosen, as samples say it.
    pub fn sampling_line(&self) -> Sampling {
        let SamplingParams { temperature, top_p, top_k, greedy } = self.sampling;
        Sampling { temperature, top_p, top_k, greedy, seed: self.seed }
    }
}

/// The largest integer that every JSON reader keeps exactly, plus one.
const EXACT: u64 = 1 << 53;
/// More candidates than anybody compares with each other; keeps a mistyped number from eating the memory.
const MOST_BRANCHES: u32 = 4096;

impl Arguments {
    /// Checks the values and fills in the defaults.
    ///
    /// # Errors
    /// Usage, with the flag and what it takes. A device that is not there: unavailable.
    pub fn resolve(&self) -> Result<Settings> {
        self.check_greedy()?;
        let branches = self.branches.unwrap_or(if self.greedy { 1 } else { 4 });
        in_range("--branches", branches, 1, MOST_BRANCHES)?;
        if let Some(turns) = self.turns {
            in_range("--turns", turns, 1, u32::MAX)?;
        }
        in_range("--max-tokens", self.max_tokens, 1, u32::MAX)?;
        in_range("--seed", self.seed, 0, EXACT - 1)?;
        in_range("--step", self.step, 0, EXACT - 1)?;
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or_else(processors);
        in_range("--threads", threads, 1, 1024)?;
        if !(0.0..=1.0).contains(&self.max_error_rate) {
            return Err(Failure::usage(format!("--max-error-rate {}: not a share", self.max_error_rate))
                .hint("0 allows no failed episode, 1 any number of them"));
        }
        let timeout = self.timeout.unwrap_or(30.0);
        let timeout =
            Duration::try_from_secs_f64(timeout).ok().filter(|timeout| !timeout.is_zero()).ok_or_else(
                || Failure::usage(format!("--timeout {timeout}: has to be a number of seconds above 0")),
            )?;
        if !self.team_weight.is_finite() {
            return Err(Failure::usage(format!("--team-weight {}: not a number", self.team_weight)));
        }
        let (shard, shards) = parse_shard(&self.shard)?;
        let device = Choice::parse("--device", &self.device)?;
        Ok(Settings {
            team: Team::new(&self.policy)?,
            workflow: self.workflow.clone(),
            rules: Rules { turns: self.turns, select: self.select, team_weight: self.team_weight },
            branches,
            strategy: self.sampling,
            sampling: self.sampling_params()?,
            max_tokens: self.max_tokens as usize,
            seed: self.seed,
            step: self.step,
            shard,
            shards,
            threads,
            device,
            dtype: precision(self.dtype, device)?,
            env_command: self.env_command.clone().map(|command| (command, timeout)),
            max_error_rate: self.max_error_rate,
            quiet: self.quiet,
        })
    }

    /// With `--greedy` there is nothing to sample: the flags that say how may only say so too.
    fn check_greedy(&self) -> Result<()> {
        let differs = [
            ("--branches", self.branches.is_some_and(|branches| branches != 1), "1"),
            ("--temperature", self.temperature.is_some_and(|temperature| temperature != 1.0), "1"),
            ("--top-p", self.top_p.is_some_and(|top_p| top_p != 1.0), "1"),
            ("--top-k", self.top_k.is_some_and(|top_k| top_k != 0), "0"),
        ];
        match differs.iter().find(|(_, differs, _)| self.greedy && *differs) {
            None => Ok(()),
            Some((flag, _, only)) => {
                Err(Failure::usage(format!("{flag} does nothing with --greedy, where it is always {only}"))
                    .hint(format!("leave {flag} out, or --greedy")))
            }
        }
    }

    fn sampling_params(&self) -> Result<SamplingParams> {
        let temperature = self.temperature.unwrap_or(1.0);
        if !(temperature.is_finite() && temperature > 0.0) {
            let hint = "for the likeliest token every time use --greedy";
            return Err(Failure::usage(format!("--temperature {temperature}: has to be above 0")).hint(hint));
        }
        let top_p = self.top_p.unwrap_or(1.0);
        if !(top_p > 0.0 && top_p <= 1.0) {
            let hint = "1 samples from all tokens";
            return Err(
                Failure::usage(format!("--top-p {top_p}: has to be above 0 and at most 1")).hint(hint)
            );
        }
        Ok(SamplingParams { temperature, top_p, top_k: self.top_k.unwrap_or(0), greedy: self.greedy })
    }
}

fn in_range<N: PartialOrd + std::fmt::Display>(flag: &str, value: N, least: N, most: N) -> Result<()> {
    if value < least || value > most {
        return Err(Failure::usage(format!("{flag} {value}: has to be from {least} to {most}")));
    }
    Ok(())
}

fn parse_shard(text: &str) -> Result<(u32, u32)> {
    let parsed = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    parsed.filter(|&(shard, shards): &(u32, u32)| shard < shards).ok_or_else(|| {
        Failure::usage(format!("--shard {text}: not I/N with I below N"))
            .hint("the two halves are 0/2 and 1/2")
    })
}

/// What was asked for, or the device's own.
fn precision(asked: Option<Precision>, device: Choice) -> Result<Precision> {
    let (own, only) = match device {
        Choice::Cpu => (Precision::Float32, false),
        Choice::Sim => (Precision::Float32, true),
        Choice::Cuda(_) => (Precision::BFloat16, true),
    };
    match asked {
        Some(asked) if only && asked != own => {
            let (asked, own) = (asked.name(), own.name());
            Err(Failure::usage(format!("--dtype {asked}: --device {device} computes in {own}"))
                .hint("leave --dtype out, or use --device cpu"))
        }
        asked => Ok(asked.unwrap_or(own)),
    }
}
