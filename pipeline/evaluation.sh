# shellcheck shell=bash disable=SC2034,SC2154
# Success on the test tasks: evaluations, the best policies, and the page that shows the run.

play_test_tasks() { # STEP: greedy, on a fixed part of the test split
    context="evaluation after step $1"
    from_environment tasks --split test --count "$eval_tasks"
    "${command[@]}" |
        rollout "${policy_flags[@]}" "${episode_flags[@]}" --max-tokens "$max_tokens" --greedy \
            --step "$1" --device "$device" "${dtype_flags[@]}" "${quiet[@]}"
    statuses=("${PIPESTATUS[@]}")
    leftmost_failure "${env_command:-envs} tasks" rollout
}
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
drawn=$SECONDS # when the page was
page() { # made from the files of the run: if it fails, nothing is lost
    [ -z "$drawing" ] || wait "$drawing"
    drawing='' drawn=$SECONDS
    draw_page
}
page_beside() { # in the background, one at a time, without the pipes of stages that stay and the lock of the run
    if [ -n "$drawing" ] && kill -0 "$drawing" 2>/dev/null; then return; fi
    drawn=$SECONDS
    draw_page 7<&- 8>&- 9>&- &
    drawing=$!
}
draw_page() {
    report "$run" --html "$run/report.html" ${tensorboard:+--tensorboard "$tensorboard"} --quiet ||
        { rm -f "$run/report.html.tmp"; say "$run/report.html was not written, see above"; }
}
is_due() { # STEP: whether it ends with an evaluation; the last step does, also of a run that stops because all groups are flat
    [ "$eval_every" -gt 0 ] && { [ $(($1 % eval_every)) = 0 ] || [ "$1" = "$steps" ] || [ "$flat_steps" -ge 3 ]; }
}
evaluate_if_due() { # STEP
    if is_due "$1"; then evaluate "$1"; fi
}
evaluate_only() { # --evaluate: a stream, and no run
    local pair
    [ "${policies#*=}" != "$policies" ] || die 2 '--evaluate needs --policies AGENT=DIR' 'policies are played as they are'
    policy_flags=()
    for pair in $policies; do policy_flags+=(--policy "$pair"); done
    [ -z "$local" ] || policy_flags+=(--local "$local")
    play_test_tasks "$evaluate"
    exit 0
}

part_read=evaluation
