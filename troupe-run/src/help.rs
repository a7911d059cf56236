//! `--help`, generated from the table of flags and a paragraph for each flag that is not a number.

use record::failure::Result;

use crate::flags::{self, Flag, NUMBERS};
use crate::processes::called;

/// One-line summary of the program.
pub const SUMMARY: &str = "Train a team of language-model agents: warm-up, evaluation, AT-GRPO, evaluation.";

const CHOICES: &str = "\
Examples:
  ./pipeline.sh                                    a team of tiny policies learns Plan-Path on the CPU
  ./pipeline.sh --policies per-role --run runs/two one policy for each role
  ./pipeline.sh --policies adapter-per-role --run runs/adapters   a low-rank adapter for each role over one frozen base
  ./pipeline.sh --workflow single --run runs/one   the single agent, for comparison
  ./pipeline.sh --env sudoku                       another environment; so sokoban, math and code
  ./pipeline.sh --env-command 'python3 my_env.py'  an environment of your own
  ./pipeline.sh --model smollm2 --policies adapter-per-role --env math --workflow check   a language model learns
                                                   word problems; its numbers are others, see below
  ./pipeline.sh --resident                         the stages stay from step to step; the same bytes
  ./pipeline.sh --shards 4 --ranks 4 --parts 8     4 processes play each step, and 4 learn from it, by MPI (docs/cluster.md)
  ./pipeline.sh --policies per-role --ranks 2 --side-by-side   a process learns for each role, at the same time
  ./pipeline.sh --config run.toml                  flags as lines of a file, such as lr = 1e-3
  ./pipeline.sh --resume runs/two                  go on with what the run was made with
  ./pipeline.sh --resume runs/two --lr 3e-4        the same, with another learning rate from the next step on
  ./pipeline.sh --seeds 1,2,3                      three runs one after another, and one report of all
  ./pipeline.sh --runs                             list the runs: state, steps, best evaluation, size on disk
  ./pipeline.sh --steps 120                        run again with more steps: it continues where it stopped
  ./pipeline.sh --policies tool=A --policies planner=B   start from your own checkpoints (no warm-up)
  ./pipeline.sh --env math --method magrpo         MAGRPO in place of AT-GRPO
  ./pipeline.sh --flags advantage='--estimator rloo'   more flags for a stage
  ./pipeline.sh --policies tool=A --policies planner=http://localhost:8000/v1   a served model is the partner
  ./pipeline.sh --stage advantage='python3 mine.py'    any command in place of a stage
  ./pipeline.sh --stage reward='python3 examples/judge.py'   a judge between rollout and group
  ./pipeline.sh --evaluate 0 --model hf:ORG/NAME | report evaluate   how good a model is before any training
  ./pipeline.sh --evaluate 0 --policies tool=A --policies planner=B | report evaluate   only evaluate policies
  ./pipeline.sh --setup                            build and fetch the runtime library, nothing else
  ./pipeline.sh --setup --device cuda              the same for an NVIDIA GPU: also CUDA's libraries, where missing

Options:
  --setup               build the programs and fetch ONNX Runtime, then stop
  --run DIR             the run directory                                    [default: runs/ENV]
  --config FILE         a TOML file of flags: steps = 40, betas = [0.9, 0.95], resident = true, policies = \"per-role\"; NAME=VALUE
                        flags are tables: [set], [flags], [stage], [policies]. The command line goes before the file. Every run
                        writes all of its flags to RUN/config.toml
  --resume RUN          go on with a run and its RUN/config.toml; --steps may grow. These count from the next step on where
                        they are given, and run.json keeps their history: CHANGEABLE
  --runs [DIR]          list the runs in DIR: state, steps, best evaluation and size on disk, then stop   [default: runs]
  --env NAME            the environment (see `envs list`)                    [default: plan-path]
  --env-command COMMAND play with this program instead, as `rollout` does. COMMAND tasks --split train|test --count N
                        --seed S prints its tasks; for a warm-up, COMMAND demo --count N --seed S its
                        demonstrations: samples with prompt and completion as text
  --method NAME         which samples are compared, and by what: at-grpo | trajectory | magrpo | magrpo-cross | c3 |
                        c3-zscore | drmas | gigpo | gdpo | rae | matpo | flow-grpo | hierarchical. Each is a name for
                        flags of stages; --flags replaces one                [default: at-grpo]
  --explain             print the pipe with the flags of --method, then stop
  --set NAME=VALUE      a setting of the environment (repeatable; see `envs list`)
  --workflow NAME       who acts when: a name or FILE.toml [default: team; the program's own]
  --model NAME          what the policies begin as: tiny | smollm2 | a directory in Hugging Face format | FILE.gguf |
                        hf:ORG/NAME, a model of the hub | hf:ORG/NAME/FILE.gguf   [default: tiny]
  --policies WHICH      shared | adapter-per-role | per-role | AGENT=DIR, or AGENT=URL of an OpenAI-compatible
                        server, which plays and is not trained (repeatable)  [default: shared]
  --adapter SETTINGS    of adapter-per-role, as of `policy init --adapter`   [default: rank=16,alpha=32]
  --opponents past:K    self-play: in each episode one agent learns, all in turn, and a version of its policy drawn from the last K
                        plays each other one. K + 1 versions are kept, with --save-every N K + N   [default: past:0]
  --select WHICH        the candidate that is executed: random | best (the paper's)   [default: random]
  --turns T             turns of an episode at most           [default: the environment's own]
  --max-tokens N        tokens of a candidate at most       [default: the environment's own: 8 to 96 for tiny
                        policies, in prose 128 and more; envs list ENV --format json has it as max_tokens]
                        So --max-tokens ROLE=N for one agent (repeatable), as --temperature ROLE=T and the next three
  --top-p P             sample from the most likely tokens that hold this share of the probability   [default: 1]
  --top-k N             sample from this many of the most likely tokens                              [default: all]
  --min-p P             sample from tokens at least this likely relative to the most likely one      [default: 0]
                        The policy is trained as if all tokens could be sampled; RECORD.md says what that means
  --stop TEXT           ends an answer with the token that completes TEXT (repeatable); ROLE=TEXT for one agent, '=TEXT' for a
                        text with = in it
  --tokens N            end the run with the step that makes N generated tokens of training in all, if --steps are not reached
                        before: so methods compare at equal cost. N may grow      [default: no limit]
  --seed S              the seed of everything random                        [default: 1]
  --seeds S,S,…         runs one after another in folders of --run: DIR/seed=1 and so on. What is done is skipped, what was begun
                        goes on. A file can also have a table [sweep] with values in brackets: lr = [1e-3, 2e-3] makes a run for
                        each, branches = [4, 8] for each of both          [default of --run: runs/FILE, or runs/ENV-seeds]
  --device NAME         cpu | cuda | cuda:N: where policies play and train; the
                        warm-up is always on the CPU. cuda:0-7 or cuda:0,2: they play on several GPUs and train on the first, or
                        with --ranks N on one a rank                         [default: cpu]
  --dtype NAME          float32 | bfloat16: what policies play and train in; the warm-up is
                        always in float32                [default: float32; bfloat16 on cuda]
  --train AGENT         train only this agent's policy (repeatable)          [default: all]
  --flags NAME=FLAGS    more flags for a stage (tasks rollout group advantage update)
  --stage NAME=COMMAND  replaces a stage by a shell command, which finds $RUN, $STEP and the programs of this
                        project on its PATH; reward is one between rollout and group, for a judge
  --keep-best           keep a copy of the policies that did best on the test tasks in DIR/best   [default: no; yes for adapters
                        of a pretrained model]
  --resident            start the stages once and not for each step: the policies' weights and moments stay in memory.
                        The same bytes; with or without may change from run to run. Of the stages only tasks can be
                        replaced. With --save-every N the optimizer's state is saved every N steps and at the end:
                        what is killed repeats the steps since, with the same bytes
  --shards N            play each step with N processes of rollout that deal its tasks in turn; one that fails or is killed is
                        played again by itself. The same policies; N may change from run to run. On the CPU   [default: 1]
  --ranks N             train with N processes of MPI, a power of two up to --parts; the bytes depend on --parts alone. N may
                        change from run to run. One policy after another, without --side-by-side                [default: 1]
  --side-by-side        train the policies at the same time, each on as many of the --ranks: 4 ranks are 2 for each of two policies,
                        a power of two up to --parts. The same bytes; with or without may change from run to run
  --launcher WHICH      what starts shards and ranks: local (this machine; ranks by mpirun) | mpirun (ranks; shards are
                        here) | srun | auto: srun in an allocation of Slurm, else local       [default: auto]
  --local DIR           rollout reads weights from a copy in DIR, on a disk of the machine that it runs on: made once for all shards
                        there, whole or not at all, and removed when a newer version is copied
  --compress            of each committed step keep samples.jsonl.zst and tasks.jsonl.zst (zstd), which all programs read;
                        `report compress RUN` does it later
  --tensorboard DIR     append TensorBoard events to DIR/RUN after each step
  --evaluate STEP       print the stream of an evaluation as step STEP, then stop: of --policies AGENT=DIR, or of --model,
                        which then plays all agents
  --completions SHELL   print what completes these flags in bash, fish or zsh, then stop:
                        source <(./pipeline.sh --completions bash)
  --help                this text

Numbers, and their defaults by the kind of policy:                  tiny      pretrained  adapters of one
";

/// The column at which a flag's description begins in [`CHOICES`]' paragraphs.
const WORDS_AT: usize = 24;

const END: &str = "\
A warm-up trains all weights; of a pretrained model under adapters it trains one adapter, with a copy of which each role
begins. With --env-command its default is 0. In prose (encoding=full) is the default where a policy is pretrained.
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
///
/// # Errors
/// stdout cannot be written (exit 74).
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
