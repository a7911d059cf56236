# shellcheck shell=bash disable=SC2034,SC2154
# Who acts, and in which environment: agents, settings, and the commands that print tasks and demonstrations.

ask_environment() { # that of --env-command: its name, and who acts
    local answer=''
    if [ -n "$env_command" ]; then
        [ -n "${given[workflow]:-}" ] || workflow=''
        [ "$setup" = yes ] || answer=$(python "$root/pipeline/environment.py" "$env_command" "$workflow") || exit 2
        read -r env agents <<<"$answer"
    fi
    [ -n "$run" ] || run=runs/$env
}
choose_settings() { # those that follow the environment and the kind of policy
    local encodes setting known agent
    if [ "$policy_kind" != tiny ] && [ -z "$env_command" ] && [[ " $settings" != *' encoding='* ]]; then
        encodes=$(envs list "$env" --format json | json 'any(known["name"] == "encoding" for known in lines[0]["settings"])') || exit $?
        [ "$encodes" = False ] || settings+="${settings:+ }encoding=full"
    fi
    if [ -z "$max_tokens" ]; then # a bit more than the longest right answer takes
        case " $env $settings " in
            *' data='*) max_tokens=512 ;;
            ' code '*' encoding=full '*) max_tokens=64 ;;
            *' encoding=full '*) max_tokens=32 ;;
            ' sudoku '*'size=9 '*) max_tokens=96 ;;
            ' tldr '* | ' arxiv '* | ' coop-code '*) max_tokens=256 ;;
            ' class-eval '* | ' strbuild '*) max_tokens=512 ;;
            ' math '* | ' code '* | ' write '*) max_tokens=24 ;;
            *) max_tokens=8 ;;
        esac
    fi
    set_flags=()
    for setting in $settings; do set_flags+=(--set "$setting"); done
    if [ -z "$env_command" ]; then
        known=$(envs list "$env" "${set_flags[@]}" --format json) || exit $? # it names the nearest
        # As envs writes it: starting a Python to read JSON takes 45 ms.
        agents=${known#*"{\"name\":\"$workflow\",\"agents\":[\""}
        agents=${agents%%\"]*} agents=${agents//\",\"/ }
        [[ $agents != \{* ]] || die 2 "there is no workflow $workflow of an environment $env" 'envs list names them all'
    fi
    for agent in $train; do
        [[ " $agents " = *" $agent "* ]] || die 2 "--train $agent: $env/$workflow has no agent $agent" "agents: $agents"
    done
}
declare -A method_flags=() # of stages, by --method
method_flag() { # STAGE FLAG VALUE, unless --flags has it
    [[ " ${stage_flags[$1]:-} " == *" $2"[\ =]* ]] || method_flags[$1]+=" $2 $3"
}
choose_method() {
    if [ "$method" != at-grpo ]; then # arXiv 2508.04652: the sum over tokens, one step a rollout, so that no ratio matters
        minibatches=1
        method_flag update --aggregate constant
        method_flag update --max-tokens 1
        method_flag advantage --estimator dr-grpo
    fi
    case $method in
        magrpo)
            method_flag rollout --joint aligned
            method_flag rollout --sampling parallel
            method_flag advantage --credit tree ;;
        magrpo-cross) method_flag rollout --joint cross ;;
    esac
}
choose_episodes() { # how they are played, for rollout
    episode_flags=()
    [ -z "$env_command" ] || episode_flags+=(--env-command "$env_command")
    [ -z "$workflow" ] || episode_flags+=(--workflow "$workflow")
    [ -z "$turns" ] || episode_flags+=(--turns "$turns")
}
from_environment() { # tasks|demo ARGUMENTS...: sets $command, which prints them
    if [ -n "$env_command" ]; then
        command=(envs "$1" --env-command "$env_command" "${@:2}")
    else
        command=(envs "$1" "$env" "${set_flags[@]}" "${@:2}")
    fi
}

part_read=environment
