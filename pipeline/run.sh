# shellcheck shell=bash disable=SC2034,SC2154
# The run directory: the values of a run, its policies and their warm-up, and what makes a step count.

open_run() {
    mkdir -p "$run/steps" "$run/eval" "$run/policies" || die 74 "cannot make $run"
    run=$(cd "$run" && pwd) || die 74 "cannot read $run"
    lock_run
    rm -f "$run"/tasks.{drawn,next} # of a run that was killed
}
digest_of() { # the identity of a policy that was handed in: its weights' bytes
    cat "$1"/current/*.safetensors "$1"/*.safetensors 2>/dev/null | cksum | cut -d' ' -f1
}
remember_values() {
    local stages='' name pair version build values=() known=()
    for name in "${!stage_command[@]}"; do stages+="$name=${stage_command[$name]};"; done
    stages=$(tr ';' '\n' <<<"$stages" | sort | tr -s '\n' ';')
    stages=${stages#;}
    # The program and its ONNX Runtime, without the path where it is found, or why it is not.
    IFS= read -r version <&"$version_pipe" && IFS= read -r build <&"$version_pipe" || true
    exec {version_pipe}<&-
    [[ $version = 'rollout '* && $build = *'ONNX Runtime'* ]] || die 1 "rollout --version says $version" 'is the rollout on the PATH of another build?'
    build=${build%% (*} build=$version$'\n'${build%%:*}
    # Written down once and for all, so not where a library that was just there could not be read.
    case "$device $build" in
        cpu*'no ONNX Runtime' | sim*'no ONNX Runtime') die 69 "rollout cannot open ONNX Runtime, ${ORT_DYLIB_PATH:-not named}" 'rollout --version says more' ;;
    esac
    for name in env settings workflow policies turns seed device dtype select max_tokens stages $(cut -d' ' -f1 <<<"$numbers"); do
        case $name=${!name} in
            steps=* | keep=* | save_every=* | clip=0.2 | kl=0 | parts=1) ;; # change no sample, or nothing where nobody asked for it
            *) values+=("$name" "${!name}") ;;
        esac
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
    values+=(build "$build")
    # All that the run is made with, for --config and --resume.
    for name in env env_command workflow method adapter select turns max_tokens seed device dtype keep_best resident compress shards ranks side_by_side launcher local tensorboard \
        $(cut -d' ' -f1 <<<"$numbers"); do
        [ -n "${!name}" ] && [ "${!name}" != - ] || continue # the program's own, or without effect
        case $name in
            env) [ -n "$env_command" ] || known+=(env "$env") ;;
            adapter) [ "$policies" != adapter-per-role ] || known+=(adapter "$adapter") ;;
            *) known+=("$name" "${!name}") ;;
        esac
    done
    [[ $policies = *=* ]] || known+=(model "$model")
    for pair in $policies; do known+=(policies "$pair"); done
    for name in $train; do known+=(train "$name"); done
    [ -n "$env_command" ] || for pair in $settings; do known+=('set' "$pair"); done
    for name in "${!stage_flags[@]}"; do known+=(flags "$name=${stage_flags[$name]# }"); done
    for name in "${!stage_command[@]}"; do known+=(stage "$name=${stage_command[$name]}"); done
    python "$root/pipeline/config.py" hold "$numbers"$'\n'"$choices" "$run" $((${#values[@]} / 2)) "${values[@]}" "${known[@]}" || exit $?
    printf -v resumable %q "$run"
}
declare -A folder=() # agent -> policy directory
declare -A served=() # agent -> URL of the server that plays it
declare -A source=() # policy name -> what it is made from
choose_policies() { # who plays with which of them
    local agent pair name other
    case $policies in
        shared) for agent in $agents; do folder[$agent]=$run/policies/shared; done ;;
        per-role | adapter-per-role) for agent in $agents; do folder[$agent]=$run/policies/$agent; done ;;
        *)
            for pair in $policies; do
                agent=${pair%%=*}
                [[ " $agents " = *" $agent "* ]] || die 2 "--policies $pair: $env/$workflow has no agent $agent" "agents: $agents"
                if served_by "${pair#*=}"; then served[$agent]=${pair#*=}; continue; fi
                name=$agent # agents that name one directory share one policy
                for other in "${!source[@]}"; do [ "${source[$other]}" = "${pair#*=}" ] && name=$other; done
                source[$name]=${pair#*=}
                folder[$agent]=$run/policies/$name
            done
            for agent in $agents; do [ -n "${folder[$agent]:-}${served[$agent]:-}" ] || die 2 "--policies: nobody plays $agent" "add --policies $agent=DIR"; done ;;
    esac
    policy_flags=()
    for agent in $agents; do policy_flags+=(--policy "$agent=${served[$agent]:-${folder[$agent]:-}}"); done
    [ -z "$local" ] || policy_flags+=(--local "$local")
    for agent in $train; do
        [ -z "${served[$agent]:-}" ] || die 2 "--train $agent: a server plays it" 'name an agent with a policy directory'
    done
    if [ ${#served[@]} -gt 0 ] && [ -z "$train" ]; then
        for agent in $agents; do [ -n "${served[$agent]:-}" ] || train+="${train:+ }$agent"; done
    fi
    train_flags=()
    for agent in ${train:-$agents}; do train_flags+=(--policy "$agent=${folder[$agent]}"); done
    update_flags=() # those of the numbers that update knows by itself
    [ "$clip" = 0.2 ] || update_flags+=(--clip "$clip")
    [ "$parts" = 1 ] || update_flags+=(--parts "$parts")
    [ "$keep" = 2 ] || update_flags+=(--keep "$keep")
    if [ "$kl" != 0 ]; then
        update_flags+=(--kl "$kl")
        for agent in ${train:-$agents}; do # from what it was before the first step
            case $policies in
                *=*) update_flags+=(--reference "$agent=$run/reference/${folder[$agent]##*/}") ;;
                adapter-per-role)
                    [ "$policy_kind" = adapters ] && [ "$warmup" -gt 0 ] && name=warmup/policy || name=policies/base
                    update_flags+=(--reference "$agent=$run/$name") ;;
                *) update_flags+=(--reference "$agent=$run/warmup/policy") ;;
            esac
        done
    fi
    mapfile -t folders < <(printf '%s\n' "${folder[@]}" | sort -u)
    if [ "$side_by_side" = yes ]; then
        name=$(for agent in ${train:-$agents}; do echo "${folder[$agent]}"; done | sort -u | wc -l)
        [ "$name" -gt 1 ] || die 2 '--side-by-side has no effect where one policy is trained' 'leave it out, or add --policies per-role'
        [ $((ranks % name)) = 0 ] || die 2 "--side-by-side: $name policies cannot have as many of $ranks ranks each" "--ranks $name, or a multiple"
        share_parts $((ranks / name))
        update_flags+=(--side-by-side)
    fi
}

warm_up() { # supervised, on demonstrations that know the action format and have a bad habit to lose
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
make_policies() { # anew only where no step rests on them: what cannot be seen need not be missing
    local name directory begin
    committed=$(commits) || die 74 "cannot read $run/steps"
    [ ! -f "$run/policies/done" ] || return 0
    [ -z "$committed" ] || die 74 "$run/policies/done cannot be read, and there are committed steps" \
        'if the file is gone, restore it: it is empty'
    find "$run/policies" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
    rm -rf "$run/warmup"
    if [ ${#source[@]} -gt 0 ]; then
        rm -rf "$run/reference"
        for name in "${!source[@]}"; do
            policy init "$run/policies/$name" --from "${source[$name]}" || exit $?
            [ "$kl" = 0 ] || policy init "$run/reference/$name" --from "${source[$name]}" || exit $?
        done
    else
        mkdir -p "$run/warmup"
        case $model in
            tiny) begin=(--preset tiny --seed "$seed") ;;
            */* | .*) begin=(--from "$model") ;;
            *) begin=(--preset "$model") ;;
        esac
        # What is pretrained stays as it is under adapters: the warm-up trains one of them, and each role begins with a copy.
        # A base is beside the adapters, so that they find it wherever the run is moved to.
        if [ "$policy_kind" = adapters ]; then
            policy init "$run/policies/base" "${begin[@]}" || exit $?
            begin=(--from "$run/policies/base" --adapter "$adapter" --seed "$seed")
        fi
        policy init "$run/warmup/policy" "${begin[@]}" || exit $?
        if [ "$warmup" -gt 0 ]; then
            say "warm-up: $warmup optimizer steps on imperfect demonstrations"
            background warm_up || exit $?
        fi
        if [ "$policies $policy_kind" = 'adapter-per-role tiny' ]; then
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
}

commits() { (cd "$run/steps" && find . -mindepth 2 -maxdepth 2 -name done | sort); }
versions='' # of all policies, as `done` names them: "shared":"12:9f2c41d0"
read_versions() {
    local folder text
    versions=''
    for folder in "${folders[@]}"; do
        text=''
        IFS= read -r -d '' text 2>/dev/null <"$folder/current/version.json"
        [[ $text =~ \"version\":\ *\"([^\"]+) ]] || die 74 "cannot read $folder/current/version.json"
        versions+=",\"${folder##*/}\":\"${BASH_REMATCH[1]}\""
    done
}
committing=() # directories of steps that wait until the optimizers' states are saved
commit() { # STEP DIRECTORY: the step counts once `done` is there, which names the version of every policy
    # Empty until the streams are on the disk: after a power cut, what counts by its states must have them.
    : >"$2/done.tmp" || die 74 "cannot write $2/done"
    durable "$2"/*.* "$2" "$run/steps"
    printf '{"step":%d,"policies":{%s}}\n' "$1" "${versions#,}" >"$2/done.tmp" || die 74 "cannot write $2/done"
    # With --resident update answers before it saves: the answer to a step says that the states of those before are on the disk.
    [ -z "$staying" ] || [ $((($1 - 1) % save_every)) != 0 ] || settle
    committing+=("$2")
    [ -n "$staying" ] || settle
}
settle() { # now that the states are on the disk, what waited for them counts: the last first, the only one with its state
    local i
    [ ${#committing[@]} = 0 ] || durable "${committing[@]/%//done.tmp}"
    for ((i = ${#committing[@]} - 1; i >= 0; i--)); do
        mv "${committing[i]}/done.tmp" "${committing[i]}/done" || die 74 "cannot write ${committing[i]}/done"
        durable "${committing[i]}"
    done
    committing=()
}
versions_in() { # DONE: a word a policy, as in shared:12:9f2c41d0
    local text
    IFS= read -r text <"$1" && [[ $text = *'"policies":{'*'}}' ]] || return
    text=${text#*'"policies":{'} text=${text%'}}'}
    text=${text//\",\"/ }
    printf '%s\n' "${text//\"/}"
}
has_states() { # DONE: whether all its versions are there with their optimizers' states, which version 0 has none of
    local pairs pair name number files
    pairs=$(versions_in "$1" 2>/dev/null) && [ -n "$pairs" ] || return # it was cut off
    for pair in $pairs; do
        name=${pair%%:*} number=${pair#*:}
        files=$run/policies/$name/step-$(printf %06d "${number%%:*}")
        [[ $number = 0:* || -f $files/trainer_state.json ]] && grep -qF "\"$number\"" "$files/version.json" || return
    done
}
go_back() { # DONE: takes back versions that were published but not committed, so that their step is repeated
    local pairs pair name number later
    pairs=$(versions_in "$1") && [ -n "$pairs" ] || die 74 "cannot read $1"
    for pair in $pairs; do
        name=${pair%%:*} number=${pair#*:}
        number=step-$(printf %06d "${number%%:*}")
        [ -d "$run/policies/$name/$number" ] || die 65 "$1 names $number of $name, which is not there" 'choose another --run'
        [ "$(readlink "$run/policies/$name/current")" = "$number" ] ||
            ln -sfn "$number" "$run/policies/$name/current" || die 74 "cannot write $run/policies/$name/current"
        # `update` would go on from a later one that has its state, and remove this one (--save-every).
        for later in "$run/policies/$name"/step-*; do
            if [[ $later > $run/policies/$name/$number ]]; then
                mv "$later" "$run/policies/$name/.removed-${later##*/}" && rm -r "$run/policies/$name/.removed-${later##*/}" ||
                    die 74 "cannot remove $later"
            fi
        done
    done
}
find_place() { # after $done_steps committed steps, with the policies as they were then
    local last number directory
    if [ -z "$committed" ]; then
        mkdir -p "$run/steps/000000" || die 74 "cannot make $run/steps/000000"
        read_versions
        commit 0 "$run/steps/000000"
        committed=$(commits) || die 74 "cannot read $run/steps"
    fi
    last=${committed##*./} last=${last%/done} done_steps=$((10#$last))
    # With --resident a step counts once the next is answered; of a run that was killed before, if its states are on the disk.
    for ((number = done_steps + 1; ; number++)); do
        printf -v directory '%s/steps/%06d' "$run" "$number"
        [ -f "$directory/done.tmp" ] || break
        ! has_states "$directory/done.tmp" || done_steps=$number
    done
    for directory in "$run"/steps/[0-9]*; do
        [ "$((10#${directory##*/}))" -le "$done_steps" ] || rm -f "$directory/done.tmp" # its step is repeated
    done
    for ((number = 1; number <= done_steps; number++)); do
        printf -v directory '%s/steps/%06d' "$run" "$number"
        [ ! -f "$directory/done" ] || continue
        [ -f "$directory/done.tmp" ] || # it was about to count
            die 65 "$directory/done is missing, but step $((10#$last)) is committed" \
                'restore that file (its versions are long gone), or choose another --run'
        committing+=("$directory")
    done
    settle
    go_back "$run/steps/$(printf %06d "$done_steps")/done"
}

part_read=run
