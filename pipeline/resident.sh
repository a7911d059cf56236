# shellcheck shell=bash disable=SC2034,SC2154
# Steps by stages that stay (--resident): the tasks of one step after another go into one pipe.

tee_steps() { # STEP NAME [last]: writes each part of stdin into the folder of its step
    python3 "$root/pipeline/tee_steps.py" "$run" "$@"
}
stay() { # STEP FOLDER: plays and learns from what comes through the pipe tasks, and says in the pipe updates which steps are done
    local folders
    (play "$1" --resident) <"$2/tasks" |
        (stage group group --quiet --resident) |
        (stage advantage advantage --quiet --resident) |
        tee_steps "$1" samples.jsonl |
        (learn --resident --save-every "$save_every") |
        tee_steps "$1" metrics.jsonl last >"$2/updates"
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
drawn_ahead='' # the step whose tasks are in tasks.next
draw_ahead() { # STEP: while the one before is played
    [ "$1" -le "$steps" ] && is_own && background draw_file "$1" "$run/tasks.next" && drawn_ahead=$1
}
draw_once() { # STEP DIRECTORY
    if [ "$drawn_ahead" = "$1" ]; then
        mv "$run/tasks.next" "$2/tasks.jsonl"
    else
        background draw_file "$1" "$2/tasks.jsonl"
    fi
}
start_stages() { # STEP: the first that they take
    local folder
    folder=$(mktemp -d) && mkfifo "$folder/tasks" "$folder/updates" || die 74 "cannot make $folder/tasks"
    RUN=$run stay "$1" "$folder" &
    staying=$!
    trap 'end_stages && settle' EXIT
    exec 8>"$folder/tasks" 7<"$folder/updates"
    rm -r "$folder"
}
ahead='' # the step whose tasks, but not their `end`, are in the pipe
play_ahead() { # STEP: begins it, while the one before is accounted for. It cannot end, nor anything be published
    local directory
    # A command of one's own may look at what is committed; an evaluation is of the versions that are there.
    if [ "$1" -gt "$steps" ] || is_due $(($1 - 1)) || ! is_own; then return; fi
    printf -v directory '%s/steps/%06d' "$run" "$1"
    mkdir -p "$directory" || die 74 "cannot make $directory"
    draw_once "$1" "$directory" || return # again, with its exit code, when its time has come
    sed '$d' "$directory/tasks.jsonl" >&8 2>/dev/null # where the stages are gone, pass_on says so
    ahead=$1
}
pass_on() { # STEP DIRECTORY
    local updated
    [ -n "$staying" ] || start_stages "$1"
    if [ "$ahead" = "$1" ]; then
        tail -n 1 "$2/tasks.jsonl" >&8 2>/dev/null
    else
        draw_once "$@" || exit $?
        cat "$2/tasks.jsonl" >&8 2>/dev/null # where the stages are gone, the next line says so
    fi
    draw_ahead $(($1 + 1))
    if ! read -r -u 7 updated || [ "$updated" != "$1" ]; then
        end_stages || exit $?
        die 1 "step $1: the stages ended before it was done"
    fi
}
end_stages() { # nothing more comes for them; the exit code of the leftmost that failed
    local code=0
    exec 8>&-
    # Where one failed, no state was saved: what waits for it does not count, and is repeated.
    [ -z "$staying" ] || wait "$staying" || { code=$? committing=(); }
    staying=''
    return "$code"
}

part_read=resident
