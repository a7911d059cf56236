# shellcheck shell=bash disable=SC2034,SC2154
# One training step: a pipe of the five stages, and of a sixth that judges if there is one, its streams kept, and a commit.

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
player=(rollout) # the program, and what starts it
play() { # STEP FLAG...
    stage rollout "${player[@]}" "${policy_flags[@]}" "${episode_flags[@]}" --branches "$branches" --select "$select" \
        --temperature "$temperature" --max-tokens "$max_tokens" --seed "$seed" --step "$1" --device "$device" \
        "${dtype_flags[@]}" "${quiet[@]}" "${@:2}"
}
judge_and_group() { # the judge is a process only where there is one
    [ -n "${stage_command[reward]:-}" ] || stage group group --quiet
    (stage reward) | (stage group group --quiet)
    statuses=("${PIPESTATUS[@]}")
    leftmost_failure reward group
}
learn() { # FLAG...
    stage update "${learner[@]}" "${train_flags[@]}" --optimizer "$optimizer" --lr "$lr" --warmup "$lr_warmup" --betas "$betas" \
        --weight-decay 0 --minibatches "$minibatches" "${update_flags[@]}" --seed "$seed" --device "$device" "${dtype_flags[@]}" "${quiet[@]}" "$@"
}
play_and_update() { # STEP DIRECTORY
    context="step $1"
    export RUN=$run STEP=$1
    forget_shards "$2"
    if [ "$shards" -gt 1 ]; then
        play_shards "$@"
        cat "$2"/shard-*-of-"$shards".jsonl |
            (judge_and_group) |
            (stage advantage advantage --quiet) |
            tee "$2/samples.jsonl" |
            (learn) >"$2/metrics.jsonl"
        statuses=("${PIPESTATUS[@]}")
        leftmost_failure 'cat shards' group advantage 'tee samples.jsonl' update
        rm "$2"/shard-* || die 74 "cannot remove $2/shard-*"
        return
    fi
    (draw "$1") |
        tee "$2/tasks.jsonl" |
        (play "$1") |
        (judge_and_group) |
        (stage advantage advantage --quiet) |
        tee "$2/samples.jsonl" |
        (learn) >"$2/metrics.jsonl"
    statuses=("${PIPESTATUS[@]}")
    leftmost_failure tasks 'tee tasks.jsonl' rollout group advantage 'tee samples.jsonl' update
}
rate() { # FILE: successes over episodes, from the `episode` lines alone: samples are most of the file
    grep -E '"type": *"episode"' "$1" | report evaluate --format line --allow-incomplete --quiet 2>/dev/null | cut -d , -f 1
}
flat_steps=0 # in a row
count_flat() { # FILE: sets $flat: how many of the groups had nothing to compare
    local line empty=0 groups=0
    while read -r line; do
        [[ $line =~ \"type\":\ *\"metrics\" ]] || continue
        [[ $line =~ \"flat_groups\":\ *([0-9]+) ]] && empty=$((empty + BASH_REMATCH[1]))
        [[ $line =~ \"groups\":\ *([0-9]+) ]] && groups=$((groups + BASH_REMATCH[1]))
    done <"$1"
    flat="$empty of $groups groups flat"
    if [ "$empty" = "$groups" ] && [ "$groups" != 0 ]; then flat_steps=$((flat_steps + 1)); else flat_steps=0; fi
}
compress_step() { # DIRECTORY: what nobody reads from step to step
    local name files=()
    [ "$compress" = yes ] || return 0
    for name in samples tasks; do [ ! -f "$1/$name.jsonl" ] || files+=("$1/$name.jsonl"); done
    [ ${#files[@]} = 0 ] || report compress --quiet "${files[@]}" || exit $?
}
train() { # STEP
    local directory before flat
    printf -v directory '%s/steps/%06d' "$run" "$1"
    [ -d "$directory" ] || mkdir -p "$directory" || die 74 "cannot make $directory"
    [ -n "$is_ahead" ] || read_versions # a step that went ahead may be done by now
    before=$versions
    if [ "$resident" = yes ]; then
        pass_on "$1" "$directory"
    else
        background play_and_update "$1" "$directory" || exit $?
    fi
    read_versions
    [ "$versions" != "$before" ] || grep -q '"skipped": *true' "$directory/metrics.jsonl" ||
        die 1 "step $1: no policy has a new version" 'update ended well and published nothing: see the command of --stage update'
    count_flat "$directory/metrics.jsonl"
    commit "$1" "$directory"
    pass_end $(($1 + 1))
    say "step $1: success in training $(rate "$directory/samples.jsonl" || echo none), $flat"
    compress_step "$directory"
    # Events are appended: by one process at a time, and for each step. One is drawn beside the last step, so that the last page has little to read.
    if [ -n "$tensorboard" ]; then page; elif [ $((SECONDS - drawn)) -ge 10 ] || [ $(($1 + 1)) = "$steps" ]; then page_beside; fi
}
stop_if_flat() { # STEP
    [ "$flat_steps" -lt 3 ] ||
        die 1 "steps $(($1 - 2)) to $1: all groups are flat: the candidates of a group earn the same, so there is nothing to learn from" \
            'where all fail, an easier task (--set level=1), more --max-tokens, --branches or --temperature, or a --warmup; where all succeed, a harder task'
}

part_read=step
