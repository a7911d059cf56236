//! The settings of a run. This struct is the command line, its help and completions, the lines of a file of
//! `--config`, and what a run writes down. Flags of a stage that the loop does not know go through `--flags`; the
//! stage judges them before anything is trained.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::builder::{RangedU64ValueParser, ValueHint};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use record::failure::{Failure, Result};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::defaults;
use crate::kind::{self, PolicyKind};
use crate::method;
use crate::model::Model;
use crate::values::{ByAgent, Number, Pair, PolicyChoice, by_agent, is_server, one_or_list, settle, table};

/// The stages of the pipe, in its order.
const STAGES: [&str; 7] = ["demo", "tasks", "rollout", "reward", "group", "advantage", "update"];

/// The programs that take `--flags`: the stages, and two of the warm-up.
const WITH_FLAGS: [&str; 7] = ["tasks", "rollout", "group", "advantage", "update", "demo", "warm-up"];

/// Whole numbers from `least` up to twelve digits: a seed times a million must fit into an integer of the shell.
fn whole(least: u64) -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(least..=999_999_999_999)
}

/// The candidate to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Select {
    /// As in AT-GRPO's paper.
    Best,
    Random,
}

/// An optimizer of `update`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    Adamw,
    Sgd,
    Muon,
}

/// The program that starts shards and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LauncherChoice {
    /// srun in a Slurm allocation, else local.
    Auto,
    /// This machine; ranks by mpirun.
    Local,
    /// Ranks by mpirun as the user configured it; shards run here.
    Mpirun,
    Srun,
}

/// What a run does that may be collapsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnCollapse {
    /// Say so and go on.
    Warn,
    /// Go on with half the learning rate.
    Halve,
    /// End the run after the step, with exit code 1.
    Stop,
}

/// The flags of a run.
#[derive(Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// Run directory [default: runs/ENV]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Run")]
    #[serde(skip)]
    pub run: Option<String>,

    /// Read flags from a TOML file
    ///
    /// A line per flag: steps = 40, betas = [0.9, 0.95], resident = true, policies = "per-role". Flags that take
    /// NAME=VALUE are tables: set, flags, stage, policies. A table sweep has values in brackets: lr = [1e-3,
    /// 2e-3] makes a run for each, branches = [4, 8] for each combination. The command line overrides the file. Every
    /// run writes its flags to RUN/config.toml.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Run")]
    #[serde(skip)]
    pub config: Option<String>,

    /// Continue a run with its RUN/config.toml
    ///
    /// --steps and --token-budget may grow. Flags that only affect how later steps are sampled, compared and trained
    /// may also change, from the next step on (docs/configuration.md); run.json keeps their history.
    #[arg(long, value_name = "RUN", value_hint = ValueHint::DirPath, help_heading = "Run")]
    #[serde(skip)]
    pub resume: Option<String>,

    /// Training steps
    #[arg(long, value_name = "N", value_parser = whole(0), default_value = "80", help_heading = "Run")]
    pub steps: u64,

    /// End the run when training has generated this many tokens in all
    ///
    /// The step that reaches N is the last, unless --steps ends the run earlier: compares methods at equal cost.
    #[arg(long, value_name = "N", value_parser = whole(1), help_heading = "Run")]
    pub token_budget: Option<u64>,

    /// Seed of all random numbers; of several, a run for each: 1,2,3
    ///
    /// Several runs train one after another, in DIR/seed=1 and so on, with DIR of --run (default: runs/ENV-seeds, or
    /// runs/FILE with --config FILE). Finished runs are skipped, unfinished ones resume.
    #[arg(long, value_name = "S,…", value_parser = whole(0), default_value = "1", value_delimiter = ',',
          num_args = 1, action = ArgAction::Set, help_heading = "Run")]
    #[serde(serialize_with = "one_seed")]
    pub seed: Vec<u64>,

    /// Environment; `envs list` names all
    #[arg(long, value_name = "NAME", default_value = "plan-path", help_heading = "Environment")]
    pub env: String,

    /// Play with this program instead of a built-in environment
    ///
    /// COMMAND answers as in `rollout --env-command`. COMMAND tasks --split train|test --count N --seed S prints its
    /// tasks; for a warm-up, COMMAND demo --count N --seed S prints demonstrations: samples with prompt and completion
    /// as text.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, help_heading = "Environment")]
    pub env_command: Option<String>,

    /// Setting of the environment, repeatable; `envs list` names all
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting, help_heading = "Environment")]
    #[serde(serialize_with = "table", skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<Pair>,

    /// Which agents act when: a name or FILE.toml [default: team; with --env-command, the program's]
    #[arg(long, value_name = "NAME", help_heading = "Environment")]
    pub workflow: Option<String>,

    /// Most turns in an episode [default: the environment's]
    #[arg(long, value_name = "T", value_parser = whole(1), help_heading = "Environment")]
    pub turns: Option<u64>,

    /// Initial model of the policies: tiny | smollm2 | DIR | FILE.gguf | hf:ORG/NAME[/FILE.gguf]
    ///
    /// DIR is a Hugging Face directory, hf: a model of the hub.
    #[arg(long, value_name = "NAME", default_value = "tiny", help_heading = "Policies")]
    pub model: String,

    /// Which policy plays which role: shared | adapter-per-role | per-role | AGENT=DIR | AGENT=URL [default: shared]
    ///
    /// AGENT=DIR names a policy directory, repeatable; agents with the same DIR share one policy. AGENT=URL names an
    /// OpenAI-compatible server, which is not trained.
    #[arg(long = "policies", value_name = "WHICH", help_heading = "Policies")]
    #[serde(skip)]
    policy_words: Vec<PolicyChoice>,

    #[arg(skip)]
    pub policies: PolicyChoice,

    /// Size of the adapters of adapter-per-role, as in `policy init --adapter`
    #[arg(long, value_name = "SETTINGS", default_value = "rank=16,alpha=32", help_heading = "Policies")]
    pub adapter: String,

    /// Train only this agent's policy, repeatable [default: all]
    #[arg(long, value_name = "AGENT", help_heading = "Policies")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<String>,

    /// Self-play against earlier versions
    ///
    /// One agent of each episode learns (the agents take turns), and every other agent is played by a version of its
    /// policy drawn from the last K. Keeps K + 1 versions, or K + N with --save-every N.
    #[arg(long, value_name = "past:K", help_heading = "Policies")]
    pub opponents: Option<String>,

    /// Steps of warm-up on demonstrations (with --env-command: 0)
    ///
    /// It trains all weights; for adapters it trains one adapter, of which each role gets a copy. --flags demo=... and
    /// --flags warm-up=... replace its flags of envs demo and update.
    #[arg(long, value_name = "N", value_parser = whole(0), default_value = "3600", help_heading = "Policies")]
    pub warmup: u64,

    /// Versions of each policy to keep
    #[arg(long, value_name = "N", value_parser = whole(1), default_value = "2", help_heading = "Policies")]
    pub keep: u64,

    /// Copy the policies with the best evaluation to DIR/best
    #[arg(long, help_heading = "Policies")]
    pub keep_best: bool,

    /// Tasks per step
    #[arg(long, value_name = "N", value_parser = whole(1), default_value = "48", help_heading = "Sampling")]
    pub tasks: u64,

    /// Candidates of each agent at each turn
    #[arg(long, value_name = "K", value_parser = whole(1), default_value = "8", help_heading = "Sampling")]
    pub branches: u64,

    /// Candidate to execute
    #[arg(long, value_enum, value_name = "WHICH", default_value = "random", help_heading = "Sampling")]
    pub select: Select,

    /// Sampling temperature
    ///
    /// This flag and the next four also take AGENT=VALUE for one agent, repeatable.
    #[arg(
        long,
        value_name = "[AGENT=]T",
        value_delimiter = ' ',
        default_value = "1",
        help_heading = "Sampling"
    )]
    #[serde(serialize_with = "by_agent")]
    pub temperature: Vec<ByAgent<Number>>,

    /// Most tokens in a candidate [default: the environment's]
    ///
    /// The environment's is 8 to 96 for tiny policies, 128 and more in prose: envs list ENV --format json shows it as
    /// max_tokens; with --env-command 8, or with a warm-up enough for its demonstrations.
    #[arg(long, value_name = "[AGENT=]N", value_delimiter = ' ', help_heading = "Sampling")]
    #[serde(serialize_with = "by_agent", skip_serializing_if = "Vec::is_empty")]
    pub max_tokens: Vec<ByAgent<u64>>,

    /// Sample from the most likely tokens that hold this share of the probability [default: 1]
    ///
    /// With this flag or one of the next two the gradient is biased; see Sampling in docs/stream-format.md.
    #[arg(long, value_name = "[AGENT=]P", value_delimiter = ' ', help_heading = "Sampling")]
    #[serde(serialize_with = "by_agent", skip_serializing_if = "Vec::is_empty")]
    pub top_p: Vec<ByAgent<Number>>,

    /// Sample from this many of the most likely tokens [default: all]
    #[arg(long, value_name = "[AGENT=]N", value_delimiter = ' ', help_heading = "Sampling")]
    #[serde(serialize_with = "by_agent", skip_serializing_if = "Vec::is_empty")]
    pub top_k: Vec<ByAgent<u64>>,

    /// Sample from tokens at least this likely relative to the most likely one [default: 0]
    #[arg(long, value_name = "[AGENT=]P", value_delimiter = ' ', help_heading = "Sampling")]
    #[serde(serialize_with = "by_agent", skip_serializing_if = "Vec::is_empty")]
    pub min_p: Vec<ByAgent<Number>>,

    /// End an answer with the token that completes TEXT, repeatable
    ///
    /// AGENT=TEXT for one agent. Write '=TEXT' if TEXT contains =.
    #[arg(long, value_name = "[AGENT=]TEXT", value_parser = stop, help_heading = "Sampling")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,

    /// Credit rule: which samples are compared, and by which number
    ///
    /// It sets flags of stages; --flags replaces one, and `explain` prints the pipe.
    #[arg(long, value_name = "NAME", value_parser = method::NAMES, default_value = "at-grpo", help_heading = "Training")]
    pub method: String,

    /// Optimizer
    #[arg(long, value_enum, value_name = "NAME", default_value = "adamw", help_heading = "Training")]
    pub optimizer: Optimizer,

    /// Peak learning rate, with AGENT= of this agent's policy, repeatable
    ///
    /// For adapters of a model with 0.3 billion parameters or more the default is 1e-4.
    #[arg(
        long,
        value_name = "[AGENT=]X",
        value_delimiter = ' ',
        default_value = "1e-3",
        help_heading = "Training"
    )]
    #[serde(serialize_with = "by_agent")]
    pub lr: Vec<ByAgent<Number>>,

    /// Optimizer steps of linear warm-up
    #[arg(long, value_name = "N", value_parser = whole(0), default_value = "5", help_heading = "Training")]
    pub lr_warmup: u64,

    /// Decay rates of AdamW's moments
    #[arg(long, value_name = "B1,B2", value_delimiter = ',', num_args = 1, default_value = "0.9,0.95",
          action = ArgAction::Set, help_heading = "Training")]
    pub betas: Vec<Number>,

    /// Optimizer steps per training step
    #[arg(long, value_name = "N", value_parser = whole(1), default_value = "2", help_heading = "Training")]
    pub minibatches: u64,

    /// Clip range of the ratio, below and above 1; one number is both
    #[arg(long, value_name = "LOW[,HIGH]", value_delimiter = ',', num_args = 1, default_value = "0.2",
          action = ArgAction::Set, help_heading = "Training")]
    #[serde(serialize_with = "one_or_list")]
    pub clip: Vec<Number>,

    /// When the run may be collapsing (docs/evaluation.md has the signs)
    #[arg(long, value_enum, value_name = "HOW", default_value = "warn", help_heading = "Training")]
    pub on_collapse: OnCollapse,

    /// Weight of the KL divergence from the first version
    #[arg(long, value_name = "X", default_value = "0", help_heading = "Training")]
    pub kl: Number,

    /// Parts of a gradient, for --ranks (docs/scaling.md)
    #[arg(long, value_name = "N", value_parser = whole(1), default_value = "1", help_heading = "Training")]
    pub parts: u64,

    /// Steps between evaluations; 0: none
    #[arg(long, value_name = "N", value_parser = whole(0), default_value = "20", help_heading = "Evaluation")]
    pub eval_every: u64,

    /// Test tasks per evaluation
    #[arg(long, value_name = "N", value_parser = whole(1), default_value = "300", help_heading = "Evaluation")]
    pub eval_tasks: u64,

    /// Append TensorBoard events to DIR/RUN after each step
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Evaluation")]
    pub tensorboard: Option<String>,

    /// Additional flags for a stage, repeatable: advantage='--estimator rloo'
    ///
    /// NAME is tasks, rollout, group, advantage or update, and demo or warm-up for the two programs of the warm-up.
    /// Flags of rollout for environments, servers and the machine, such as --timeout, also hold in evaluations.
    #[arg(long, value_name = "NAME=FLAGS", value_parser = flags_of, help_heading = "Stages")]
    #[serde(serialize_with = "table", skip_serializing_if = "Vec::is_empty")]
    flags: Vec<Pair>,

    /// Replace a stage by a shell command, repeatable
    ///
    /// The command finds $RUN, $STEP and Troupe's programs on its PATH. reward is an additional stage between rollout
    /// and group, for a judge; demo prints the demonstrations of the warm-up.
    #[arg(long, value_name = "NAME=COMMAND", value_parser = command_of, help_heading = "Stages")]
    #[serde(serialize_with = "table", skip_serializing_if = "Vec::is_empty")]
    stage: Vec<Pair>,

    /// Where policies play and train: cpu | cuda | cuda:N | several as cuda:0-7
    ///
    /// The warm-up is always on the CPU. With cuda:0-7 or cuda:0,2 policies play on several GPUs, and train on the
    /// first, or with --ranks N with one GPU per rank.
    #[arg(long, value_name = "NAME", default_value = "cpu", help_heading = "Machine")]
    pub device: String,

    /// Type in which policies play and train [default: float32; bfloat16 on cuda]
    ///
    /// float32 | bfloat16 | float16, the last only on cuda. The warm-up is always in float32.
    #[arg(long, value_name = "NAME", value_parser = ["float32", "bfloat16", "float16"], help_heading = "Machine")]
    pub dtype: Option<String>,

    /// Start the stages once, not once per step: the same bytes
    ///
    /// Weights and moments stay in memory. A resumed run may switch. Only the stage tasks can be replaced.
    #[arg(long, help_heading = "Machine")]
    pub resident: bool,

    /// With --resident: save the optimizer's state every N steps and at the end
    ///
    /// After a kill the run repeats the steps since the last save, with the same bytes.
    #[arg(long, value_name = "N", value_parser = whole(1), default_value = "1", help_heading = "Machine")]
    pub save_every: u64,

    /// Play each step with N processes of rollout, on the CPU: the same policies
    ///
    /// They share its tasks; a process that fails or is killed is run again. N may change when a run resumes.
    #[arg(long, value_name = "N", value_parser = whole(1), default_value = "1", help_heading = "Machine")]
    pub shards: u64,

    /// Train with N MPI processes, a power of two up to --parts
    ///
    /// The bytes depend only on --parts; N may change when a run resumes. Without --side-by-side, the policies train
    /// one after another.
    #[arg(long, value_name = "N", value_parser = whole(1), default_value = "1", help_heading = "Machine")]
    pub ranks: u64,

    /// Train the policies at the same time, each on an equal share of --ranks: the same bytes
    ///
    /// 4 ranks are 2 for each of two policies. A share is a power of two up to --parts. A resumed run may switch.
    #[arg(long, help_heading = "Machine")]
    pub side_by_side: bool,

    /// Program that starts shards and ranks
    #[arg(long, value_enum, value_name = "WHICH", default_value = "auto", help_heading = "Machine")]
    pub launcher: LauncherChoice,

    /// Compress the streams of committed steps
    ///
    /// Keeps samples.jsonl.zst and tasks.jsonl.zst (zstd), which all programs read; `report compress RUN` does it
    /// later.
    #[arg(long, help_heading = "Machine")]
    pub compress: bool,

    /// The kind of the policies, by which some defaults differ.
    #[arg(skip)]
    #[serde(skip)]
    pub kind: PolicyKind,

    /// The flags that were given, by their names in a file.
    #[arg(skip)]
    #[serde(skip)]
    given: BTreeSet<String>,

    /// The model that new policies are made from, once it is on this machine.
    #[arg(skip)]
    #[serde(skip)]
    pub local_model: Option<Model>,

    /// The learning rate that follows from its size.
    #[arg(skip)]
    #[serde(skip)]
    pub rate: Option<Number>,

    /// True if a learning rate was given without an agent.
    #[arg(skip)]
    #[serde(skip)]
    gives_rate: bool,
}

fn one_seed<S: serde::Serializer>(seeds: &[u64], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_u64(seeds.first().copied().unwrap_or_default())
}

fn setting(text: &str) -> std::result::Result<Pair, String> {
    match text.parse::<Pair>() {
        Ok(_) if text.contains(char::is_whitespace) => Err("not NAME=VALUE".to_owned()),
        pair => pair,
    }
}

fn stop(text: &str) -> std::result::Result<String, String> {
    match text.split_once('=').map_or(text, |(_, text)| text).is_empty() {
        true => Err("not TEXT or AGENT=TEXT".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn pair_of(text: &str, known: &[&str]) -> std::result::Result<Pair, String> {
    let name = text.split('=').next().unwrap_or_default();
    match known.contains(&name) {
        true => text.parse(),
        false => Err(format!("no such stage; stages: {}", known.join(" "))),
    }
}

fn flags_of(text: &str) -> std::result::Result<Pair, String> {
    pair_of(text, &WITH_FLAGS)
}

fn command_of(text: &str) -> std::result::Result<Pair, String> {
    pair_of(text, &STAGES)
}

/// The names in a file of the flags that `matches` has from the command line.
pub fn names_given(matches: &ArgMatches) -> BTreeSet<String> {
    let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let names = matches.ids().map(|id| id.as_str()).filter(is_given);
    names.map(|id| if id == "policy_words" { "policies".to_owned() } else { id.replace('_', "-") }).collect()
}

/// Refuses keys in the values of `--policies` and `--model`, before a parser's message could quote them.
///
/// # Errors
/// Usage.
pub fn check_addresses(words: &[String]) -> Result<()> {
    for flag in ["--policies", "--model"] {
        let inline = words.iter().filter_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
        let after = words.windows(2).filter(|pair| pair[0] == flag).map(|pair| pair[1].as_str());
        for value in inline.chain(after) {
            let named = value.split_once('=').filter(|(agent, _)| !agent.contains([':', '/', '@']));
            record::address::check(flag, named.map_or(value, |(_, what)| what))?;
        }
    }
    Ok(())
}

impl Settings {
    /// The flags of a run as a command, with the defaults of this kind of policy.
    pub fn command(kind: PolicyKind) -> Command {
        let command = Command::new("pipeline.sh").no_binary_name(true).args_override_self(true);
        defaults::choose(Settings::augment_args(command), kind)
    }

    /// The values of flags, of which the later of two counts.
    ///
    /// # Errors
    /// A value that its flag does not accept (exit 2).
    pub fn new<T: Into<OsString> + Clone>(words: &[T]) -> Result<Settings> {
        let read = |kind| record::stage::parse_words(Settings::command(kind), words);
        let kind = Settings::from_matches(&read(PolicyKind::Tiny)?)?.choose_kind()?;
        let mut settings = Settings { kind, ..Settings::from_matches(&read(kind)?)? };
        settings.complete();
        Ok(settings)
    }

    /// The defaults of a kind of policy.
    pub fn defaults(kind: PolicyKind) -> Result<Settings> {
        let matches = record::stage::parse_words(Settings::command(kind), &[] as &[String])?;
        let mut settings = Settings { kind, ..Settings::from_matches(&matches)? };
        settings.complete();
        Ok(settings)
    }

    fn from_matches(matches: &ArgMatches) -> Result<Settings> {
        let mut settings =
            Settings::from_arg_matches(matches).map_err(|error| Failure::usage(error.render()))?;
        settings.policies = PolicyChoice::of(&settings.policy_words);
        settings.given = names_given(matches);
        Ok(settings)
    }

    /// The kind of the policies: of the first that is named, or of the model.
    fn choose_kind(&self) -> Result<PolicyKind> {
        Ok(match &self.policies {
            PolicyChoice::Named(_) if self.is_given("model") => {
                return Err(Failure::usage("--model has no effect where --policies names directories")
                    .hint("leave one of them out"));
            }
            PolicyChoice::Named(pairs) => match pairs.iter().find(|pair| !is_server(&pair.value)) {
                Some(pair) => {
                    kind::of_agent(self.run.as_deref().unwrap_or_default(), &pair.name, pair.value.as_ref())
                }
                None => PolicyKind::Pretrained,
            },
            _ if self.model == "tiny" => PolicyKind::Tiny,
            PolicyChoice::AdapterPerRole => PolicyKind::Adapters,
            _ => PolicyKind::Pretrained,
        })
    }

    /// Fills in values that depend on others.
    fn complete(&mut self) {
        settle(&mut self.temperature, Some(defaults::number("temperature", self.kind)));
        self.gives_rate = self.is_given("lr") && self.lr.iter().any(|rate| rate.agent.is_empty());
        settle(&mut self.lr, Some(defaults::number("lr", self.kind)));
        settle(&mut self.max_tokens, None);
        for numbers in [&mut self.top_p, &mut self.min_p] {
            settle(numbers, None);
        }
        settle(&mut self.top_k, None);
        let mut flags: Vec<Pair> = Vec::new();
        for pair in self.flags.drain(..) {
            match flags.iter_mut().find(|before| before.name == pair.name) {
                Some(before) => before.value = format!("{} {}", before.value, pair.value),
                None => flags.push(pair),
            }
        }
        self.flags = flags;
        if self.env_command.is_some() && !self.is_given("warmup") {
            self.warmup = 0;
        }
        if self.workflow.is_none() && self.env_command.is_none() {
            self.workflow = Some("team".to_owned());
        }
        if self.dtype.is_none() && self.device == "cpu" {
            self.dtype = Some("float32".to_owned());
        }
    }

    /// The settings by their names in a file; those that are not set are left out.
    ///
    /// # Errors
    /// A value cannot be written (exit 1).
    pub fn table(&self) -> Result<Map<String, Value>> {
        match serde_json::to_value(self) {
            Ok(Value::Object(table)) => Ok(table.into_iter().filter(|(_, value)| !value.is_null()).collect()),
            other => Err(Failure::work(format!("the settings cannot be written: {other:?}"))),
        }
    }

    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains(name)
    }

    pub fn seed(&self) -> u64 {
        self.seed.first().copied().unwrap_or_default()
    }

    /// The command that prints tasks and demonstrations.
    pub fn environment_command(&self) -> &str {
        self.env_command.as_deref().unwrap_or("envs")
    }

    /// Sets the default learning rate, unless one was given.
    pub fn set_default_rate(&mut self) {
        if let Some(rate) = self.rate.filter(|_| !self.gives_rate) {
            self.lr.retain(|own| !own.agent.is_empty());
            settle(&mut self.lr, Some(rate));
        }
    }

    /// Sets the token limit of agents that have none of their own.
    pub fn set_token_limit(&mut self, limit: u64) {
        settle(&mut self.max_tokens, Some(limit));
    }

    /// The agents that a flag names, with the flag.
    pub fn agents(&self) -> Vec<(&'static str, &str)> {
        fn of<'a, T>(flag: &'static str, values: &'a [ByAgent<T>]) -> Vec<(&'static str, &'a str)> {
            values.iter().map(|value| (flag, value.agent.as_str())).collect()
        }
        let stops = self.stop.iter().filter_map(|text| Some(("--stop", text.split_once('=')?.0))).collect();
        let mut all = [
            of("--lr", &self.lr),
            of("--temperature", &self.temperature),
            of("--max-tokens", &self.max_tokens),
            of("--top-p", &self.top_p),
            of("--top-k", &self.top_k),
            of("--min-p", &self.min_p),
            stops,
        ]
        .concat();
        all.retain(|(_, agent)| !agent.is_empty());
        all
    }

    /// Returns true if some tokens cannot be sampled.
    pub fn is_truncated(&self) -> bool {
        self.top_p.iter().any(|p| p.value.0 != 1.0)
            || self.top_k.iter().any(|k| k.value != 0)
            || self.min_p.iter().any(|p| p.value.0 != 0.0)
    }

    /// Returns true if the run begins with random weights, which no warm-up trains.
    pub fn begins_untrained(&self) -> bool {
        let is_random = ["tiny", "bench"].contains(&self.model.as_str());
        is_random && !matches!(self.policies, PolicyChoice::Named(_)) && self.warmup == 0
    }

    /// From how many versions opponents are drawn; 0 without self-play.
    pub fn pool(&self) -> u64 {
        let count = self.opponents.as_deref().and_then(|text| text.strip_prefix("past:"));
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Keeps the versions that a resumed run draws opponents from: a kill takes it back to the last saved version.
    ///
    /// # Errors
    /// Usage: not all agents are trained, so that not all can learn in turn.
    pub fn keep_opponents(&mut self) -> Result<()> {
        if self.pool() == 0 {
            return Ok(());
        }
        if !self.train.is_empty() {
            return Err(Failure::usage("--opponents: all agents learn in turn, which --train forbids")
                .hint("leave out one of them"));
        }
        self.keep = self.keep.max(self.pool() + self.save_every);
        Ok(())
    }

    /// The words of `--flags` for a program.
    pub fn flags_of(&self, program: &str) -> impl Iterator<Item = &str> {
        let own = self.flags.iter().filter(move |pair| pair.name == program);
        own.flat_map(|pair| pair.value.split_whitespace())
    }

    /// The commands of `--stage`: the stage's name and its command, the last of two.
    pub fn commands(&self) -> impl Iterator<Item = &Pair> {
        let is_last =
            |place: usize, pair: &Pair| self.stage[place + 1..].iter().all(|later| later.name != pair.name);
        self.stage.iter().enumerate().filter(move |(place, pair)| is_last(*place, pair)).map(|(_, pair)| pair)
    }

    pub fn replaces(&self, stage: &str) -> bool {
        self.stage.iter().any(|pair| pair.name == stage)
    }

    /// Returns true if `--flags` of a program has this flag.
    pub fn has_flag(&self, program: &str, flag: &str) -> bool {
        self.flags_of(program)
            .any(|word| word == flag || word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')))
    }

    /// The words of `--flags` for a program that set one of `names`, with their values.
    pub fn given_to(&self, program: &str, names: &[&str]) -> Vec<String> {
        let (mut words, mut found) = (self.flags_of(program), Vec::new());
        while let Some(word) = words.next() {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if names.contains(&name) {
                found.push(name.to_owned());
                found.extend(value.or_else(|| words.next()).map(str::to_owned));
            }
        }
        found
    }

    /// Returns true if tasks come from this project's environments, and so depend only on the step.
    pub fn has_own_tasks(&self) -> bool {
        !self.replaces("tasks") && self.env_command.is_none()
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
