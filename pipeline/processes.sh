# shellcheck shell=bash disable=SC2034,SC2154
# Messages, exit codes and signals. Stages run in the background, so that a signal to pipeline.sh alone ends them and frees
# the lock of the run.

export TROUPE_CALLED=${TROUPE_CALLED:-./pipeline.sh} # what a user types: of a package it is `troupe pipeline`
quiet=(--quiet) # of stages that take long. On a terminal they say how far they are, one at a time: `update` begins where `rollout` ends
[ ! -t 2 ] || quiet=()
say() { # a stage that stays may have begun a line there
    [ ! -t 1 ] || [ ! -t 2 ] || printf '\r\033[K'
    printf '%s\n' "$*"
}
die() { # CODE MESSAGE [HINT]
    local hint=${3:-}
    [ -n "$hint" ] || case $1 in
        2) hint='./pipeline.sh --help says what the flags take' ;;
        74) hint='see that there is room on that disk (df -h), and who may write there (ls -l)' ;;
    esac
    printf 'pipeline.sh: %s\n' "$2" >&2
    [ -z "$hint" ] || printf 'hint: %s\n' "${hint//.\/pipeline.sh/$TROUPE_CALLED}" >&2
    exit "$1"
}
python3=python3
# Isolated (-I), so that a json.py in the working directory shadows nothing, and without site packages (-S), which are slow to load.
# Ctrl-C needs no traceback: it is soon done, and pipeline.sh stops after it.
python() { (trap '' INT; exec "$python3" -IS "$@"); }
json() { # EXPRESSION ARGUMENTS...: a Python expression over `lines`, the JSON values on stdin, if there are any, and `argv`
    python -c 'import json, sys
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
leftmost_failure() { # NAMES... after a pipe, with its PIPESTATUS in $statuses
    local i=0 name
    for name in "$@"; do
        [ "${statuses[$i]}" = 0 ] || die "${statuses[$i]}" "$context: $name failed with exit code ${statuses[$i]}"
        i=$((i + 1))
    done
}
durable() { # FILES AND FOLDERS...: on the disk, not only in its cache
    sync "$@" || die 74 "cannot write $1 to disk"
}
lock_run() { # the lock belongs to the open file, which the stages inherit: one that outlives a killed pipeline.sh keeps it
    exec 9>>"$run/lock" || die 74 "cannot write $run/lock"
    python -c 'import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(3)'
    case $? in
        0) ;;
        3) die 1 "$run is in use by another run" 'wait for it, or choose another --run' ;;
        *) die 74 "$run/lock cannot be locked, see above" ;;
    esac
}

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
    for job in $running $staying $drawing; do
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
    printf 'pipeline.sh: stopped%s\nhint: the same command goes on from there%s\n' "${step:+ in step $step}" \
        "${resumable:+, and so does $TROUPE_CALLED --resume $resumable}" >&2
    exit "$1"
}
running='' staying='' drawing='' resumable='' # the run as a word, once it can be resumed
heed_signals() {
    trap 'stop 129' HUP
    trap 'stop 130' INT
    trap 'stop 143' TERM
}
background() { # COMMAND..., which does not hold the pipes of the stages that stay
    "$@" 7<&- 8>&- &
    running=$!
    wait "$running"
    set -- $?
    running=''
    return "$1"
}

part_read=processes
