# shellcheck shell=bash disable=SC2034,SC2154
# The flags of a run: its numbers, its choices, and the help that shows them.

# Each is a flag, and a line of --config. N: a whole number. The columns are tiny policies, pretrained ones with all their weights, and adapters
# of pretrained ones; docs/real-models.md says how the latter two were found.
numbers='steps N 80 10 10 training steps in all
tasks N 48 16 16 episodes a step
branches K 8 8 8 candidates of each agent at each turn
temperature T 1.0 0.7 0.7 logits are divided by this
optimizer NAME adamw adamw adamw of `update`
lr X 1e-3 1e-5 5e-4 peak learning rate
lr_warmup N 5 2 2 optimizer steps of linear warm-up
betas B1,B2 0.9,0.95 0.9,0.95 0.9,0.95 decay rates of its two moments
minibatches N 2 2 2 optimizer steps a step
clip X 0.2 0.2 0.2 clip range of a token'"'"'s ratio
kl X 0 0 0 weight of the KL from the first version
keep N 2 2 2 versions of each policy to keep
save_every N 1 1 1 steps between saves with --resident
parts N 1 1 1 parts of which `update` adds up a gradient
eval_every N 20 10 10 steps between evaluations; 0: none
eval_tasks N 300 300 300 tasks of an evaluation, of the test split
warmup N 3600 0 0 optimizer steps on demonstrations
warmup_tasks N 8 2 2 tasks demonstrated in each
warmup_optimizer NAME muon adamw adamw its optimizer
warmup_lr X 0.03 3e-5 5e-4 its learning rate
warmup_lr_warmup N 50 10 2 its optimizer steps of linear warm-up
warmup_lr_other X 4e-3 - - the same of what muon leaves to AdamW'
# What else is a flag: its kind, as pipeline/config.py has them. Those with ! are no part of what a run is made with.
choices='env TEXT
env_command TEXT
set TABLE
workflow TEXT
method TEXT
model TEXT
policies POLICIES
adapter TEXT
train LIST
select TEXT
turns N
max_tokens N
seed N
device TEXT
dtype TEXT
flags TABLE
stage TABLE
keep_best YES
resident YES
shards N
ranks N
side_by_side YES
launcher TEXT
local TEXT
compress YES
tensorboard TEXT
run TEXT!
evaluate N!
setup YES!
config TEXT!
resume TEXT!'

usage() {
    cat <<'TEXT'
Train a team of language-model agents: warm-up, evaluation, AT-GRPO, evaluation.

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
  ./pipeline.sh --steps 120                        run again with more steps: it continues where it stopped
  ./pipeline.sh --policies tool=A --policies planner=B   start from your own checkpoints (no warm-up)
  ./pipeline.sh --env math --method magrpo         MAGRPO in place of AT-GRPO
  ./pipeline.sh --flags advantage='--estimator rloo'   more flags for a stage
  ./pipeline.sh --policies tool=A --policies planner=http://localhost:8000/v1   a served model is the partner
  ./pipeline.sh --stage advantage='python3 mine.py'    any command in place of a stage
  ./pipeline.sh --stage reward='python3 examples/judge.py'   a judge between rollout and group
  ./pipeline.sh --evaluate 0 --policies tool=A --policies planner=B | report evaluate   only evaluate policies
  ./pipeline.sh --setup                            build and fetch the runtime library, nothing else
  ./pipeline.sh --setup --device cuda              the same for an NVIDIA GPU: also CUDA's libraries, where missing

Options:
  --setup               build the programs and fetch ONNX Runtime, then stop
  --run DIR             the run directory                                    [default: runs/ENV]
  --config FILE         a TOML file of flags: steps = 40, betas = [0.9, 0.95], resident = true, policies = "per-role"; NAME=VALUE
                        flags are tables: [set], [flags], [stage], [policies]. The command line goes before the file. Every run
                        writes all of its flags to RUN/config.toml
  --resume RUN          go on with a run and its RUN/config.toml; --steps may grow
  --env NAME            the environment (see `envs list`)                    [default: plan-path]
  --env-command COMMAND play with this program instead, as `rollout` does. COMMAND tasks --split train|test --count N
                        --seed S prints its tasks; for a warm-up, COMMAND demo --count N --seed S its
                        demonstrations: samples with prompt and completion as text
  --method NAME         at-grpo; magrpo: parallel episodes, agents who act at once are rewarded together, returns, no
                        standard deviation; magrpo-cross: a tree with all combinations of candidates, each turn by
                        itself. RECORD.md has them as flags; --flags replaces one           [default: at-grpo]
  --set NAME=VALUE      a setting of the environment (repeatable; see `envs list`)
  --workflow NAME       who acts, in which order          [default: team; the program's own]
  --model NAME          what the policies begin as: tiny | smollm2 | a directory in Hugging Face format |
                        hf:ORG/NAME, a model of the hub                      [default: tiny]
  --policies WHICH      shared | adapter-per-role | per-role | AGENT=DIR, or AGENT=URL of an OpenAI-compatible
                        server, which plays and is not trained (repeatable)  [default: shared]
  --adapter SETTINGS    of adapter-per-role, as of `policy init --adapter`   [default: rank=16,alpha=32]
  --select WHICH        the candidate that is executed: random | best (the paper's)   [default: random]
  --turns T             turns of an episode at most           [default: the environment's own]
  --max-tokens N        tokens of a candidate at most       [default: 8; 24 for math, code and
                        write; 96 for sudoku with size=9; in prose 32, 64 for code, 256 for tldr, arxiv and coop-code,
                        512 for class-eval, strbuild and problems of a file]
  --seed S              the seed of everything random                        [default: 1]
  --device NAME         cpu | cuda | cuda:N: where policies play and train; the
                        warm-up is always on the CPU                         [default: cpu]
  --dtype NAME          float32 | bfloat16: what policies play and train in; the warm-up is
                        always in float32                [default: float32; bfloat16 on cuda]
  --train AGENT         train only this agent's policy (repeatable)          [default: all]
  --flags NAME=FLAGS    more flags for a stage (tasks rollout group advantage update)
  --stage NAME=COMMAND  replaces a stage by a shell command, which finds $RUN, $STEP and the programs of this
                        project on its PATH; reward is one between rollout and group, for a judge
  --keep-best           keep a copy of the policies that did best on the test tasks in DIR/best
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
  --evaluate STEP       print the stream of an evaluation of --policies AGENT=DIR as step STEP, then stop
  --help                this text

Numbers, and their defaults by the kind of policy:                  tiny      pretrained  adapters of one
TEXT
    local name kind tiny pretrained adapters meaning
    while read -r name kind tiny pretrained adapters meaning; do
        printf '  --%-22s%-42s%-10s%-12s%s\n' "${name//_/-} $kind" "$meaning" "$tiny" "$pretrained" "$adapters"
    done <<<"$numbers"
    cat <<'TEXT'
A warm-up trains all weights; of a pretrained model under adapters it trains one adapter, with a copy of which each role
begins. With --env-command its default is 0. In prose (encoding=full) is the default where a policy is pretrained.
Exit codes: 0 done, 2 usage, otherwise the code of the leftmost stage that failed.
TEXT
}

part_read=numbers
