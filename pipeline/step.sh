# shellcheck shell=bash disable=SC2034,SC2154
# One training step: a pipe of the five stages, its streams kept, and a commit.

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
        --weight-decay 0 --minibatches "$minibatches" "${update_flags[@]}" --seed "$seed" --device "$device" "${dtype_flags[@]}" --quiet "$@"
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
flat_steps=0 # in a row
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

part_read=step
