//! The command line of `pipeline.sh`: the flags of a run, and what to do instead of training.

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::defaults;
use crate::kind::PolicyKind;
use crate::processes::called;
use crate::settings::Settings;

const EXAMPLES: &str = "\
Examples:
  ./pipeline.sh                                    # a team of tiny policies learns Plan-Path on the CPU
  ./pipeline.sh --policies per-role --run runs/two # one policy per role
  ./pipeline.sh --policies adapter-per-role --run runs/adapters
                                                   # a LoRA adapter per role over one frozen base
  ./pipeline.sh --workflow single --run runs/one   # a single agent, for comparison
  ./pipeline.sh --env sudoku                       # another environment, such as sokoban, math or code
  ./pipeline.sh --env-command 'python3 my_env.py'  # your own environment
  ./pipeline.sh --model smollm2 --policies adapter-per-role --env math --workflow check
                                                   # a language model learns sums; defaults differ
  ./pipeline.sh --resident                         # start the stages once, not once per step; the same bytes
  ./pipeline.sh --shards 4 --ranks 4 --parts 8     # 4 processes play, 4 processes train (docs/cluster.md)
  ./pipeline.sh --policies per-role --ranks 2 --side-by-side
                                                   # one training process per role, at the same time
  ./pipeline.sh --config run.toml                  # flags as lines of a file, such as lr = 1e-3
  ./pipeline.sh --resume runs/two --lr 3e-4        # continue a run, with another learning rate from here on
  ./pipeline.sh --seed 1,2,3                       # three runs one after another, and one report
  ./pipeline.sh --steps 120                        # continue a finished run with more steps
  ./pipeline.sh --policies tool=A --policies planner=B
                                                   # start from your own policies, without warm-up
  ./pipeline.sh --policies tool=A --policies planner=http://localhost:8000/v1
                                                   # a model on a server plays the planner
  ./pipeline.sh --env math --method magrpo         # MAGRPO instead of AT-GRPO
  ./pipeline.sh --flags advantage='--estimator rloo'
                                                   # additional flags for a stage
  ./pipeline.sh --stage reward='python3 examples/judge.py'
                                                   # a judge between rollout and group
  ./pipeline.sh list                               # state, steps, best evaluation and size of all runs
  ./pipeline.sh evaluate --model hf:ORG/NAME | report evaluate
                                                   # evaluate a model before any training
  ./pipeline.sh evaluate --policies tool=A --policies planner=B | report evaluate
                                                   # evaluate policies
  ./pipeline.sh ask runs/math 'What is 6 + 7?'     # the trained team answers, turn by turn
  ./pipeline.sh serve runs/math                    # and is an OpenAI endpoint at http://127.0.0.1:8000/v1
  ./pipeline.sh export runs/two team               # the trained team as one folder for vLLM, llama.cpp and others
  ./pipeline.sh setup --device cuda                # only download the libraries for an NVIDIA GPU

Pretrained policies get prompts in prose (--set encoding=full).
Exit codes: 0 done, 2 usage, otherwise the code of the leftmost stage that failed.";

/// Train a team of language-model agents: warm-up, evaluation, AT-GRPO, evaluation
#[derive(Parser, Debug)]
#[command(name = "pipeline.sh", args_conflicts_with_subcommands = true, args_override_self = true)]
#[command(max_term_width = 110, disable_help_subcommand = true)]
pub struct CommandLine {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    pub action: Option<Action>,
}

/// What to do instead of training.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// Build the programs and download ONNX Runtime; with --device cuda also CUDA's libraries
    Setup(Box<Settings>),
    /// List the runs in a folder: state, steps, best evaluation and size on disk
    List {
        #[arg(value_name = "DIR", default_value = "runs")]
        folder: String,
    },
    /// Write a run's team to a new folder for other programs: policies, prompts, a card, and a script that plays it
    Export {
        /// The folder of the run
        #[arg(value_name = "RUN")]
        run: String,
        /// The folder to make
        #[arg(value_name = "DIR")]
        folder: String,
        /// What others call the base of the adapters [default: its name on the hub; without one the base is copied]
        #[arg(long, value_name = "ORG/NAME")]
        base: Option<String>,
    },
    /// Print the stream of an evaluation of --policies AGENT=DIR, or of --model, which then plays all agents
    Evaluate {
        /// Step that the stream names; before the flags
        #[arg(value_name = "STEP", default_value_t = 0)]
        step: u64,
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// Serve the team of a run to clients of OpenAI's API: each agent is a model, by its best version
    ///
    /// Sampling, limits and stop texts are the run's unless a call sets others. A key for clients is taken from the variable
    /// TROUPE_API_KEY, which an address that others reach needs. rollout --help has the rest.
    Serve {
        #[arg(value_name = "RUN")]
        run: String,
        /// A port, which only this machine reaches, or an address and a port
        #[arg(value_name = "[HOST:]PORT", default_value = "8000")]
        address: String,
    },
    /// Ask the team of a run: its workflow on questions of yours, greedily, by its best versions
    ///
    /// Prints what each agent says, then the last word. Environments math, code, tldr and arxiv take questions, with any
    /// workflow, and programs (--env-command) that know `tasks --ask TEXT`.
    Ask {
        #[arg(value_name = "RUN")]
        run: String,
        /// Without one, each line of stdin is a question
        #[arg(value_name = "QUESTION")]
        questions: Vec<String>,
        /// Print a line of JSON for each question: turns with their prompts, and the answer
        #[arg(long)]
        json: bool,
    },
    /// Print the pipe with the flags of --method
    Explain(Box<Settings>),
    /// Print completions for a shell: source <(… completions bash)
    Completions { shell: Shell },
}

/// The whole command line. `environments` completes `--env`.
pub fn command(environments: &[&'static str]) -> Command {
    let command = defaults::choose(CommandLine::command(), PolicyKind::Tiny);
    let command = command.bin_name(called()).after_long_help(EXAMPLES.replace("./pipeline.sh", &called()));
    if environments.is_empty() {
        return command;
    }
    let names = || PossibleValuesParser::new(environments.to_vec());
    let with_names = |command: Command| {
        let has_env = command.get_arguments().any(|argument| argument.get_id() == "env");
        if has_env { command.mut_arg("env", |argument| argument.value_parser(names())) } else { command }
    };
    with_names(command).mut_subcommands(with_names)
}
