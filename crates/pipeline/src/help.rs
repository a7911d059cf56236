//! `--help`, generated from the table of flags and a paragraph for each flag that is not a number.

use record::failure::Result;

use crate::flags::{self, Flag, NUMBERS};
use crate::processes::called;

/// One-line summary of the program.
pub const SUMMARY: &str = "Train a team of language-model agents: warm-up, evaluation, AT-GRPO, evaluation.";

const CHOICES: &str = "\
Examples:
  ./pipeline.sh                                    a team of tiny policies learns Plan-Path on the CPU
  ./pipeline.sh --policies per-role --run runs/two one policy per role
  ./pipeline.sh --policies adapter-per-role --run runs/adapters
                                                   a LoRA adapter per role over one frozen base
  ./pipeline.sh --workflow single --run runs/one   a single agent, for comparison
  ./pipeline.sh --env sudoku                       another environment, such as sokoban, math or code
  ./pipeline.sh --env-command 'python3 my_env.py'  your own environment
  ./pipeline.sh --model smollm2 --policies adapter-per-role --env math --workflow check
                                                   a language model learns sums; defaults differ, see below
  ./pipeline.sh --resident                         start the stages once, not once per step; the same bytes
  ./pipeline.sh --shards 4 --ranks 4 --parts 8     4 processes play, 4 processes train (docs/cluster.md)
  ./pipeline.sh --policies per-role --ranks 2 --side-by-side
                                                   one training process per role, at the same time
  ./pipeline.sh --config run.toml                  flags as lines of a file, such as lr = 1e-3
  ./pipeline.sh --resume runs/two                  continue a run with its settings
  ./pipeline.sh --resume runs/two --lr 3e-4        the same, with another learning rate from the next step on
  ./pipeline.sh --seeds 1,2,3                      three runs one after another, and one report
  ./pipeline.sh --runs                             list the runs: state, steps, best evaluation, size on disk
  ./pipeline.sh --steps 120                        continue a finished run with more steps
  ./pipeline.sh --policies tool=A --policies planner=B
                                                   start from your own policies, without warm-up
  ./pipeline.sh --env math --method magrpo         MAGRPO instead of AT-GRPO
  ./pipeline.sh --flags advantage='--estimator rloo'
                                                   additional flags for a stage
  ./pipeline.sh --policies tool=A --policies planner=http://localhost:8000/v1
                                                   a model on a server plays the planner
  ./pipeline.sh --stage advantage='python3 mine.py'
                                                   replace a stage by any command
  ./pipeline.sh --stage reward='python3 examples/judge.py'
                                                   a judge between rollout and group
  ./pipeline.sh --evaluate 0 --model hf:ORG/NAME | report evaluate
                                                   evaluate a model before any training
  ./pipeline.sh --evaluate 0 --policies tool=A --policies planner=B | report evaluate
                                                   evaluate policies
  ./pipeline.sh --setup                            only build the programs and download ONNX Runtime
  ./pipeline.sh --setup --device cuda              the same for an NVIDIA GPU, with CUDA's libraries

Options:
  --setup               build the programs and download ONNX Runtime, then stop
  --run DIR             the run directory                                    [default: runs/ENV]
  --config FILE         a TOML file of flags: steps = 40, betas = [0.9, 0.95], resident = true,
                        policies = \"per-role\"; NAME=VALUE flags are tables: [set], [flags], [stage], [policies].
                        The command line overrides the file. Every run writes all its flags to RUN/config.toml
  --resume RUN          continue a run with its RUN/config.toml; --steps may grow. The following flags may also
                        change, from the next step on; run.json keeps their history:
                        CHANGEABLE
  --runs [DIR]          list the runs in DIR: state, steps, best evaluation and size on disk, then stop
                        [default: runs]
  --env NAME            the environment (see `envs list`)                    [default: plan-path]
  --env-command COMMAND play with this program instead, as `rollout` does. COMMAND tasks --split train|test
                        --count N --seed S prints its tasks; for a warm-up, COMMAND demo --count N --seed S
                        prints demonstrations: samples with prompt and completion as text
  --method NAME         the credit rule: which samples are compared, and by which number. at-grpo | trajectory |
                        magrpo | magrpo-cross | c3 | c3-zscore | drmas | gigpo | gdpo | rae | matpo | flow-grpo |
                        hierarchical. It sets flags of stages; --flags replaces one  [default: at-grpo]
  --explain             print the pipe with the flags of --method, then stop
  --set NAME=VALUE      a setting of the environment (repeatable; see `envs list`)
  --workflow NAME       which agents act when: a name or FILE.toml
                        [default: team; with --env-command, the program's]
  --model NAME          the initial model of the policies. tiny | smollm2 | a Hugging Face directory | FILE.gguf |
                        hf:ORG/NAME, a hub model | hf:ORG/NAME/FILE.gguf     [default: tiny]
  --policies WHICH      which policy plays which role. shared | adapter-per-role | per-role | AGENT=DIR, or
                        AGENT=URL of an OpenAI-compatible server, which is not trained (repeatable). Agents with the
                        same DIR share one policy                            [default: shared]
  --adapter SETTINGS    size of the adapters of adapter-per-role, as in `policy init --adapter`
                        [default: rank=16,alpha=32]
  --opponents past:K    self-play against earlier versions. One agent of each episode learns (the agents take
                        turns), and every other agent is played by a version of its policy drawn from the last K.
                        Keeps K + 1 versions, or K + N with --save-every N   [default: past:0]
  --select WHICH        the candidate to execute: random | best (as in the paper)   [default: random]
  --turns T             most turns in an episode                      [default: the environment's]
  --max-tokens N        most tokens in a candidate  [default: the environment's: 8 to 96 for tiny policies, 128 and
                        more in prose; envs list ENV --format json shows it as max_tokens; with --env-command 8, or
                        with a warm-up enough for its demonstrations]
                        This flag, --temperature and the next three also take ROLE=VALUE for one agent (repeatable)
  --top-p P             sample from the most likely tokens that hold this share of the probability   [default: 1]
  --top-k N             sample from this many of the most likely tokens                              [default: all]
  --min-p P             sample from tokens at least this likely relative to the most likely one      [default: 0]
                        With any of these three, the gradient is biased; see Sampling in docs/stream-format.md
  --stop TEXT           end an answer with the token that completes TEXT (repeatable); ROLE=TEXT for one agent.
                        Write '=TEXT' if TEXT contains =
  --tokens N            end the run when training has generated N tokens in all. The step that reaches N is the
                        last, unless --steps ends the run earlier: compares methods at equal cost. N may grow
                        [default: no limit]
  --seed S              seed of all random numbers                           [default: 1]
  --seeds S,S,…         one run per seed, one after another, in DIR/seed=1 and so on, with DIR of --run. Finished
                        runs are skipped, unfinished ones resume. A file can also have a table [sweep] with
                        values in brackets: lr = [1e-3, 2e-3] makes a run for each, branches = [4, 8] for each
                        combination                    [default of --run: runs/FILE, or runs/ENV-seeds]
  --device NAME         where policies play and train: cpu | cuda | cuda:N. The warm-up is always on the CPU.
                        cuda:0-7 or cuda:0,2: play on several GPUs, and train on the first, or with --ranks N
                        with one GPU per rank                                [default: cpu]
  --dtype NAME          type in which policies play and train. float32 | bfloat16 | float16, the last only on cuda. The
                        warm-up is always in float32                         [default: float32; bfloat16 on cuda]
  --train AGENT         train only this agent's policy (repeatable)          [default: all]
  --flags NAME=FLAGS    additional flags for a stage (tasks rollout group advantage update). Flags of rollout for
                        environments, servers and the machine, such as --timeout, also hold in evaluations
  --stage NAME=COMMAND  replace a stage by a shell command. It finds $RUN, $STEP and Troupe's programs on its PATH.
                        reward is an additional stage between rollout and group, for a judge
  --keep-best           copy the policies with the best evaluation to DIR/best
                        [default: no; yes for adapters of a pretrained model]
  --resident            start the stages once, not once per step: weights and moments stay in memory. The same
                        bytes; a resumed run may switch. Only the stage tasks can be replaced. With
                        --save-every N the optimizer's state is saved every N steps and at the end; after a kill
                        the run repeats the steps since the last save, with the same bytes
  --shards N            play each step with N processes of rollout. They share its tasks; a process that fails or
                        is killed is run again. The same policies; N may change when a run resumes. On the CPU
                        [default: 1]
  --ranks N             train with N MPI processes, a power of two up to --parts. The bytes depend only on --parts;
                        N may change when a run resumes. Without --side-by-side, the policies train one after
                        another                                              [default: 1]
  --side-by-side        train the policies at the same time, each on an equal share of --ranks. 4 ranks are 2 for
                        each of two policies. A share is a power of two up to --parts. The same bytes; a resumed
                        run may switch
  --launcher WHICH      the program that starts shards and ranks. local (this machine; ranks by mpirun) | mpirun
                        (ranks; shards run here) | srun | auto: srun in a Slurm allocation, else local
                        [default: auto]
  --compress            compress the streams of committed steps. Keeps samples.jsonl.zst and tasks.jsonl.zst
                        (zstd), which all programs read; `report compress RUN` does it later
  --tensorboard DIR     append TensorBoard events to DIR/RUN after each step
  --evaluate STEP       print the stream of an evaluation as step STEP, then stop. It evaluates --policies
                        AGENT=DIR, or --model, which then plays all agents
  --completions SHELL   print completions of these flags for bash, fish or zsh, then stop:
                        source <(./pipeline.sh --completions bash)
  --help                print this text

Numbers, and their defaults by the kind of policy:                  tiny      pretrained  adapters of one
";

/// The column at which a flag's description begins in [`CHOICES`]' paragraphs.
const WORDS_AT: usize = 24;

const END: &str = "\
For adapters of a model with 0.3 billion parameters or more the default of --lr is 1e-4.
The warm-up trains all weights on demonstrations; for adapters it trains one adapter, of which each role gets a
copy. Pretrained policies get prompts in prose (--set encoding=full).
Exit codes: 0 done, 2 usage, otherwise the code of the leftmost stage that failed.
";

/// The complete help text.
pub fn text() -> String {
    let mut text = format!("{SUMMARY}\n\n{CHOICES}");
    for flag in NUMBERS {
        let [tiny, pretrained, adapters] = flag.defaults;
        let name = format!("{} {}", flag.key(), flag.value);
        text.push_str(&format!("  --{name:<22}{:<42}{tiny:<10}{pretrained:<12}{adapters}\n", flag.meaning));
    }
    let free: Vec<String> = flags::all().filter(|flag| flag.may_change()).map(Flag::dashed).collect();
    let (first, second) = free.split_at(free.len() / 2);
    let free = format!("{}\n{:WORDS_AT$}{}", first.join(" "), "", second.join(" "));
    (text + END).replace("CHANGEABLE", &free)
}

/// A short description of a flag.
pub fn meaning(flag: &Flag) -> String {
    let start = format!("\n  {} ", flag.dashed());
    let column = |line: &str| line.chars().skip(WORDS_AT.saturating_sub(start.len() - 1)).collect::<String>();
    let paragraph = || Some(column(CHOICES.split_once(&start)?.1.lines().next()?));
    let words = paragraph().unwrap_or_else(|| flag.meaning.to_owned());
    let words = words.split("[default").next().unwrap_or_default().split(". ").next().unwrap_or_default();
    words.trim().trim_end_matches([':', ',', '.']).to_owned()
}

/// Prints the help.
pub fn print() -> Result<()> {
    record::write::stdout(text().replace("./pipeline.sh", &called()).as_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_flag_is_explained() {
        let text = super::text();
        for flag in crate::flags::all() {
            assert!(text.contains(&format!("\n  {} ", flag.dashed())), "{}", flag.name);
            assert!(super::meaning(flag).len() > 3, "{}: {}", flag.name, super::meaning(flag));
        }
    }
}
