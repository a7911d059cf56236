# shellcheck shell=bash disable=SC2034,SC2154
# The command line: the flags that set a run's numbers and choices, and which of them go together.

env=plan-path env_command='' method=at-grpo workflow=team model=tiny policies=shared turns='' seed=1 device=cpu dtype=''
run='' tensorboard='' keep_best=no setup_only=no resident=no evaluate='' train='' select=random max_tokens='' adapter=rank=16,alpha=32
settings=''
declare -A stage_command=() stage_flags=() given=()

read_arguments() { # FLAGS...
    local flag kind name value
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
}
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
choose_defaults() { # those that follow the kind of policy
    local name tiny pretrained adapters
    case "$policies $model" in
        *=*)
            [ -z "${given[model]:-}" ] || die 2 '--model has no effect where --policies names directories' 'leave one of them out'
            name=${policies%% *} # the first decides
            policy_kind=$(kind_of "${name#*=}") ;;
        *\ tiny) policy_kind=tiny ;;
        adapter-per-role*) policy_kind=adapters ;;
        *) policy_kind=pretrained ;;
    esac
    [ -z "$env_command" ] || [ -n "${given[warmup]:-}" ] || { warmup=0 given[warmup]=yes; }
    while read -r name _ tiny pretrained adapters _; do
        [ -n "${given[${name//_/-}]:-}" ] || printf -v "$name" %s "${!policy_kind}"
    done <<<"$numbers"
}
check_arguments() { # what has no effect is refused
    local name
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
    [ -z "$env_command" ] || [ -z "${given[env]:-}${given[set]:-}" ] ||
        die 2 '--env-command takes the place of --env and --set' 'give its settings in COMMAND: it is run by a shell'
    [ -n "$dtype" ] || [ "$device" != cpu ] || dtype=float32
    dtype_flags=() # a device has but one
    [ -z "$dtype" ] || dtype_flags=(--dtype "$dtype")
}

part_read=arguments
