#!/usr/bin/env bash
# pipeline.sh: the training loop. Every number of a run is here or in its run.json.
#
# A step is one pipe; each stage is a program that can be run, read and replaced on its own:
#
#   envs tasks | rollout | group | advantage | update
#
# The run directory holds every stream of every step. A step is committed by steps/NNNNNN/done, written last and by
# rename: kill anything at any time, and the same command repeats at most the step in flight and ends with the same
# bytes (the `timing` objects aside). With --resident one pipe takes all steps, and leaves the same files.
set -uo pipefail
{ # Up to its end before any of it runs: an error while this file is read must not pass for its end.
export ORT_DISABLE_TELEMETRY=1 LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

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
  ./pipeline.sh --steps 120                        run again with more steps: it continues where it stopped
  ./pipeline.sh --policies tool=A --policies planner=B   start from your own checkpoints (no warm-up)
  ./pipeline.sh --env math --method magrpo         MAGRPO in place of AT-GRPO
  ./pipeline.sh --flags advantage='--estimator rloo'   more flags for a stage
  ./pipeline.sh --stage advantage='python3 mine.py'    any command in place of a stage
  ./pipeline.sh --evaluate 0 --policies tool=A --policies planner=B | report evaluate   only evaluate policies
  ./pipeline.sh --setup                            build and fetch the runtime library, nothing else
  ./pipeline.sh --setup --device cuda              the same for an NVIDIA GPU: also CUDA's libraries, where missing

Options:
  --setup               build the programs and fetch ONNX Runtime, then stop
  --run DIR             the run directory                                    [default: runs/ENV]
  --env NAME            the environment (see `envs list`)                    [default: plan-path]
  --env-command COMMAND play with this program instead, as `rollout` does. COMMAND tasks --split train|test --count N
                        --seed S prints its tasks; for a warm-up, COMMAND demo --count N --seed S its
                        demonstrations: samples with prompt and completion as text
  --method NAME         at-grpo; magrpo: parallel episodes, agents who act at once are rewarded together, returns, no
                        standard deviation; magrpo-cross: a tree with all combinations of candidates, each turn by
                        itself. RECORD.md has them as flags; --flags replaces one           [default: at-grpo]
  --set NAME=VALUE      a setting of the environment (repeatable; see `envs list`)
  --workflow NAME       who acts, in which order          [default: team; the program's own]
  --model NAME          what the policies begin as: tiny | smollm2 | a directory in
                        Hugging Face format                                  [default: tiny]
  --policies WHICH      shared | adapter-per-role | per-role | AGENT=DIR (repeatable)
                                                                             [default: shared]
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
                        project on its PATH
  --keep-best           keep a copy of the policies that did best on the test tasks in DIR/best
  --resident            start the stages once and not for each step: the policies' weights and moments stay in memory.
                        The same bytes; with or without may change from run to run. On the CPU; of the stages only
                        tasks can be replaced
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
A warm-up trains all weights. With --env-command its default is 0. In prose (encoding=full) is the default where a policy is pretrained.
Exit codes: 0 done, 2 usage, otherwise the code of the leftmost stage that failed.
TEXT
}

json() { # EXPRESSION ARGUMENTS...: a Python expression over `lines`, the JSON values on stdin, if there are any, and `argv`
    python3 -c 'import json, sys
text, argv = sys.stdin.read(), sys.argv[2:]
try:
    lines = [json.loads(text)]
except ValueError:
    lines = [json.loads(line) for line in text.splitlines()]
if not lines:
    sys.exit()
value = eval(sys.argv[1])
print(*value) if isinstance(value, list) else print(value)' "$@"
}
die() { # CODE MESSAGE [HINT]
    printf 'pipeline.sh: %s\n' "$2" >&2
    [ $# -gt 2 ] && printf 'hint: %s\n' "$3" >&2
    exit "$1"
}

# ---- the numbers --------------------------------------------------------------------------------------------
# Each is a flag. N: a whole number. The columns are tiny policies, pretrained ones with all their weights, and adapters
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
eval_every N 20 10 10 steps between evaluations; 0: none
eval_tasks N 300 300 300 tasks of an evaluation, of the test split
warmup N 3600 0 0 optimizer steps on demonstrations
warmup_tasks N 8 2 2 tasks demonstrated in each
warmup_optimizer NAME muon adamw adamw its optimizer
warmup_lr X 0.03 3e-5 3e-5 its learning rate
warmup_lr_warmup N 50 10 10 its optimizer steps of linear warm-up
warmup_lr_other X 4e-3 - - the same of what muon leaves to AdamW'
env=plan-path env_command='' method=at-grpo workflow=team model=tiny policies=shared turns='' seed=1 device=cpu dtype=''
run='' tensorboard='' keep_best=no setup_only=no resident=no evaluate='' train='' select=random max_tokens='' adapter=rank=16,alpha=32
settings=''
declare -A stage_command=() stage_flags=() given=()

kind_of() { # DIRECTORY: tiny, pretrained or adapters, by its vocabulary; tiny where there is no policy, as policy will say
    local folder=$1 base=$1/base
    [ ! -d "$1/current" ] || folder=$1/current
    if [ -f "$folder/adapter_config.json" ]; then
        [ -d "$base" ] || base=$(json 'lines[0]["base_model_name_or_path"]' <"$folder/adapter_config.json")
        if [ "$(kind_of "$base")" = tiny ]; then echo tiny; else echo adapters; fi
    elif [ "$(json 'lines[0]["vocab_size"] < 1000' 2>/dev/null <"$folder/config.json")" = False ]; then
        echo pretrained
    else
        echo tiny
    fi 2>/dev/null
}

# ---- arguments ----------------------------------------------------------------------------------------------
while [ $# -gt 0 ]; do
    flag=$1
    case $flag in
        --help | -h) usage; exit 0 ;;
        --setup) setup_only=yes; shift; continue ;;
        --keep-best) keep_best=yes; shift; continue ;;
        --resident) resident=yes; shift; continue ;;
        --run | --tensorboard | --env | --env-command | --method | --workflow | --model | --policies | --adapter | --turns | --select | --max-tokens | \
            --seed | --device | --dtype | --train | --evaluate | --flags | --stage | --set) kind=text ;;
        --*=*) set -- "${flag%%=*}" "${flag#*=}" "${@:2}"; continue ;;
        *)
            kind=$(awk -v name="${flag//-/_}" '"__" $1 == name {print $2}' <<<"$numbers")
            [ -n "$kind" ] || die 2 "unknown argument $flag" 'run ./pipeline.sh --help for the list' ;;
    esac
    [ $# -ge 2 ] || die 2 "$flag needs a value" 'run ./pipeline.sh --help for the list'
    case $flag in
        --policies)
            case $2 in
                shared | adapter-per-role | per-role) policies=$2 ;;
                *[[:space:]]*) die 2 "--policies $2: DIR cannot have blanks in its name" ;;
                ?*=?*) if [ -n "${given[policies]:-}" ]; then policies="$policies $2"; else policies=$2; fi ;;
                *) die 2 "--policies $2: not shared, adapter-per-role, per-role or AGENT=DIR" ;;
            esac ;;
        --stage | --flags)
            case ${2%%=*} in
                tasks | rollout | group | advantage | update) [ "${2#*=}" != "$2" ] || die 2 "$flag $2: not NAME=VALUE" ;;
                *) die 2 "$flag ${2%%=*}: no such stage" 'stages: tasks rollout group advantage update' ;;
            esac
            if [ "$flag" = --stage ]; then stage_command[${2%%=*}]=${2#*=}; else stage_flags[${2%%=*}]+=" ${2#*=}"; fi ;;
        --train) train+="${train:+ }$2" ;;
        --set)
            [[ $2 =~ ^[^=[:space:]]+=[^[:space:]]*$ ]] || die 2 "--set $2: not NAME=VALUE" 'envs list names the settings'
            settings+="${settings:+ }$2" ;;
        *)
            case $flag in --turns | --max-tokens | --seed | --evaluate) kind=N ;; esac
            name=${flag#--} value=$2
            if [[ $kind = [NK] ]]; then
                [[ $2 =~ ^[0-9]{1,12}$ ]] || die 2 "$flag $2: not a whole number of at most 12 digits"
                value=$((10#$2)) # 010 is ten
            fi
            printf -v "${name//-/_}" %s "$value" ;;
    esac
    given[${flag#--}]=yes
    shift 2
done
command -v python3 >/dev/null || die 69 'python3 is not installed' 'pipeline.sh reads the lines of its stages with it; the stages need it for environments in Python'
case "$policies $model" in
    *=*)
        [ -z "${given[model]:-}" ] || die 2 '--model has no effect where --policies names directories' 'leave one of them out'
        name=${policies%% *} # the first decides
        kind=$(kind_of "${name#*=}") ;;
    *\ tiny) kind=tiny ;;
    adapter-per-role*) kind=adapters ;;
    *) kind=pretrained ;;
esac
[ -z "$env_command" ] || [ -n "${given[warmup]:-}" ] || { warmup=0 given[warmup]=yes; }
while read -r name _ tiny pretrained adapters _; do
    [ -n "${given[${name//_/-}]:-}" ] || printf -v "$name" %s "${!kind}"
done <<<"$numbers"
for name in tasks branches turns max_tokens eval_tasks minibatches; do
    [ "${!name:-1}" -gt 0 ] || die 2 "--${name//_/-} must be at least 1"
done
[[ $device =~ ^(cpu|sim|cuda(:[0-9]+)?)$ ]] || die 2 "--device $device: not a device" 'devices are cpu, cuda and cuda:N'
if [ "$resident" = yes ]; then
    [ -z "$evaluate" ] || die 2 '--resident has no effect with --evaluate' 'leave out --resident'
    [ "$device" = cpu ] || die 2 "--resident has no effect with --device $device" 'leave out --resident: a device is shared by a process a step'
    for name in rollout group advantage update; do
        [ -z "${stage_command[$name]:-}" ] ||
            die 2 "--stage $name=... is a process a step, which --resident does not start" 'leave out --resident'
    done
fi
[[ $method =~ ^(at-grpo|magrpo|magrpo-cross)$ ]] || die 2 "--method $method: not at-grpo, magrpo or magrpo-cross"
[[ $select =~ ^(random|best)$ ]] || die 2 "--select $select: not random or best"
[ "$policies" = adapter-per-role ] || [ -z "${given[adapter]:-}" ] ||
    die 2 '--adapter needs --policies adapter-per-role' 'or make the adapters with policy init --adapter and name them: --policies AGENT=DIR'
if [ -n "$env_command" ]; then
    [ -z "${given[env]:-}${given[set]:-}" ] ||
        die 2 '--env-command takes the place of --env and --set' 'give its settings in COMMAND: it is run by a shell'
    [ -n "${given[workflow]:-}" ] || workflow=''
    # Its name, and who acts, as it says itself of its first task.
    [ "$setup_only" = yes ] || answer=$(python3 - "$env_command" "$workflow" <<'PYTHON'
import json, re, subprocess, sys
command, workflow = sys.argv[1:]
def ask(arguments, said=""):
    try:
        done = subprocess.run(["sh", "-c", command + arguments], input=said, stdout=subprocess.PIPE, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        fail(f"{arguments}` was silent for 60 s")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines or fail(f"{arguments}` printed nothing and ended with exit code {done.returncode}")
def fail(cause):
    sys.exit(f"pipeline.sh: --env-command: `{command}{cause}\nhint: RECORD.md shows the lines, examples/ has whole programs")
try:
    asked = " tasks --split train --count 1 --seed 1"
    task = [line for line in ask(asked) if line.get("type") == "task"][0]
    asked = ""
    request = {"request": 1, "task": task, **({"workflow": workflow} if workflow else {})}
    answer = ask(asked, json.dumps(request) + "\n")[0]
    names = [task["env"], *answer["agents"]]
except (ValueError, LookupError, TypeError, AttributeError) as error:
    fail(f"{asked}` did not answer as expected: {type(error).__name__}: {error}")
strange = [name for name in names if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name)]
if strange:
    fail(f"` has the name {strange[0]!r}, and no folder can have it")
print(*names)
PYTHON
    ) || exit 2
    read -r env agents <<<"${answer:-}"
fi
[ -n "$run" ] || run=runs/$env
[ -n "$dtype" ] || [ "$device" != cpu ] || dtype=float32
dtype_flags=() # a device has but one
[ -z "$dtype" ] || dtype_flags=(--dtype "$dtype")

# ---- set-up: build, fetch the runtime library ---------------------------------------------------------------
# TROUPE_BIN names a folder with built programs (a test's, or another machine's); nothing is built then.
bin=${TROUPE_BIN:-$root/target/release}
if [ -z "${TROUPE_BIN:-}" ]; then
    command -v cargo >/dev/null || die 69 'cargo is not installed' 'install Rust (rustup), or point TROUPE_BIN at built programs'
    [ -x "$bin/rollout" ] || printf 'pipeline.sh: building the programs, once: minutes, with Rust %s or newer\n' \
        "$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")" >&2
    (cd "$root" && cargo build --release --workspace --bins --locked --quiet) || die 1 'the build failed'
fi
for program in envs policy rollout group advantage update report; do
    [ -x "$bin/$program" ] || die 69 "$bin has no program $program" 'cargo build --release --workspace --bins builds them all'
done
case $device in
    cuda*)
        # The programs find installed and fetched libraries by themselves, ONNX Runtime with CUDA among them: naming the
        # plain one would keep rollout off the GPU. Only what they do not find is fetched.
        if [ -z "${ORT_DYLIB_PATH:-}" ]; then
            missing=$("$bin/rollout" --version --format json | json '(lambda parts:
                ["onnxruntime"] * (not lines[0]["onnxruntime_cuda"]["path"])
                + sorted({parts[library["file"].split(".")[0]] for library in lines[0]["libraries"] if not library["path"]}))(
                {"libcudart": "runtime", "libcurand": "runtime", "libcublas": "cublas", "libcublasLt": "cublas", "libnvrtc": "nvrtc"})') ||
                exit $?
            # shellcheck disable=SC2086 # one argument a word
            [ -z "$missing" ] || "$root/fetch-cuda.sh" $missing >/dev/null || exit $?
        fi ;;
    *)
        export ORT_DYLIB_PATH=${ORT_DYLIB_PATH:-$("$root/fetch-runtime.sh")} || exit $?
        [ -n "$ORT_DYLIB_PATH" ] || die 69 'ONNX Runtime could not be fetched' 'see the message above, or set ORT_DYLIB_PATH to libonnxruntime.so' ;;
esac
[ "$setup_only" = yes ] && exit 0
export PATH=$bin:$PATH

say() { printf '%s\n' "$*"; }

# ---- who acts, and in which environment ---------------------------------------------------------------------
if [ "$kind" != tiny ] && [ -z "$env_command" ] && [[ " $settings" != *' encoding='* ]]; then
    encodes=$(envs list "$env" --format json | json 'any(known["name"] == "encoding" for known in lines[0]["settings"])') || exit $?
    [ "$encodes" = False ] || settings+="${settings:+ }encoding=full"
fi
if [ -z "$max_tokens" ]; then # a bit more than the longest right answer takes
    case " $env $settings " in
        *' data='*) max_tokens=512 ;;
        ' code '*' encoding=full '*) max_tokens=64 ;;
        *' encoding=full '*) max_tokens=32 ;;
        ' sudoku '*'size=9 '*) max_tokens=96 ;;
        ' tldr '* | ' arxiv '* | ' coop-code '*) max_tokens=256 ;;
        ' class-eval '* | ' strbuild '*) max_tokens=512 ;;
        ' math '* | ' code '* | ' write '*) max_tokens=24 ;;
        *) max_tokens=8 ;;
    esac
fi
set_flags=()
for setting in $settings; do set_flags+=(--set "$setting"); done
if [ -z "$env_command" ]; then
    known=$(envs list "$env" "${set_flags[@]}" --format json) || exit $? # it names the nearest
    agents=$(printf %s "$known" |
        json 'next((known["agents"] for known in lines[0]["workflows"] if known["name"] == argv[0]), [])' "$workflow") || exit $?
    [ -n "$agents" ] || die 2 "there is no workflow $workflow of an environment $env" 'envs list names them all'
fi
for agent in $train; do
    [[ " $agents " = *" $agent "* ]] || die 2 "--train $agent: $env/$workflow has no agent $agent" "agents: $agents"
done
declare -A method_flags=() # of stages
method_flag() { # STAGE FLAG VALUE, unless --flags has it
    [[ " ${stage_flags[$1]:-} " == *" $2"[\ =]* ]] || method_flags[$1]+=" $2 $3"
}
if [ "$method" != at-grpo ]; then # arXiv 2508.04652: the sum over tokens, one step a rollout, so that no ratio matters
    minibatches=1
    method_flag update --aggregate constant
    method_flag update --max-tokens 1
    method_flag advantage --estimator dr-grpo
fi
case $method in
    magrpo)
        method_flag rollout --joint aligned
        method_flag rollout --sampling parallel
        method_flag advantage --credit tree ;;
    magrpo-cross) method_flag rollout --joint cross ;;
esac
episode_flags=() # how episodes are played, for rollout
[ -z "$env_command" ] || episode_flags+=(--env-command "$env_command")
[ -z "$workflow" ] || episode_flags+=(--workflow "$workflow")
[ -z "$turns" ] || episode_flags+=(--turns "$turns")
from_environment() { # tasks|demo ARGUMENTS...: sets $command, which prints them
    if [ -n "$env_command" ]; then
        command=(envs "$1" --env-command "$env_command" "${@:2}")
    else
        command=(envs "$1" "$env" "${set_flags[@]}" "${@:2}")
    fi
}
leftmost_failure() { # NAMES... after a pipe, with its PIPESTATUS in $statuses
    local i=0 name
    for name in "$@"; do
        [ "${statuses[$i]}" = 0 ] || die "${statuses[$i]}" "$context: $name failed with exit code ${statuses[$i]}"
        i=$((i + 1))
    done
}
play_test_tasks() { # STEP: greedy, on a fixed part of the test split
    context="evaluation after step $1"
    from_environment tasks --split test --count "$eval_tasks"
    "${command[@]}" |
        rollout "${policy_flags[@]}" "${episode_flags[@]}" --max-tokens "$max_tokens" --greedy \
            --step "$1" --device "$device" "${dtype_flags[@]}" --quiet
    statuses=("${PIPESTATUS[@]}")
    leftmost_failure "${env_command:-envs} tasks" rollout
}
if [ -n "$evaluate" ]; then
    [ "${policies#*=}" != "$policies" ] || die 2 '--evaluate needs --policies AGENT=DIR' 'policies are played as they are'
    policy_flags=()
    for pair in $policies; do policy_flags+=(--policy "$pair"); done
    play_test_tasks "$evaluate"
    exit 0
fi

# ---- the run directory: locked, and the same values as before -----------------------------------------------
mkdir -p "$run/steps" "$run/eval" "$run/policies" || die 74 "cannot make $run"
run=$(cd "$run" && pwd) || die 74 "cannot read $run"
# The lock belongs to the open file, which the stages inherit: a stage that outlives a killed pipeline.sh keeps it.
exec 9>>"$run/lock" || die 74 "cannot write $run/lock"
python3 -c 'import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(3)'
case $? in
    0) ;;
    3) die 1 "$run is in use by another run" 'wait for it, or choose another --run' ;;
    *) die 74 "$run/lock cannot be locked, see above" ;;
esac

# ---- signals: stages run in the background, so that a signal to this script alone ends them and frees the lock -
descendants() { # PID
    local pid
    for pid in $(cat "/proc/$1/task/"*/children 2>/dev/null || pgrep -P "$1"); do
        echo "$pid"
        descendants "$pid"
    done
}
any_runs() { # PIDS...: a process that has ended has no command line, even where nobody waits for it
    local pid word
    for pid; do { IFS= read -r -d '' word <"/proc/$pid/cmdline"; } 2>/dev/null && return 0; done
    return 1
}
stop() { # CODE
    trap '' HUP INT TERM
    local pids=() job try
    for job in $running $staying; do
        kill -STOP "$job" 2>/dev/null || continue # it starts no more stages
        mapfile -t -O ${#pids[@]} pids < <(echo "$job"; descendants "$job")
    done
    if [ ${#pids[@]} -gt 0 ]; then
        kill -TERM "${pids[@]}" 2>/dev/null
        kill -CONT "${pids[@]}" 2>/dev/null
        for try in 1 2 3 4 5 6 7 8; do
            any_runs "${pids[@]}" || break
            sleep 0.1
        done
        kill -KILL "${pids[@]}" 2>/dev/null
    fi
    printf 'pipeline.sh: stopped%s\nhint: the same command goes on from there\n' "${step:+ in step $step}" >&2
    exit "$1"
}
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 143' TERM
running='' staying=''
background() { # COMMAND..., which does not hold the pipes of the stages that stay
    "$@" 7<&- 8>&- &
    running=$!
    wait "$running"
    set -- $?
    running=''
    return "$1"
}
durable() { # FILES AND FOLDERS...: on the disk, not only in its cache
    sync "$@" || die 74 "cannot write $1 to disk"
}

stages=''
for name in "${!stage_command[@]}"; do stages+="$name=${stage_command[$name]};"; done
stages=$(tr ';' '\n' <<<"$stages" | sort | tr -s '\n' ';')
stages=${stages#;}
digest_of() { # the identity of a policy that was handed in: its weights' bytes
    cat "$1"/current/*.safetensors "$1"/*.safetensors 2>/dev/null | cksum | cut -d' ' -f1
}
# The program and its ONNX Runtime, without the paths where they are found.
build=$(rollout --version --format json | json '"rollout {}\n{}".format(lines[0]["version"],
    "ONNX Runtime {version}".format(**lines[0]["onnxruntime"]) if lines[0]["onnxruntime"]["path"] else "no ONNX Runtime")') ||
    die $? 'rollout --version failed'
# Written down once and for all, so not where a library that was just there could not be read.
case "$device $build" in
    cpu*'no ONNX Runtime' | sim*'no ONNX Runtime') die 69 "rollout cannot open ONNX Runtime, ${ORT_DYLIB_PATH:-not named}" 'rollout --version says more' ;;
esac
values=()
for name in env settings workflow policies turns seed device dtype select max_tokens stages $(cut -d' ' -f1 <<<"$numbers"); do
    [ "$name" = steps ] || values+=("$name" "${!name}")
done
[ "$model" = tiny ] || values+=(model "$model")
for name in "${!stage_flags[@]}"; do values+=("flags of $name" "${stage_flags[$name]# }"); done
[ "$method" = at-grpo ] || values+=(method "$method")
[ -z "$train" ] || values+=(train "$train")
[ -z "$env_command" ] || values+=(env_command "$env_command")
case $policies in
    adapter-per-role) values+=(adapter "$adapter") ;;
    *=*) for name in $policies; do values+=("input $name" "$(digest_of "${name#*=}")"); done ;;
esac
# Values bind once there are policies made with them: a mistake in the first command is mended by the second.
python3 - "$run" "${values[@]}" build "$build" <<'PYTHON' || exit $?
import json, os, sys
run, path, values = sys.argv[1], f"{sys.argv[1]}/run.json", dict(zip(sys.argv[2::2], sys.argv[3::2]))
if os.path.exists(f"{run}/policies/done") and os.path.exists(path):
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        before = json.load(file)
    for name in [*before, *values]:
        if before.get(name) != values.get(name):
            old, new = (json.dumps({name: side[name]})[1:-1] if name in side else f"no {name}" for side in (before, values))
            print(f"pipeline.sh: {run} was started with {old} and not {new}\n"
                  "hint: resume with the same values (--steps may grow), or choose another --run", file=sys.stderr)
            sys.exit(2)
else:
    with open(f"{path}.tmp", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(json.dumps(values, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.tmp", path)
PYTHON

# ---- which policy plays whom --------------------------------------------------------------------------------
declare -A folder=() # agent -> policy directory
declare -A source=() # policy name -> what it is made from
case $policies in
    shared) for agent in $agents; do folder[$agent]=$run/policies/shared; done ;;
    per-role | adapter-per-role) for agent in $agents; do folder[$agent]=$run/policies/$agent; done ;;
    *)
        for pair in $policies; do
            agent=${pair%%=*}
            [[ " $agents " = *" $agent "* ]] || die 2 "--policies $pair: $env/$workflow has no agent $agent" "agents: $agents"
            name=$agent # agents that name one directory share one policy
            for other in "${!source[@]}"; do [ "${source[$other]}" = "${pair#*=}" ] && name=$other; done
            source[$name]=${pair#*=}
            folder[$agent]=$run/policies/$name
        done
        for agent in $agents; do [ -n "${folder[$agent]:-}" ] || die 2 "--policies: nobody plays $agent" "add --policies $agent=DIR"; done ;;
esac
policy_flags=()
for agent in $agents; do policy_flags+=(--policy "$agent=${folder[$agent]}"); done
train_flags=()
for agent in ${train:-$agents}; do train_flags+=(--policy "$agent=${folder[$agent]}"); done
mapfile -t folders < <(printf '%s\n' "${folder[@]}" | sort -u)

# ---- warm-up: supervised, on demonstrations that know the action format and have a bad habit to lose ----------
warm_up() {
    context='warm-up'
    local other=()
    [ "$warmup_optimizer" != muon ] || other=(--lr-other "$warmup_lr_other")
    from_environment demo ${workflow:+--workflow "$workflow"} --count $((warmup * warmup_tasks)) --seed "$seed"
    "${command[@]}" |
        policy encode --policy "$run/warmup/policy" |
        update --policy "$run/warmup/policy" --objective nll --optimizer "$warmup_optimizer" --lr "$warmup_lr" \
            "${other[@]}" --schedule cosine --warmup "$warmup_lr_warmup" --minibatches "$warmup" \
            --seed "$seed" >"$run/warmup/metrics.jsonl" # on the CPU: Muon has no kernels
    statuses=("${PIPESTATUS[@]}")
    leftmost_failure "${env_command:-envs} demo" 'policy encode' update
}
# What cannot be seen need not be missing: policies are made anew only where no step rests on them.
commits() { (cd "$run/steps" && find . -mindepth 2 -maxdepth 2 -name done | sort); }
committed=$(commits) || die 74 "cannot read $run/steps"
if [ ! -f "$run/policies/done" ]; then
    [ -z "$committed" ] || die 74 "$run/policies/done cannot be read, and there are committed steps" \
        'if the file is gone, restore it: it is empty'
    find "$run/policies" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
    rm -rf "$run/warmup"
    if [ ${#source[@]} -gt 0 ]; then
        for name in "${!source[@]}"; do policy init "$run/policies/$name" --from "${source[$name]}" || exit $?; done
    else
        mkdir -p "$run/warmup"
        case $model in
            tiny) begin=(--preset tiny --seed "$seed") ;;
            */* | .*) begin=(--from "$model") ;;
            *) begin=(--preset "$model") ;;
        esac
        policy init "$run/warmup/policy" "${begin[@]}" || exit $?
        if [ "$warmup" -gt 0 ]; then
            say "warm-up: $warmup optimizer steps on imperfect demonstrations"
            background warm_up || exit $?
        fi
        if [ "$policies" = adapter-per-role ]; then
            # Beside the adapters, so that they find it wherever the run is moved to.
            policy init "$run/policies/base" --from "$run/warmup/policy" || exit $?
            for directory in "${folders[@]}"; do
                policy init "$directory" --from "$run/policies/base" --adapter "$adapter" --seed "$seed" || exit $?
            done
        else
            for directory in "${folders[@]}"; do policy init "$directory" --from "$run/warmup/policy" || exit $?; done
        fi
    fi
    : >"$run/policies/done.tmp" && mv "$run/policies/done.tmp" "$run/policies/done" || die 74 "cannot write in $run/policies"
    durable "$run/policies/done" "$run/policies" "$run"
fi

# ---- evaluation ---------------------------------------------------------------------------------------------
evaluate() { # STEP
    local file rate
    file=$run/eval/step-$(printf %06d "$1").jsonl
    if [ ! -f "$file" ]; then
        background play_test_tasks "$1" >"$file.tmp" || exit $?
        durable "$file.tmp"
        mv "$file.tmp" "$file" || die 74 "cannot write $file"
        durable "$run/eval"
    fi
    rate=$(report evaluate --format line --quiet "$file") ||
        die $? "$file is no whole evaluation" 'remove it, and the same command plays it again'
    say "step $1: success on $eval_tasks test tasks $rate"
    [ "$keep_best" = no ] || keep_if_best "$1" "$file"
    page
}
keep_if_best() { # STEP FILE: `best` is a link that moves once its policies are there; of equals the first stays
    local now before=-1 new folder
    new=best-$(printf %06d "$1")
    now=$(report evaluate --format json --quiet "$2" | json 'sum(line["success"] for line in lines) / len(lines)') || return 0
    [ ! -e "$run/best/success" ] || before=$(cat "$run/best/success")
    awk -v now="$now" -v before="$before" 'BEGIN {exit !(now > before)}' || return 0
    rm -rf "${run:?}/$new"
    for folder in "${folders[@]}"; do policy init "$run/$new/${folder##*/}" --from "$folder" --quiet >/dev/null || exit $?; done
    echo "$now" >"$run/$new/success" && ln -sfn "$new" "$run/best" || die 74 "cannot write $run/best"
    find "$run" -mindepth 1 -maxdepth 1 -name 'best-*' ! -name "$new" -exec rm -rf {} +
}
page() { # made from the files of the run: if it fails, nothing is lost
    drawn=$SECONDS
    report "$run" --html "$run/report.html" ${tensorboard:+--tensorboard "$tensorboard"} --quiet ||
        { rm -f "$run/report.html.tmp"; say "$run/report.html was not written, see above"; }
}
rate() { # FILE: successes over episodes
    report evaluate --format line --allow-incomplete --quiet "$1" 2>/dev/null | cut -d , -f 1
}
flat() { # FILE: how many of the groups had nothing to compare
    local line flat=0 groups=0
    while read -r line; do
        [[ $line =~ \"flat_groups\":\ *([0-9]+) ]] && flat=$((flat + BASH_REMATCH[1]))
        [[ $line =~ \"groups\":\ *([0-9]+) ]] && groups=$((groups + BASH_REMATCH[1]))
    done < <(grep '"type": *"metrics"' "$1")
    echo "$flat of $groups groups flat"
}

# ---- one training step --------------------------------------------------------------------------------------
stage() { # NAME COMMAND...: the stage itself with its --flags, or the command of --stage
    local name=$1
    shift
    if [ -n "${stage_command[$name]:-}" ]; then exec bash -c "${stage_command[$name]}"; fi
    # shellcheck disable=SC2086 # one flag a word
    exec "$@" ${method_flags[$name]:-} ${stage_flags[$name]:-}
}
draw() { # STEP
    from_environment tasks --split train --count "$tasks" --seed $((seed * 1000000 + $1))
    stage tasks "${command[@]}"
}
play() { # STEP FLAG...
    stage rollout rollout "${policy_flags[@]}" "${episode_flags[@]}" --branches "$branches" --select "$select" \
        --temperature "$temperature" --max-tokens "$max_tokens" --seed "$seed" --step "$1" --device "$device" \
        "${dtype_flags[@]}" --quiet "${@:2}"
}
learn() { # FLAG...
    stage update update "${train_flags[@]}" --optimizer "$optimizer" --lr "$lr" --warmup "$lr_warmup" --betas "$betas" \
        --weight-decay 0 --minibatches "$minibatches" --seed "$seed" --device "$device" "${dtype_flags[@]}" --quiet "$@"
}
play_and_update() { # STEP DIRECTORY
    context="step $1"
    export RUN=$run STEP=$1
    (draw "$1") |
        tee "$2/tasks.jsonl" |
        (play "$1") |
        (stage group group --quiet) |
        (stage advantage advantage --quiet) |
        tee "$2/samples.jsonl" |
        (learn) >"$2/metrics.jsonl"
    statuses=("${PIPESTATUS[@]}")
    leftmost_failure tasks 'tee tasks.jsonl' rollout group advantage 'tee samples.jsonl' update
}

# ---- the same with stages that stay: the tasks of one step after another go into one pipe ----------------------
tee_steps() { # STEP NAME [last]: writes each part of stdin into the folder of its step, and to stdout all or the steps that are ok
    python3 -c 'import json, os, sys
run, step, name, last = sys.argv[1], int(sys.argv[2]), sys.argv[3], len(sys.argv) > 4
output, file = sys.stdout.buffer, None
try:
    for line in sys.stdin.buffer:
        file = file or open(f"{run}/steps/{step:06d}/{name}", "wb")
        file.write(line)
        if not last:
            output.write(line)
        if line.startswith(b"{\"type\":\"end\""):
            file.close()
            file = None
            if last and json.loads(line)["ok"]:
                output.write(b"%d\n" % step)
            output.flush()
            step += 1
except BrokenPipeError: # whoever went away says why
    os._exit(0)
except OSError as error:
    sys.exit(f"pipeline.sh: {error}")' "$run" "$@"
}
stay() { # STEP FOLDER: plays and learns from what comes through the pipe tasks, and says in the pipe updates which steps are done
    local folders
    (play "$1" --resident) <"$2/tasks" |
        (stage group group --quiet --resident) |
        (stage advantage advantage --quiet --resident) |
        tee_steps "$1" samples.jsonl |
        (learn --resident) |
        tee_steps "$1" metrics.jsonl last >"$2/updates"
    statuses=("${PIPESTATUS[@]}")
    folders=("$run"/steps/*)
    context="step $((10#${folders[-1]##*/}))"
    leftmost_failure rollout group advantage 'tee samples.jsonl' update 'tee metrics.jsonl'
}
draw_file() { # STEP DIRECTORY
    context="step $1"
    export RUN=$run STEP=$1
    (draw "$1") >"$2/tasks.jsonl"
    statuses=($?)
    leftmost_failure tasks
    # A part ends with its end: the stages would wait for another, or take what follows it for the next step.
    [ -z "${stage_command[tasks]:-}$env_command" ] ||
        json '[line["type"] for line in lines].count("end") == 1 and lines[-1]["type"] == "end" or sys.exit(1)' \
            <"$2/tasks.jsonl" >/dev/null ||
        die 65 "step $1: the stream of tasks does not end with its only \`end\` line" 'or leave out --resident'
}
pass_on() { # STEP DIRECTORY
    local folder updated
    if [ -z "$staying" ]; then
        folder=$(mktemp -d) && mkfifo "$folder/tasks" "$folder/updates" || die 74 "cannot make $folder/tasks"
        RUN=$run stay "$1" "$folder" &
        staying=$!
        trap end_stages EXIT
        exec 8>"$folder/tasks" 7<"$folder/updates"
        rm -r "$folder"
    fi
    background draw_file "$@" || exit $?
    cat "$2/tasks.jsonl" >&8 2>/dev/null # where the stages are gone, the next line says so
    if ! read -r -u 7 updated || [ "$updated" != "$1" ]; then
        end_stages || exit $?
        die 1 "step $1: the stages ended before it was done"
    fi
}
end_stages() { # nothing more comes for them; the exit code of the leftmost that failed
    exec 8>&-
    [ -z "$staying" ] || wait "$staying"
    set -- $?
    staying=''
    return "$1"
}
trained_versions() {
    local agent
    for agent in ${train:-$agents}; do readlink "${folder[$agent]}/current"; done
}
train() { # STEP
    local directory=$run/steps/$(printf %06d "$1") before
    mkdir -p "$directory" || die 74 "cannot make $directory"
    before=$(trained_versions)
    if [ "$resident" = yes ]; then
        pass_on "$1" "$directory"
    else
        background play_and_update "$1" "$directory" || exit $?
    fi
    [ "$(trained_versions)" != "$before" ] ||
        die 1 "step $1: no policy has a new version" 'update ended well and published nothing: see the command of --stage update'
    commit "$1" "$directory"
    local groups of all
    groups=$(flat "$directory/metrics.jsonl")
    say "step $1: success in training $(rate "$directory/samples.jsonl" || echo none), $groups"
    [ -z "$tensorboard" ] && [ $((SECONDS - drawn)) -lt 10 ] || page # what a reader has open is not far behind
    read -r groups of all _ <<<"$groups"
    if [ "$groups" = "$all" ] && [ "$all" != 0 ]; then flat_steps=$((flat_steps + 1)); else flat_steps=0; fi
    [ "$flat_steps" -lt 3 ] ||
        die 1 "steps $(($1 - 2)) to $1: all groups are flat: the candidates of a group earn the same, so there is nothing to learn from" \
            'where all fail, an easier task (--set level=1), more --max-tokens, --branches or --temperature, or a --warmup; where all succeed, a harder task'
}
version() { # POLICY DIRECTORY: the version that `current` names, such as 12:9f2c41d0
    [[ $(<"$1/current/version.json") =~ \"version\":\ *\"([^\"]+) ]] 2>/dev/null && echo "${BASH_REMATCH[1]}"
}
commit() { # STEP DIRECTORY: the step counts once `done` is there, which names every policy's version
    local folder versions='' number
    for folder in "${folders[@]}"; do
        number=$(version "$folder") && [ -n "$number" ] || die 74 "cannot read $folder/current/version.json"
        versions+=",\"${folder##*/}\":\"$number\""
    done
    printf '{"step":%d,"policies":{%s}}\n' "$1" "${versions#,}" >"$2/done.tmp" || die 74 "cannot write $2/done"
    durable "$2"/*.* "$2" "$run/steps"
    mv "$2/done.tmp" "$2/done" || die 74 "cannot write $2/done"
    durable "$2"
}
go_back() { # DONE: takes back versions that were published but not committed, so that their step is repeated
    local pairs pair name number
    pairs=$(json '[f"{name}:{version}" for name, version in lines[0]["policies"].items()]' <"$1") && [ -n "$pairs" ] ||
        die 74 "cannot read $1"
    for pair in $pairs; do
        name=${pair%%:*} number=${pair#*:}
        number=step-$(printf %06d "${number%%:*}")
        [ -d "$run/policies/$name/$number" ] || die 65 "$1 names $number of $name, which is not there" 'choose another --run'
        [ "$(readlink "$run/policies/$name/current")" = "$number" ] ||
            ln -sfn "$number" "$run/policies/$name/current" || die 74 "cannot write $run/policies/$name/current"
    done
}

# ---- the loop -----------------------------------------------------------------------------------------------
if [ -z "$committed" ]; then
    mkdir -p "$run/steps/000000" || die 74 "cannot make $run/steps/000000"
    commit 0 "$run/steps/000000"
    committed=$(commits) || die 74 "cannot read $run/steps"
fi
evaluate_if_due() { # STEP
    [ "$eval_every" -gt 0 ] || return 0
    if [ $(($1 % eval_every)) = 0 ] || [ "$1" = "$steps" ]; then evaluate "$1"; fi
}
done_steps=0 flat_steps=0 drawn=$SECONDS
while [ -f "$run/steps/$(printf %06d $((done_steps + 1)))/done" ]; do done_steps=$((done_steps + 1)); done
last=${committed##*./} last=${last%/done}
[ $((10#$last)) = "$done_steps" ] ||
    die 65 "$run/steps/$(printf %06d $((done_steps + 1)))/done is missing, but step $((10#$last)) is committed" \
        'restore that file (its versions are long gone), or choose another --run'
go_back "$run/steps/$(printf %06d "$done_steps")/done"
evaluate_if_due "$done_steps"
for ((step = done_steps + 1; step <= steps; step++)); do
    train "$step"
    evaluate_if_due "$step"
done
end_stages || exit $?
[ "$eval_every" -gt 0 ] || page
say "the run is in $run, its report in $run/report.html"
exit
}
