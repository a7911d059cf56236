# shellcheck shell=bash disable=SC2034,SC2154
# Steps by stages that stay (--resident): the tasks of one step after another go into one pipe.

tee_steps() { # STEP NAME [TASKS]: writes each part of stdin into the folder of its step
    "$python3" -IS "$root/pipeline/tee_steps.py" "$run" "$@"
}
stay() { # STEP FOLDER: plays and learns from what comes through the pipe tasks, and says in the pipe updates which steps are done
    local folders
    (play "$1" --resident) <"$2/tasks" |
        (stage group group --quiet --resident) |
        (stage advantage advantage --quiet --resident) |
        tee_steps "$1" samples.jsonl |
        (learn --resident --save-every "$save_every") |
        tee_steps "$1" metrics.jsonl "$2/tasks" >"$2/updates"
    statuses=("${PIPESTATUS[@]}")
    folders=("$run"/steps/*)
    context="step $((10#${folders[-1]##*/}))"
    leftmost_failure rollout group advantage 'tee samples.jsonl' update 'tee metrics.jsonl'
}
draw_file() { # STEP FILE
    context="step $1"
    export RUN=$run STEP=$1
    (draw "$1") >"$2"
    statuses=($?)
    leftmost_failure tasks
    # A part ends with its end: the stages would wait for another, or take what follows it for the next step.
    is_own || json '[line["type"] for line in lines].count("end") == 1 and lines[-1]["type"] == "end" or sys.exit(1)' <"$2" >/dev/null ||
        die 65 "step $1: the stream of tasks does not end with its only \`end\` line" 'or leave out --resident'
}
is_own() { [ -z "${stage_command[tasks]:-}$env_command" ]; } # whether tasks are this project's own, which depend on nothing but the step
next_tasks='' # where the next step's tasks are, if they are drawn
draw_ahead() { # STEP: while the one before is played, which tee_steps.py lets it follow at once
    [ "$1" -le "$steps" ] && is_own && background draw_file "$1" "$run/tasks.drawn" && next_tasks=$run/tasks.drawn || return 0
    # An evaluation is of the versions that are there; so is the advice after three flat steps; a command of one's own may publish none.
    if is_due $(($1 - 1)) || [ "$flat_steps" -gt 1 ] || [ -n "${stage_command[update]:-}" ]; then return; fi
    mv "$next_tasks" "$run/tasks.next" && next_tasks=$run/tasks.next
}
draw_once() { # STEP DIRECTORY
    if [ -n "$next_tasks" ]; then
        mv "$next_tasks" "$2/tasks.jsonl" && next_tasks=''
    else
        background draw_file "$1" "$2/tasks.jsonl"
    fi
}
pipes='' # the folder of the pipes of the stages that stay
start_stages() { # STEP: the first that they take
    pipes=$(mktemp -d) && mkfifo "$pipes/tasks" "$pipes/updates" || die 74 "cannot make $pipes/tasks"
    RUN=$run stay "$1" "$pipes" &
    staying=$!
    trap 'end_stages && settle' EXIT
    exec 8>"$pipes/tasks" 7<"$pipes/updates"
}
is_ahead='' # whether the tasks of the next step, but not their `end`, are in the pipe
pass_end() { # STEP: of a step whose tasks went ahead, now that the one before is accounted for
    [ -n "$is_ahead" ] || return 0
    next_tasks=''
    tail -n 1 "$run/steps/$(printf %06d "$1")/tasks.jsonl" >&8 2>/dev/null # as below
}
pass_on() { # STEP DIRECTORY
    local updated
    [ -n "$staying" ] || start_stages "$1"
    if [ -z "$is_ahead" ]; then
        draw_once "$@" || exit $?
        cat "$2/tasks.jsonl" >&8 2>/dev/null # where the stages are gone, what follows says so
    fi
    draw_ahead $(($1 + 1))
    if ! read -r -u 7 updated is_ahead || [ "$updated" != "$1" ]; then
        end_stages || exit $?
        die 1 "step $1: the stages ended before it was done"
    fi
}
end_stages() { # nothing more comes for them; the exit code of the leftmost that failed
    local code=0
    exec 8>&-
    # Where one failed, no state was saved: what waits for it does not count, and is repeated.
    [ -z "$staying" ] || wait "$staying" || { code=$? committing=(); }
    rm -rf "$pipes"
    staying=''
    return "$code"
}

part_read=resident
