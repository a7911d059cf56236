# shellcheck shell=bash disable=SC2034,SC2154
# The command line: the flags that set a run's numbers and choices, and which of them go together.

env=plan-path env_command='' method=at-grpo workflow=team model=tiny policies=shared turns='' seed=1 device=cpu dtype=''
run='' tensorboard='' keep_best=no setup=no resident=no compress=no shards=1 ranks=1 side_by_side=no launcher=auto local='' evaluate='' train='' select=random max_tokens='' adapter=rank=16,alpha=32
settings='' config='' resume=''
declare -A stage_command=() stage_flags=() given=() kinds=()
while read -r name kind _; do kinds[$name]=${kind%!}; done <<<"$numbers"$'\n'"$choices"

read_config() { # FLAGS...: sets $arguments: the lines of --config or --resume, if there is one, and the flags
    local word quoted
    arguments=("$@")
    for word; do
        case $word in
            --config | --config=* | --resume | --resume=*)
                need_python
                quoted=$(python "$root/pipeline/config.py" merge "$numbers"$'\n'"$choices" "$@") || exit $?
                eval "arguments=($quoted)" # quoted by Python's shlex
                return ;;
        esac
    done
}
need_python() { # resolved once: the shims of pyenv and asdf take 0.1 s at each call
    command -v python3 >/dev/null ||
        die 69 'python3 is not installed' 'pipeline.sh reads the lines of its stages with it; the stages need it for environments in Python'
    python3=$(python -c 'import sys; print(sys.executable or "python3")') || die 69 'python3 does not run' 'see the message above'
}
read_arguments() { # FLAGS...
    local flag kind name value near
    while [ $# -gt 0 ]; do
        flag=$1 value=yes
        case $flag in
            --help | -h) usage | sed "s|[.]/pipeline[.]sh|$TROUPE_CALLED|"; exit 0 ;;
            --keep-best=yes | --keep-best=no | --resident=yes | --resident=no | --compress=yes | --compress=no | --side-by-side=yes | --side-by-side=no) value=${flag#*=} flag=${flag%%=*} ;;
            --*=*) set -- "${flag%%=*}" "${flag#*=}" "${@:2}"; continue ;;
        esac
        name=${flag#--} name=${name//-/_}
        [[ $flag = --?* ]] && kind=${kinds[$name]:-} || kind=''
        if [ -z "$kind" ]; then
            near=$(python "$root/pipeline/config.py" nearest "$name" "${!kinds[@]}" 2>/dev/null)
            die 2 "unknown argument $flag" "${near:+did you mean --$near? }run ./pipeline.sh --help for the list"
        fi
        given[$name]=yes
        if [ "$kind" = YES ]; then
            printf -v "$name" %s "$value"
            shift
            continue
        fi
        [ $# -ge 2 ] || die 2 "$flag needs a value" 'run ./pipeline.sh --help for the list'
        take_value "$flag" "$kind" "$2"
        shift 2
    done
}
take_value() { # FLAG KIND VALUE
    local name=${1#--} value=$3
    case $1 in
        --policies)
            case $3 in
                shared | adapter-per-role | per-role) policies=$3 ;;
                *[[:space:]]*) die 2 "--policies $3: DIR cannot have blanks in its name" ;;
                ?*=?*) if [[ $policies = *=* ]]; then policies="$policies $3"; else policies=$3; fi ;;
                *) die 2 "--policies $3: not shared, adapter-per-role, per-role or AGENT=DIR" ;;
            esac ;;
        --stage | --flags)
            case $1\ ${3%%=*} in
                --stage\ reward | *\ tasks | *\ rollout | *\ group | *\ advantage | *\ update) [ "${3#*=}" != "$3" ] || die 2 "$1 $3: not NAME=VALUE" ;;
                *) die 2 "$1 ${3%%=*}: no such stage" 'stages: tasks rollout group advantage update, and with --stage reward' ;;
            esac
            if [ "$1" = --stage ]; then stage_command[${3%%=*}]=${3#*=}; else stage_flags[${3%%=*}]+=" ${3#*=}"; fi ;;
        --train) train+="${train:+ }$3" ;;
        --set)
            [[ $3 =~ ^[^=[:space:]]+=[^[:space:]]*$ ]] || die 2 "--set $3: not NAME=VALUE" 'envs list names the settings'
            settings+="${settings:+ }$3" ;;
        *)
            case $2 in
                N | K)
                    [[ $3 =~ ^[0-9]{1,12}$ ]] || die 2 "$1 $3: not a whole number of at most 12 digits"
                    value=$((10#$3)) ;; # 010 is ten
                X | T)
                    [[ $3 =~ ^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$ ]] || die 2 "$1 $3: not a number" ;;
            esac
            printf -v "${name//-/_}" %s "$value" ;;
    esac
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
served_by() { [[ $1 = http://* || $1 = https://* ]]; } # WHAT: a server plays, and nothing of it is trained
choose_defaults() { # those that follow the kind of policy
    local name tiny pretrained adapters
    case "$policies $model" in
        *=*)
            [ -z "${given[model]:-}" ] || die 2 '--model has no effect where --policies names directories' 'leave one of them out'
            for name in $policies; do # the first decides
                served_by "${name#*=}" || { policy_kind=$(kind_of "${name#*=}"); break; }
            done
            [ -n "${policy_kind:-}" ] || [ -n "$evaluate" ] || die 2 '--policies: servers play all agents, so that nobody is trained' 'add --policies AGENT=DIR'
            policy_kind=${policy_kind:-pretrained} ;;
        *\ tiny) policy_kind=tiny ;;
        adapter-per-role*) policy_kind=adapters ;;
        *) policy_kind=pretrained ;;
    esac
    [ -z "$env_command" ] || [ -n "${given[warmup]:-}" ] || { warmup=0 given[warmup]=yes; }
    while read -r name _ tiny pretrained adapters _; do
        [ -n "${given[$name]:-}" ] || printf -v "$name" %s "${!policy_kind}"
    done <<<"$numbers"
}
share_parts() { # RANKS that train one policy
    [ $(($1 & $1 - 1)) = 0 ] && [ "$1" -le "$parts" ] ||
        die 2 "--ranks $ranks: not a power of two up to --parts, $parts$([ "$1" = "$ranks" ] || echo ", for each of $((ranks / $1)) policies")" \
            'each rank computes as many parts; the bytes of the policies depend on --parts'
}
check_arguments() { # what has no effect is refused
    local name
    for name in tasks branches turns max_tokens eval_tasks minibatches keep save_every shards parts ranks; do
        [ "${!name:-1}" -gt 0 ] || die 2 "--${name//_/-} must be at least 1"
    done
    [[ $device =~ ^(cpu|sim|cuda(:[0-9]+)?)$ ]] || die 2 "--device $device: not a device" 'devices are cpu, cuda and cuda:N'
    [ "$resident" = yes ] || [ "$save_every" = 1 ] ||
        die 2 '--save-every has no effect without --resident' 'add --resident: a process a step ends with its state saved'
    [[ $launcher =~ ^(auto|local|mpirun|srun)$ ]] || die 2 "--launcher $launcher: not auto, local, mpirun or srun"
    [ "$shards$ranks" != 11 ] || [ "$launcher" = auto ] ||
        die 2 "--launcher $launcher has no effect with one shard and one rank" 'add --shards N or --ranks N, or leave it out'
    starter=$launcher
    [ "$launcher" != auto ] || [ -z "${SLURM_JOB_ID:-}" ] || ! command -v srun >/dev/null || starter=srun
    if [ "$ranks" -gt 1 ]; then
        [ "$side_by_side" = yes ] || share_parts "$ranks" # else once it is known how many policies there are
        [ -z "${stage_command[update]:-}" ] || die 2 '--ranks is of update, and --stage update=... is another command' 'leave out --ranks'
        [ -z "$evaluate" ] || die 2 '--ranks has no effect with --evaluate' 'leave out --ranks'
    fi
    [ "$side_by_side$ranks" != yes1 ] || die 2 '--side-by-side needs --ranks N' 'as many as there are policies, or a multiple: --ranks 2'
    if [ "$shards" -gt 1 ]; then
        [ "$resident" = no ] || die 2 '--shards are processes a step, which --resident does not start' 'leave out one of them'
        [ "$device" = cpu ] || [ "$starter" = srun ] ||
            die 2 "--shards cannot play with --device $device" 'leave out --shards, or let Slurm give each its device: --launcher srun'
        [ -z "${stage_command[rollout]:-}" ] ||
            die 2 '--shards deals tasks to rollout, and --stage rollout=... is another command' 'leave out --shards'
        [ -z "$evaluate" ] || die 2 '--shards has no effect with --evaluate' 'leave out --shards'
    fi
    if [ "$resident" = yes ]; then
        [ -z "$evaluate" ] || die 2 '--resident has no effect with --evaluate' 'leave out --resident'
        [ "$device" = cpu ] || [ "$ranks" = 1 ] || [ "$save_every" = 1 ] ||
            die 2 "--save-every has no effect with --ranks and --device $device" 'leave out one of them: there every step saves its state'
        for name in rollout reward group advantage update; do
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
    [[ ! $kl =~ ^[+-]?0*\.?0*([eE].*)?$ ]] || kl=0 # 0.0 is none either
    [ -n "$dtype" ] || [ "$device" != cpu ] || dtype=float32
    dtype_flags=() # a device has but one
    [ -z "$dtype" ] || dtype_flags=(--dtype "$dtype")
}

part_read=arguments
