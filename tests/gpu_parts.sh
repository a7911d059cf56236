# tests/gpu_parts.sh: the parts of gpu.sh, which sources this file. part_NAME SIZE checks and measures
# with a policy of that size.

# ---- facts and tests ------------------------------------------------------------------------------------------
part_facts() {
    row 'date' "$date"
    row 'commit' "$commit"
    row 'device' "$device"
    row 'GPU' "$(nvidia-smi --query-gpu=name,memory.total,memory.free,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null | head -1 | grep . || echo 'no nvidia-smi')"
    row 'processor' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores"
    check 'rollout --version' rollout --version
    sed 's/^/    /' "$work/out" | tee -a "$table"
    check 'update --version' update --version
    sed 's/^/    /' "$work/out" | tee -a "$table"
}
ran() { # COMMAND...: a test program; a filter that no test's name has is a failure too
    local printed code
    printed=$("$@" 2>&1)
    code=$?
    printf '%s\n' "$printed"
    case $printed in *'ok. 0 passed'*) return 1 ;; esac
    return $code
}
part_tests() {
    check 'tests: device' ran "$here/tests/device" --test-threads 1
    check 'tests: kernels of update' ran "$here/tests/update" --test-threads 1 kernels_operations:: attention:: parts::
    check 'tests: kernels of rollout' ran "$here/tests/rollout-sampler" --test-threads 1 device::tests::sampling device::operators device::heads device::decode_attention device::prefill_attention
    check 'tests: decoders of update' ran "$here/tests/update" --test-threads 1 device::
    check 'tests: the program update' ran "$here/tests/update" --test-threads 1 device_program::
}
sanitized() { # TOOL COMMAND...: a test program under compute-sanitizer; hazards in kernels of cuBLASLt are NVIDIA's to mend
    local printed code finding=9
    [ "$1" != racecheck ] || finding=0
    printed=$(compute-sanitizer --tool "$1" --error-exitcode "$finding" "${@:2}" 2>&1)
    code=$?
    printf '%s\n' "$printed"
    if [ "$1" = racecheck ] && grep ' access at ' <<<"$printed" | grep -qv ' at nvjet_'; then return 9; fi
    return "$code"
}
part_sanitizer() {
    local tool test words
    if [ "$device" = sim ]; then
        not_run 'compute-sanitizer' 'the simulator checks memory and barriers itself'
    elif ! command -v compute-sanitizer >/dev/null; then
        not_run 'compute-sanitizer' 'it is not installed (it comes with the CUDA toolkit)'
    else
        for tool in memcheck racecheck synccheck; do
            for test in tests/device 'tests/update kernels_operations:: attention:: parts::'; do
                read -ra words <<<"$test"
                limit=120 check "compute-sanitizer $tool: ${test#tests/}" sanitized "$tool" "$here/${words[0]}" --test-threads 1 "${words[@]:1}"
            done
            limit=120 check "compute-sanitizer $tool: sampler" sanitized "$tool" "$here/tests/rollout-sampler" \
                --test-threads 1 the_device_draws_what_the_cpu_draws
        done
    fi
}

# ---- what the device can do -----------------------------------------------------------------------------------
part_roofline() { # once in a run: the shares of all other parts are of these
    awk -v x="$bytes" 'BEGIN { exit x > 0 }' || return 0
    check 'roofline' roofline "$device" || return
    bytes=$(number bytes_per_second "$work/out") operations=$(number operations_per_second "$work/out")
    figure '  copy, read and written' "$(awk -v x="$bytes" 'BEGIN { printf "%.1f", x / 1e9 }')" GB/s
    figure '  bf16 matrix product' "$(awk -v x="$operations" 'BEGIN { printf "%.3g", x / 1e12 }')" TFLOP/s
}
part_products() { # SIZE: the products of training and of a decode step, by cuBLASLt's first algorithm and the fastest of eight
    local sizes what rows line name
    part_roofline
    configuration "$1" >"$work/$1.json"
    sizes="$(last hidden_size "$work/$1.json") $(last intermediate_size "$work/$1.json")"
    sizes="$sizes $(($(last num_attention_heads "$work/$1.json") * $(last head_dim "$work/$1.json")))"
    sizes="$sizes $(($(last num_key_value_heads "$work/$1.json") * $(last head_dim "$work/$1.json"))) $(last vocab_size "$work/$1.json")"
    for what in products decode; do
        rows=$batch_tokens
        if [ $what = decode ]; then rows=64; fi
        # shellcheck disable=SC2086
        check "$1: products of ${what/products/training}, $rows rows" roofline "$device" $what $sizes "$rows" || continue
        grep '^{' "$work/out" >"$work/products"
        while read -r line; do
            printf '%s\n' "$line" >"$work/line"
            name="$1: $(sed 's/.*"product":"\([^"]*\)".*/\1/' "$work/line"), $(last rows "$work/line") × $(last columns "$work/line") × $(last depth "$work/line")"
            figure "  $name" "$(last first "$work/line" | awk '{ printf "%.4g", $1 / 1e12 }')" TFLOP/s "$(of_product "$(last first "$work/line")")"
            figure "  $name, best of $(last choices "$work/line"), number $(last choice "$work/line")" \
                "$(last best "$work/line" | awk '{ printf "%.4g", $1 / 1e12 }')" TFLOP/s "$(of_product "$(last best "$work/line")")"
        done <"$work/products"
    done
}
of_product() { # OPERATIONS A SECOND
    awk -v x="$1" -v speed="$operations" 'BEGIN { if (speed > 0) printf "%.0f %%", 100 * x / speed }'
}

# ---- float16 ------------------------------------------------------------------------------------------------
dtype=()
float16() { # COMMAND...: with both programs in float16
    local dtype=(--dtype float16)
    "$@"
}
part_agree-f16() { float16 part_agree "$1"; } # SIZE
part_train-f16() { float16 part_train "$1"; } # SIZE

# ---- a step ---------------------------------------------------------------------------------------------------
play() { # NAME EPISODES TURNS TOKENS POLICIES...: a rollout and its advantages. The reward is the branch number, so that
    # there is something to learn from policies that never solve a task
    local name=$1 episodes=$2 turns=$3 tokens=$4
    shift 4
    envs tasks plan-path --count "$episodes" --seed 7 |
        rollout "$@" --branches 4 --turns "$turns" --max-tokens "$tokens" --seed 1 --step 1 --device "$device" "${dtype[@]}" --quiet |
        tee "$work/$name.rollout" |
        awk '/"type":"sample"/ { match($0, /"branch":[0-9]+/); sub(/"reward":[^,}]*/, "\"reward\":" substr($0, RSTART + 9, RLENGTH - 9)) } { print }' |
        group --quiet | advantage --quiet >"$work/$name.samples"
}
train() { # NAME POLICIES...
    local name=$1
    shift
    update "$@" --minibatches 1 --device "$device" "${dtype[@]}" --quiet <"$work/$name.samples" >"$work/$name.metrics" &&
        grep '"type":"metrics"' "$work/$name.metrics" >"$work/$name.measured"
}
agree() { # NAME POLICIES...
    local name=$1
    shift
    update "$@" --check --device "$device" "${dtype[@]}" --quiet <"$work/$name.samples" | tee "$work/$name.check"
    return "${PIPESTATUS[0]}"
}
gaps() { # NAME FILE
    figure "  $1: mean gap of log-probabilities (goal: 0.003)" "$(last sampling/logp_difference_mean "$2")" nats
    figure "  $1: largest gap (goal: 0.05)" "$(last sampling/logp_difference_max "$2")" nats
}
times() { # NAME: time of a step by phase
    local field
    figure '  rollout' "$(number seconds "$work/$1.rollout")" s
    for field in load_seconds model_seconds prefill_seconds decode_seconds environment_seconds text_seconds waiting_seconds; do
        row "    $field" "$(number $field "$work/$1.rollout")"
    done
    figure '  update' "$(number seconds "$work/$1.metrics")" s
    sed 's/.*"timing"://' "$work/$1.measured" | grep -o '"[a-z_]*_seconds":[-0-9.e+]*' | tr -d '"' | while IFS=: read -r field value; do
        row "    $field" "$value"
    done
}
tokens_of() { # NAME
    grep -o '"completion_ids":\[[^]]*\]' "$work/$1.rollout" | tr -cd ',\n' | awk '{ n += length + 1 } END { print n + 0 }'
}
part_agree() { # SIZE
    local size=$1
    check "$size: random policy" policy_of "$size" &&
        check "$size: rollout, group, advantage" play "$size" $((episodes / 4 + 1)) 2 $((tokens / 2 + 1)) --policy "$work/$size" || return
    check "$size: rollout and update agree" agree "$size" --policy "$work/$size"
    gaps "$size" "$work/$size.check"
}
part_agree-own() { # SIZE: with our attention in both programs
    local dtype=(--dtype bfloat16)
    TROUPE_ATTENTION=own part_agree "$1"
}
part_step() { # SIZE
    local size=$1 code
    check "$size: random policy" policy_of "$size" &&
        check "$size: rollout, group, advantage" play "$size" $((episodes / 4 + 1)) "$turns" "$tokens" --policy "$work/$size" || return
    check "$size: rollout and update agree" agree "$size" --policy "$work/$size"
    gaps "$size" "$work/$size.check"
    check "$size: update" train "$size" --policy "$work/$size"
    code=$?
    drop_optimizer "$size"
    [ $code = 0 ] || return
    times "$size"
    figure '  sampled tokens' "$(tokens_of "$size")" tokens
    figure '  update, unique tokens' "$(last unique_tokens_per_second "$work/$size.measured")" tokens/s
}

# ---- decode and prefill ---------------------------------------------------------------------------------------
speeds() { # FILE PREFIX: a figure for each JSON object
    local line name
    while read -r line; do
        printf '%s\n' "$line" >"$work/line"
        name="$2 $(grep -o '"measure": *"[a-z]*"' "$work/line" | cut -d'"' -f4), context $(last context "$work/line")"
        case $line in *'"batch"'*) name="$name, batch $(last batch "$work/line"), $(last branches "$work/line") share a prompt" ;; esac
        case $line in
            *'"skipped"'*) row "$name" "$(sed 's/.*"skipped": *"\([^"]*\)".*/not run: \1/' "$work/line")" ;;
            *) figure "$name" "$(last tokens_per_second "$work/line" | awk '{ printf "%.0f", $1 }')" tokens/s \
                "$(share "$(last bytes "$work/line")" "$(last operations "$work/line")" "$(last seconds "$work/line")")" "$(last spread "$work/line")" ;;
        esac
    done <"$1"
}
decoded() { # SIZE NAME ARGUMENTS OF generate...
    local size=$1 name=$2
    shift 2
    part_roofline
    check "$size: random policy" policy_of "$size" || return
    check "$size: $name" generate --policy "$work/$size" --device "$device" "$@"
    if [ "$device" != sim ]; then
        row '  decode steps replay CUDA graphs' "$(sed -n 's/.*without a CUDA graph, which is slower: /not all: /p' "$work/out" | grep . || echo yes)"
    fi
    grep '^{' "$work/out" >"$work/speeds"
    speeds "$work/speeds" "  $size:"
}
part_decode() { # SIZE
    decoded "$1" 'decode and prefill' --batch "$batches" --context "$contexts" --branches 1,4 --steps "$steps" --repeats "$repeats"
}
part_decode-few() { # SIZE
    decoded "$1" 'decode few sequences' --batch "$few" --context "$context" --branches 1,4 --steps "$steps" --repeats "$repeats"
}
part_decode-long() { # SIZE: separate completions of about 512 tokens on average, behind shared prompts
    decoded "$1" 'decode long completions' --batch "$batches" --context "$context" --branches 4 --steps "$long_steps" --repeats 1
}
part_decode-own() { # SIZE: decoding with our attention alone
    TROUPE_ATTENTION=own decoded "$1" 'decode with our attention' --batch "1,$batches" --context "$context" --branches 1,4 --steps "$steps" --repeats "$repeats"
}
part_decode-onnxruntime() { # SIZE: the same with ONNX Runtime's
    TROUPE_ATTENTION=onnxruntime decoded "$1" "decode with ONNX Runtime's attention" --batch "1,$batches" --context "$context" --branches 1,4 --steps "$steps" --repeats "$repeats"
}
part_prefill-own() { # SIZE: runs of prompts with our attention alone, and few steps of decoding
    TROUPE_ATTENTION=own decoded "$1" 'prefill with our attention' --batch 1 --context "$contexts" --branches 1 --steps 8 --repeats "$repeats"
}
part_prefill-onnxruntime() { # SIZE: the same with ONNX Runtime's
    TROUPE_ATTENTION=onnxruntime decoded "$1" "prefill with ONNX Runtime's attention" --batch 1 --context "$contexts" --branches 1 --steps 8 --repeats "$repeats"
}
part_tiers() { # SIZE: with each of ONNX Runtime's kernels for attention, and without CUDA graphs
    local size=$1 tier kernels graphs
    for tier in 11-eager 3 3-eager; do
        kernels=${tier%-eager} graphs=on
        if [ "$tier" != "$kernels" ]; then graphs=off; fi
        if [ "$kernels" = 11 ] && ! TROUPE_SDPA_KERNEL=11 rollout --version | grep -q 'sdpa_kernel 11$'; then
            row "$size: sdpa_kernel $tier" 'not run: no cuDNN 9.5 or later is found'
            continue
        fi
        TROUPE_ATTENTION=onnxruntime TROUPE_SDPA_KERNEL=$kernels TROUPE_CUDA_GRAPHS=$graphs decoded "$size" "sdpa_kernel $tier" --batch "$batches" \
            --context "$context" --branches 4 --steps "$steps" --repeats "$repeats"
    done
}
part_rollout() { # SIZE: episodes of two turns and two agents, as a step of training plays them
    local size=$1 count tokens_per_second decode replays
    check "$size: random policy" policy_of "$size" || return
    for count in $played; do
        check "$size: rollout of $count episodes, two turns" play played "$count" 2 $((tokens / 2)) --policy "$work/$size" || continue
        decode=$(number decode_seconds "$work/played.rollout") replays=$(number replayed_runs "$work/played.rollout")
        tokens_per_second=$(awk -v n="$(tokens_of played)" -v s="$(number model_seconds "$work/played.rollout")" 'BEGIN { if (s > 0) printf "%.0f", n / s }')
        figure "  $size: $count episodes, two turns: sampled, of the model's time" "$tokens_per_second" tokens/s
        figure "  $size: $count episodes, two turns: sampled, of the time of decoding" \
            "$(awk -v n="$(tokens_of played)" -v s="$decode" 'BEGIN { if (s > 0) printf "%.0f", n / s }')" tokens/s
        figure "  $size: $count episodes, two turns: model's share of the rollout less loading" \
            "$(awk -v m="$(number model_seconds "$work/played.rollout")" -v s="$(number seconds "$work/played.rollout")" -v l="$(number load_seconds "$work/played.rollout")" 'BEGIN { if (s > l) printf "%.0f", 100 * m / (s - l) }')" %
        figure "  $size: $count episodes, two turns: replays among runs of decoding" \
            "$(awk -v r="$replays" -v n="$(number decode_runs "$work/played.rollout")" 'BEGIN { if (n + 0 > 0) printf "%.1f", 100 * r / n }')" %
        row "    runs of prompts, of decoding, mixed; refused shapes" "$(number prefill_runs "$work/played.rollout"), $(number decode_runs "$work/played.rollout"), $(number mixed_runs "$work/played.rollout"); $(number refused_shapes "$work/played.rollout")"
    done
}

# ---- training in fixed shapes ---------------------------------------------------------------------------------
# Metrics of an update of N micro-batches, into NAME.measured; each filled with groups.
shaped() { # NAME SIZE SHAPE N
    local name=$1 policy=$work/$2 shape=$3 groups
    groups=$(python3 "$here/update_shapes.py" cost "$policy" --shape "$shape" --tokens "$batch_tokens" | tee "$work/cost" | grep -o '"groups": [0-9]*' | cut -d' ' -f2)
    python3 "$here/update_shapes.py" samples "$policy" --shape "$shape" --groups $((groups * $4)) |
        update --policy "$policy" --objective nll --optimizer sgd --lr 1e-9 --minibatches 1 --max-tokens-per-batch "$batch_tokens" --device "$device" \
            "${dtype[@]}" --quiet |
        grep '"type":"metrics"' >"$work/$name.measured" || return
    [ "$(last unique_tokens "$work/$name.measured")" = $(($(cost nodes) * $4)) ] || { echo 'update counts other nodes'; return 1; }
}
passes() { # NAME: seconds of the passes
    awk -v f="$(last forward_seconds "$work/$1.measured")" -v b="$(last backward_seconds "$work/$1.measured")" 'BEGIN { print f + b }'
}
cost() { # NAME: a number of the shape that was measured last
    grep -o "\"$1\": [0-9]*" "$work/cost" | cut -d' ' -f2
}
part_train() { # SIZE
    local size=$1 shape seconds
    part_roofline
    check "$size: random policy" policy_of "$size" || return
    for shape in $shapes; do
        # The first micro-batch compiles, loads and, on first use, times matrix product algorithms. So it runs
        # twice, and the figure is the difference between four micro-batches and one.
        check "$size: update, $shape: algorithms of products" shaped one "$size" "$shape" 1 &&
            check "$size: update, $shape: one micro-batch" shaped one "$size" "$shape" 1 &&
            check "$size: update, $shape: four" shaped four "$size" "$shape" 4 || continue
        seconds=$(awk -v one="$(passes one)" -v four="$(passes four)" 'BEGIN { print (four - one) / 3 }')
        figure "  $size, $shape: a micro-batch" "$seconds" s "$(share 0 "$(cost operations)" "$seconds")"
        row '  nodes, and those that are scored' "$(cost nodes), $(cost scored)"
        figure "  $size, $shape: with prompts counted in each completion" \
            "$(awk -v t="$(cost tokens)" -v s="$seconds" 'BEGIN { if (s > 0) printf "%.0f", t / s }')" tokens/s
        figure "  $size, $shape: operations" "$(awk -v o="$(cost operations)" -v s="$seconds" 'BEGIN { if (s > 0) printf "%.0f", o / s / 1e12 }')" TFLOP/s \
            "$(awk -v o="$(cost operations)" -v s="$seconds" 'BEGIN { if (s > 0) printf "%.0f %% of 989 TFLOP/s", o / s / 989e10 }')"
    done
}
part_profile() { # SIZE
    local size=$1 shape name text
    check "$size: random policy" policy_of "$size" &&
        for shape in $shapes; do
            TROUPE_KERNEL_TIMES=$work/kernels check "$size: update, $shape: by kernel" shaped profile "$size" "$shape" 1
            sed -E 's/.*"kernel":"([^"]*)","launches":([0-9]*),"seconds":([0-9.]*).*/\1\t\3 s in \2 launches/' "$work/kernels" | head -20 |
                while IFS=$'\t' read -r name text; do row "    $name" "$text"; done
        done
}
part_kernels() { # SIZE
    local size=$1 batch=64 ramp layers kernels name text
    if ! command -v ncu >/dev/null || [ "$device" = sim ]; then
        not_run 'decode by kernel' 'Nsight Compute (ncu) is not installed, or there is no GPU'
    elif check "$size: random policy" policy_of "$size"; then
        # Skip the prefill launches, which run twice; after them all rows decode.
        ramp=$((batch * context / 4096 + 2)) layers=$(last num_hidden_layers "$work/$size.json")
        for kernels in 11 own; do
            local attention=onnxruntime
            if [ $kernels = own ]; then attention=own; fi
            check "$size: decode by kernel, attention $kernels" env TROUPE_ATTENTION=$attention TROUPE_SDPA_KERNEL=${kernels/own/3} TROUPE_CUDA_GRAPHS=off ncu --csv \
                --metrics gpu__time_duration.sum --clock-control none --launch-skip $(((20 * layers + 12) * (2 * ramp + 30))) --launch-count 1720 \
                generate --policy "$work/$size" --device "$device" --batch $batch --context "$context" --branches 1 --steps 128 --repeats 1 || continue
            python3 "$here/kernel_times.py" sample_rows <"$work/out" | while IFS=$'\t' read -r name text; do row "    $name" "$text"; done
        done
    fi
}

# ---- teams ------------------------------------------------------------------------------------------------------
part_team() { # SIZE: a step in the paper's setting
    local size=$1 team started
    team=(--policy "tool=$work/$size" --policy "planner=$work/planner")
    check "$size: a policy for each of two agents" eval 'policy_of "$size" && { [ -d "$work/planner" ] || policy init "$work/planner" --from "$work/$size"; }' || return
    started=$SECONDS
    if check "$size: two agents, $episodes episodes, $turns turns, 4 branches, $tokens tokens" play team "$episodes" "$turns" "$tokens" "${team[@]}" &&
        check "$size: update of both" train team "${team[@]}"; then
        figure '  the whole step' "$((SECONDS - started))" s
        times team
        figure '  sampled over the whole step' "$(awk -v n="$(tokens_of team)" -v s="$((SECONDS - started))" 'BEGIN { printf "%.0f", n / (s > 0 ? s : 1) }')" tokens/s
    fi
    drop_optimizer "$size" planner
}
part_adapters() { # SIZE
    local size=$1 agent adapted
    adapted=(--policy "tool=$work/adapter-tool" --policy "planner=$work/adapter-planner")
    # New adapters are the identity: train them once, then check that rollout and update both apply them.
    if check "$size: an adapter for each of two agents" adapters_of "$size" &&
        check "$size: adapters: rollout, group, advantage" play adapters $((episodes / 4 + 1)) "$turns" "$tokens" "${adapted[@]}" &&
        check "$size: adapters: update" train adapters "${adapted[@]}" --lr 1e-2 &&
        check "$size: adapters: rollout after training" play adapters $((episodes / 4 + 1)) "$turns" "$tokens" "${adapted[@]}"; then
        check "$size: adapters: rollout and update agree" agree adapters "${adapted[@]}"
        for agent in tool planner; do
            grep "\"policy\":\"[^\"]*$agent\"" "$work/adapters.check" >"$work/gap"
            gaps "$size, $agent's adapter" "$work/gap"
        done
        part_roofline
        check "$size: adapters: decode and prefill" generate --policy "$work/adapter-tool" --device "$device" --batch "$batches" \
            --context "$context" --branches 4 --steps "$steps" --repeats "$repeats"
        grep '^{' "$work/out" >"$work/speeds"
        speeds "$work/speeds" "  $size, adapter:"
    fi
    check 'pipeline.sh, an adapter for each of two agents' env TROUPE_BIN="$here/bin" "$here/pipeline.sh" --run "$work/run-adapters" \
        --policies adapter-per-role --device "$device" --warmup 4 --steps 2 --tasks 2 --branches 2 --turns 1 --eval-every 0
}
part_loop() {
    check 'pipeline.sh --resident' env TROUPE_BIN="$here/bin" "$here/pipeline.sh" --run "$work/run" --device "$device" --resident "${loop[@]}" || return
    grep '^step ' "$work/out" | grep -v training | sed 's/^/  /' | tee -a "$table"
    figure '  pipeline.sh --resident, whole run' "$took" s
    if [ "$device" != sim ]; then
        figure '  success after 20 steps' "$(grep '^step 20: success on' "$work/out" | grep -o 'tasks [0-9.]*' | cut -d' ' -f2)" share
    fi
}

# ---- PyTorch ----------------------------------------------------------------------------------------------------
torch_is_there() {
    if [ "$device" = sim ]; then
        not_run 'PyTorch' 'it measures a GPU'
        return 1
    elif ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        not_run 'PyTorch' 'python3 has no torch that sees the GPU'
        return 1
    fi
}
part_torch-decode() { # SIZE
    torch_is_there || return 0
    configuration "$1" >"$work/$1.json"
    check "$1: PyTorch, static cache, compiled" python3 "$here/torch_decode.py" --config "$work/$1.json" --device "$device" \
        --batch "$few,$batches" --context "$context" --steps "$steps" --repeats "$repeats"
    grep '^{' "$work/out" >"$work/speeds"
    speeds "$work/speeds" "  PyTorch, $1:"
}
part_torch-continuous() { # SIZE
    local on=$device
    if [ "$device" = sim ]; then on=cpu; else torch_is_there || return 0; fi
    if ! python3 -c 'from transformers import ContinuousBatchingConfig' 2>/dev/null; then
        not_run 'transformers, continuous batching' 'python3 has no transformers with it'
        return 0
    fi
    part_roofline
    configuration "$1" >"$work/$1.json"
    check "$1: transformers, continuous batching, CUDA graphs" python3 "$here/torch_continuous.py" --config "$work/$1.json" --device "$on" \
        --batch "$batches" --branches 1,4 --context "$context" --steps "$steps" --ramp "$ramp" --repeats "$repeats"
    grep '^{' "$work/out" >"$work/speeds"
    speeds "$work/speeds" "  transformers, $1:"
}
part_torch-train() { # SIZE
    local size=$1 shape layout
    torch_is_there || return 0
    part_roofline
    configuration "$size" >"$work/$size.json"
    for shape in $shapes; do
        # At most half the groups of our micro-batch, because autograd keeps more of them in memory.
        for layout in separate shared; do
            check "$size: PyTorch, $shape, $layout" python3 "$here/torch_train.py" --config "$work/$size.json" --device "$device" --shape "$shape" \
                --groups 2 --layouts $layout --repeats "$repeats" || continue
            grep '^{' "$work/out" | tail -1 >"$work/line"
            case $(cat "$work/line") in
                *'"skipped"'*) row "  PyTorch, $layout" "not run: $(sed 's/.*"skipped": "\([^"]*\)".*/\1/' "$work/line")" ;;
                *) figure "  PyTorch, $size, $shape, $layout" "$(sed 's/.*"tokens_per_second": \([0-9]*\).*/\1/' "$work/line")" tokens/s \
                    "$(share 0 "$(sed 's/.*"operations": \([0-9]*\).*/\1/' "$work/line")" "$(sed 's/.*"seconds": \([0-9.]*\).*/\1/' "$work/line")")" ;;
            esac
        done
    done
}
