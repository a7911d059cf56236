#!/usr/bin/env bash
# pipeline.sh: the training loop.
#
# A step is one pipe; each stage is a program that can be run, read and replaced on its own:
#
#   envs tasks | rollout | group | advantage | update
#
# The run directory holds every stream of every step, and in stages/ each stage's command line. A step is committed by
# steps/NNNNNN/done, written last and by rename: kill anything at any time, and the same command repeats at most the step
# in flight and ends with the same bytes (the `timing` objects aside). With --resident one pipe takes all steps, and
# leaves the same files. `troupe-pipeline` reads the flags, keeps the run directory, and says which pipe is next.
{ # Up to its end before any of it runs: an error while this file is read must not pass for its end.
set -uo pipefail
die() { # CODE MESSAGE HINT
    printf 'pipeline.sh: %s\nhint: %s\n' "$2" "$3" >&2
    exit "$1"
}
[ "${BASH_VERSINFO[0]}" -ge 4 ] || die 69 "bash $BASH_VERSION is too old" 'bash 4.4 or newer runs it (macOS: brew install bash)'
export ORT_DISABLE_TELEMETRY=1 LC_ALL=C

stage() { # NAME: a program, with its flags
    local file=$STAGES/$1
    shift
    . "$file"
}

pipe() { # NAME STEP
    local step eval
    printf -v step '%s/steps/%06d' "$RUN" "$2"
    printf -v eval '%s/eval/step-%06d.jsonl.tmp' "$RUN" "$2"
    export STEP=$2
    case $1 in
        warm-up)
            stage demo | stage encode | stage warm-up >"$RUN/warmup/metrics.jsonl" ;;
        step)
            stage tasks | tee "$step/tasks.jsonl" | stage rollout | stage group | stage advantage |
                tee "$step/samples.jsonl" | stage update >"$step/metrics.jsonl" ;;
        judged-step) # --stage reward=COMMAND
            stage tasks | tee "$step/tasks.jsonl" | stage rollout | stage reward | stage group | stage advantage |
                tee "$step/samples.jsonl" | stage update >"$step/metrics.jsonl" ;;
        resident) # the tasks of one step after another come, and go on when the step is committed
            stage rollout | stage group | stage advantage | stage keep | stage update >"$STAGES/updates" ;;
        evaluation)
            stage test-tasks | stage test-rollout >"$eval" ;;
        printed-evaluation)
            stage test-tasks | stage test-rollout ;;
    esac
    codes=${PIPESTATUS[*]}
}

case ${1:-} in
    loop) # until the last step: `troupe-pipeline` names a pipe, and by its exit codes commits the step or ends the run
        while read -r name step; do
            pipe "$name" "$step" </dev/null
            echo "$codes"
        done
        exit ;;
    pipe)
        pipe "$2" "$3"
        echo "$codes" >"$STAGES/codes"
        exit ;;
esac

TROUPE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export TROUPE_ROOT TROUPE_CALLED=${TROUPE_CALLED:-./pipeline.sh}
if [ -z "${TROUPE_BIN:-}" ]; then # else it names a folder with built programs: a package's, a test's, or another machine's
    command -v cargo >/dev/null || die 69 'cargo is not installed' 'install Rust (rustup), or point TROUPE_BIN at built programs'
    export TROUPE_BIN=$TROUPE_ROOT/target/release TROUPE_CHECKOUT=$TROUPE_ROOT
    [ -x "$TROUPE_BIN/troupe-pipeline" ] || printf 'pipeline.sh: building the programs, once: minutes, with Rust %s or newer\n' \
        "$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$TROUPE_ROOT/Cargo.toml")" >&2
    # Cargo prints the programs that it rebuilds after a change, and nothing otherwise.
    (cd "$TROUPE_ROOT" && cargo build --release --workspace --bins --locked 2>&1 | sed -u '/^ *Finished /d' >&2) ||
        die 1 'the build failed' 'see the message above'
fi
[ -x "$TROUPE_BIN/troupe-pipeline" ] || die 69 "$TROUPE_BIN has no program troupe-pipeline" 'cargo build --release --workspace --bins builds all'
exec "$TROUPE_BIN/troupe-pipeline" "$@"
}
