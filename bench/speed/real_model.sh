#!/usr/bin/env bash
# real_model.sh DIR [TOKENS]: compares a pretrained policy with transformers on 200 prompts in prose.
#
# 70 prompts of math, 70 of plan-path and 60 of code, all with encoding=full, are answered once greedily and
# once at temperature 1, with at most TOKENS tokens (32). logprobs.py compares prompt ids, log-probabilities,
# texts and greedy choices. Expects the programs on the PATH, and torch and transformers in $PYTHON (python3).
# DTYPE is transformers' precision (float32); TASKS overrides the number of prompts per environment.
#
#     policy init run/smollm2 --preset smollm2 && bench/speed/real_model.sh run/smollm2
set -euo pipefail

policy=${1:?real_model.sh: DIR of a policy is missing}
tokens=${2:-32}
benches=$(dirname "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

play() { # name, environment, tasks, more settings of the environment
    local name=$1 environment=$2 tasks=$3
    shift 3
    for sampling in '--temperature 0' '--temperature 1 --branches 1'; do
        # shellcheck disable=SC2086
        envs tasks "$environment" --quiet --count "$tasks" --seed 1 --set encoding=full --set turns=1 "$@" |
            rollout --quiet --policy "$policy" --workflow single --max-tokens "$tokens" $sampling > "$folder/$name"
        printf '%s, %s: ' "$environment" "$sampling"
        "${PYTHON:-python3}" "$benches/logprobs.py" "$policy" --dtype "${DTYPE:-float32}" < "$folder/$name"
    done
}

play math math "${TASKS:-70}" --set level=3
play plan-path plan-path "${TASKS:-70}"
play code code "${TASKS:-60}"
