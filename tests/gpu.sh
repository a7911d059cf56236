#!/usr/bin/env bash
# tests/gpu.sh: all checks and measurements that need a GPU; the machine with the GPU needs no Rust.
set -uo pipefail
export ORT_DISABLE_TELEMETRY=1 LC_ALL=C

usage() {
    cat <<'TEXT'
Runs every check and measurement that needs a GPU and writes a dated table.

  DIR/gpu.sh [--device cuda:N] [--parts LIST] [--sizes LIST]   on the GPU: prints a table and writes it to DIR/gpu-DATE.txt
  DIR/gpu.sh --device sim                                      the same steps without a GPU, in the simulator and with tiny sizes
DIR is made by tests/gpu_pack.sh DIR where Rust is.

  --table FILE   write the table here, row by row; FILE.log gets all output
  --limit N      time limit of one row in seconds [default: 540]
  --within N     start no row after N seconds, and end the last one then [default: no limit]
  --keep DIR     keep the random policies in DIR for the next run

Parts, in this order, so that problems show in the first minute [default: all]:
  facts      the GPU, its driver, the CUDA libraries that the programs find
  tests      every device test on the device
  sanitizer  the small tests again under compute-sanitizer, if installed
  roofline   bandwidth of a copy and FLOP/s of a matrix product, the reference of the shares below
  step       for each size a random policy with a full vocabulary: one training step, and whether rollout and update agree
             on log-probabilities
  decode     decode steps and prefill at batch 1, 16, 64 and 256 and context 512 and 1536, with and without shared prompts; with
             each of ONNX Runtime's kernels for attention, and without CUDA graphs
  train      micro-batches of `update` in the shapes 4096,512,8 and 1024,1024,4 (prompt, completion, completions of a prompt), less
             the first: their time, and their operations as a share of the measured matrix product
  profile    the same shapes once more, by kernel
  kernels    a decode step by kernel, with each of ONNX Runtime's kernels for attention, by Nsight Compute if installed
  team       32 episodes of 4 turns, 2 agents with a policy each, 4 branches: time of a step by phase
  adapters   two agents, each an adapter of one base, in the same batches: whether rollout and update agree, the cost of a
             decode step, and a run of pipeline.sh
  loop       pipeline.sh --resident: a team of tiny policies learns Plan-Path for 20 steps, after a short warm-up on the CPU
  torch-decode  decode steps in PyTorch (static cache, compiled), if installed
  torch-train   a micro-batch of the same shapes in PyTorch (compiled; with prompts repeated, and shared by flex_attention), if installed
Sizes: 0.6B 1.7B 8B (as Qwen3), tiny [default: 0.6B,1.7B; with sim: tiny].
A failure does not stop the rest; the exit code is 1 if anything failed.
TEXT
}
stop() { # MESSAGE HINT [CODE]
    printf 'gpu.sh: %s\nhint: %s\n' "$1" "$2" >&2
    exit "${3:-2}"
}

device=cuda parts=facts,tests,sanitizer,roofline,step,decode,train,profile,kernels,team,adapters,loop,torch-decode,torch-train sizes=''
table='' limit=540 within='' keep=''
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --device | --parts | --sizes | --table | --limit | --within | --keep) [ $# -ge 2 ] || stop "$1 needs a value" 'gpu.sh --help' ;;
        *) stop "unknown argument $1" 'gpu.sh --help' ;;
    esac
    case $1 in
        --device) device=$2 ;;
        --parts) parts=$2 ;;
        --sizes) sizes=$2 ;;
        --table) table=$2 ;;
        --limit) limit=$2 ;;
        --within) within=$2 ;;
        --keep) keep=$2 ;;
    esac
    shift 2
done
case $limit in '' | *[!0-9]*) stop "--limit $limit: not a number of seconds" 'gpu.sh --help' ;; esac
case $within in *[!0-9]*) stop "--within $within: not a number of seconds" 'gpu.sh --help' ;; esac
case $device in
    sim) batches=1,4 contexts=48 steps=4 repeats=1 episodes=1 turns=1 tokens=4 vocabulary=2048 tokenizer=tokenizer/small
        shapes='80,8,4' batch_tokens=120 tiers='none'
        loop=(--warmup 4 --steps 1 --tasks 2 --branches 2 --turns 1 --eval-every 0) ;;
    cuda*) batches=1,16,64,256 contexts=512,1536 steps=64 repeats=3 episodes=32 turns=4 tokens=256 vocabulary=151936 tokenizer=tokenizer
        shapes='4096,512,8 1024,1024,4' batch_tokens=32768 tiers='11 3 3-eager'
        loop=(--warmup 600 --steps 20 --eval-every 20) ;;
    *) stop "--device $device: neither cuda, cuda:N nor sim" 'gpu.sh --help' ;;
esac
[ -n "$sizes" ] || case $device in sim) sizes=tiny ;; *) sizes=0.6B,1.7B ;; esac

# ---- the table ----------------------------------------------------------------------------------------------
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -x "$here/bin/rollout" ] || stop "$here has no programs" 'create it with tests/gpu_pack.sh DIR'
export PATH=$here/bin:$PATH
if [ -d "$here/cache" ]; then export XDG_CACHE_HOME=$here/cache; fi
if [ -n "$keep" ]; then
    mkdir -p "$keep" && work=$(cd "$keep" && pwd) || exit 74
    # Whatever is not a policy is from an earlier run.
    find "$work" -mindepth 1 -maxdepth 1 \( -type f -o -name 'run*' \) -exec rm -rf {} +
else
    work=$(mktemp -d) || exit 74
fi
making=''
leave() {
    [ -z "$making" ] || kill -- "-$making" 2>/dev/null
    [ -n "$keep" ] || rm -rf "$work"
}
trap leave EXIT
table=${table:-$here/gpu-$(date -u +%Y-%m-%dT%H%M%SZ).txt}
: >>"$table" || exit 74
failed=0 bytes=0 operations=0
row() { printf '%-56s %s\n' "$1" "$2" | tee -a "$table"; }
# Each check is a process group, so that all of it can be killed.
set -m
check() { # NAME COMMAND...: one row, and the end of the output on failure
    local name=$1 started=$SECONDS code job watcher limit=$limit
    shift
    if [ -n "$within" ]; then
        if [ "$SECONDS" -ge "$within" ]; then
            row "$name" "not run: $within s are over"
            return 75
        fi
        if [ $((within - SECONDS)) -lt "$limit" ]; then limit=$((within - SECONDS)); fi
    fi
    "$@" >"$work/out" 2>&1 </dev/null &
    job=$!
    (sleep "$limit" && kill -KILL -- "-$job") >/dev/null 2>&1 &
    watcher=$!
    { wait "$job"; } 2>/dev/null
    code=$?
    { kill -KILL -- "-$watcher" && wait "$watcher"; } 2>/dev/null
    { printf '==== %s: exit code %s after %s s\n' "$name" "$code" $((SECONDS - started)) && cat "$work/out"; } >>"$table.log"
    if [ $code = 0 ]; then
        row "$name" "ok, $((SECONDS - started)) s"
    else
        if [ $((SECONDS - started)) -ge "$limit" ]; then name="$name, killed after $limit s"; fi
        row "$name" "FAILED with exit code $code"
        tail -n 25 "$work/out" | sed 's/^/    /' | tee -a "$table"
        failed=1
    fi
    return $code
}
wanted() { case ,$parts, in *,"$1",*) ;; *) return 1 ;; esac }
number() { # NAME FILE: sum of the numbers of that name in the last line, in its timing object if it has one
    tail -n 1 "$2" | sed 's/.*"timing"://' | grep -o "\"$1\":[-0-9.e+]*" | cut -d: -f2 | awk '{ n += $1 } END { if (NR) print n; else print "unknown" }'
}
last() { # NAME FILE: the last number of that name
    grep -o "\"$1\":[-0-9.e+]*" "$2" | tail -1 | cut -d: -f2 | grep . || echo unknown
}
share() { # BYTES OPERATIONS SECONDS: roofline time as a share of the measured time
    awk -v b="$1" -v o="$2" -v s="$3" -v bandwidth="$bytes" -v speed="$operations" 'BEGIN {
        if (bandwidth * speed == 0 || s == 0) { print "unknown"; exit }
        least = b / bandwidth; if (o / speed > least) least = o / speed
        printf "%.0f %%", 100 * least / s }'
}

# ---- random policies ----------------------------------------------------------------------------------------
configuration() { # SIZE
    local hidden inner layers=28 heads=16 kv_heads=8 head=128 tied=true
    case $1 in
        tiny) hidden=64 inner=128 layers=2 heads=4 kv_heads=2 head=32 ;;
        0.6B) hidden=1024 inner=3072 ;;
        1.7B) hidden=2048 inner=6144 ;;
        8B) hidden=4096 inner=12288 layers=36 heads=32 tied=false ;;
        *) echo "no such size: $1"; return 2 ;;
    esac
    cat <<JSON
{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":$hidden,"intermediate_size":$inner,
"num_hidden_layers":$layers,"num_attention_heads":$heads,"num_key_value_heads":$kv_heads,"head_dim":$head,
"vocab_size":$vocabulary,"max_position_embeddings":40960,"rms_norm_eps":1e-6,"rope_theta":1000000,"hidden_act":"silu",
"attention_bias":false,"tie_word_embeddings":$tied,"torch_dtype":"bfloat16"}
JSON
}
make_policy() { # SIZE: random weights, and a tokenizer of the same vocabulary size
    local made=$work/unfinished-$1
    configuration "$1" >"$work/$1.json" || return
    [ -d "$work/$1" ] && return 0
    rm -rf "$made"
    policy init "$made" --config "$work/$1.json" --seed 1 || return
    cp "$here/$tokenizer"/*.json "$made/current/" &&
        sed -i -E "s/\"(eos|pad)_token_id\": *[0-9]+/\"\1_token_id\": $((vocabulary - 291))/" "$made/current/config.json" &&
        policy check "$made" && mv "$made" "$work/$1"
}
# A policy of 1.7B takes a minute of one core: the first rows are measured meanwhile.
if wanted step || wanted decode || wanted train || wanted profile || wanted kernels || wanted team || wanted adapters; then
    (for size in ${sizes//,/ }; do
        make_policy "$size" >"$work/making-$size" 2>&1
        echo $? >"$work/made-$size"
    done) </dev/null &
    making=$!
fi

if wanted facts; then
    row 'date' "$(date -u +%Y-%m-%d)"
    row 'device' "$device"
    row 'GPU' "$(nvidia-smi --query-gpu=name,memory.total,memory.free,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null | head -1 | grep . || echo 'no nvidia-smi')"
    row 'processor' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores"
    check 'rollout --version' rollout --version
    sed 's/^/    /' "$work/out" | tee -a "$table"
    check 'update --version' update --version
    sed 's/^/    /' "$work/out" | tee -a "$table"
fi

# ---- tests --------------------------------------------------------------------------------------------------
export TROUPE_TEST_DEVICE=$device TROUPE_GOLDEN=$here/golden TROUPE_TEST_PROGRAMS=$here/bin
small=(tests/device 'tests/update kernels_operations:: attention::')
ran() { # COMMAND...: a test program; a filter that no test's name has is a failure too
    local printed code
    printed=$("$@" 2>&1)
    code=$?
    printf '%s\n' "$printed"
    case $printed in *'ok. 0 passed'*) return 1 ;; esac
    return $code
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
if wanted tests; then
    check 'tests: device' ran "$here/tests/device" --test-threads 1
    check 'tests: kernels of update' ran "$here/tests/update" --test-threads 1 kernels_operations:: attention::
    check 'tests: sampler of rollout' ran "$here/tests/rollout-sampler" --test-threads 1 device::tests::sampling
    check 'tests: decoders of update' ran "$here/tests/update" --test-threads 1 device::
    check 'tests: the program update' ran "$here/tests/update" --test-threads 1 device_program::
fi
if wanted sanitizer; then
    if [ "$device" = sim ]; then
        row 'compute-sanitizer' 'not run: the simulator checks memory and barriers itself'
    elif ! command -v compute-sanitizer >/dev/null; then
        row 'compute-sanitizer' 'not run: it is not installed (it comes with the CUDA toolkit)'
    else
        for tool in memcheck racecheck synccheck; do
            for test in "${small[@]}"; do
                read -ra words <<<"$test"
                limit=120 check "compute-sanitizer $tool: ${test#tests/}" sanitized "$tool" "$here/${words[0]}" --test-threads 1 "${words[@]:1}"
            done
            limit=120 check "compute-sanitizer $tool: sampler" sanitized "$tool" "$here/tests/rollout-sampler" \
                --test-threads 1 the_device_draws_what_the_cpu_draws
        done
    fi
fi

# ---- roofline -----------------------------------------------------------------------------------------------
if wanted roofline || wanted decode || wanted step || wanted train || wanted adapters || wanted torch-train; then
    if check 'roofline' roofline "$device"; then
        bytes=$(number bytes_per_second "$work/out") operations=$(number operations_per_second "$work/out")
        row '  copy, GB/s read and written' "$(awk -v x="$bytes" 'BEGIN { printf "%.1f", x / 1e9 }')"
        row '  bf16 matrix product, TFLOP/s' "$(awk -v x="$operations" 'BEGIN { printf "%.3g", x / 1e12 }')"
    fi
fi

# ---- a step ------------------------------------------------------------------------------------------------
policy_of() { # SIZE: waits until it is made
    until [ -e "$work/made-$1" ]; do
        kill -0 "$making" 2>/dev/null || [ -e "$work/made-$1" ] || { echo "what makes $1 was killed"; return 1; }
        sleep 0.2
    done
    cat "$work/making-$1"
    return "$(cat "$work/made-$1")"
}
play() { # NAME EPISODES TURNS TOKENS POLICIES...: a rollout and its advantages. The reward is the branch number, so that
    # there is something to learn from policies that never solve a task
    local name=$1 episodes=$2 turns=$3 tokens=$4
    shift 4
    envs tasks plan-path --count "$episodes" --seed 7 |
        rollout "$@" --branches 4 --turns "$turns" --max-tokens "$tokens" --seed 1 --step 1 --device "$device" --quiet |
        tee "$work/$name.rollout" |
        awk '/"type":"sample"/ { match($0, /"branch":[0-9]+/); sub(/"reward":[^,}]*/, "\"reward\":" substr($0, RSTART + 9, RLENGTH - 9)) } { print }' |
        group --quiet | advantage --quiet >"$work/$name.samples"
}
train() { # NAME POLICIES...
    local name=$1
    shift
    update "$@" --device "$device" --quiet <"$work/$name.samples" >"$work/$name.metrics" &&
        grep '"type":"metrics"' "$work/$name.metrics" >"$work/$name.measured"
}
drop_optimizer() { # SIZES...: optimizer state takes ten bytes a weight, is not needed again and would fill a small disk
    local size
    for size; do rm -f "$work/$size"/step-*/optimizer.safetensors "$work/$size"/step-*/trainer_state.json; done
}
agree() { # NAME POLICIES...
    local name=$1
    shift
    update "$@" --check --device "$device" --quiet <"$work/$name.samples" | tee "$work/$name.check"
    return "${PIPESTATUS[0]}"
}
times() { # NAME: time of a step by phase
    local field
    row '  rollout, s' "$(number seconds "$work/$1.rollout")"
    for field in load_seconds model_seconds prefill_seconds decode_seconds environment_seconds text_seconds waiting_seconds; do
        row "    $field" "$(number $field "$work/$1.rollout")"
    done
    row '  update, s' "$(number seconds "$work/$1.metrics")"
    sed 's/.*"timing"://' "$work/$1.measured" | grep -o '"[a-z_]*_seconds":[-0-9.e+]*' | tr -d '"' | while IFS=: read -r field value; do
        row "    $field" "$value"
    done
}
tokens_of() { # NAME
    grep -o '"completion_ids":\[[^]]*\]' "$work/$1.rollout" | tr -cd ',\n' | awk '{ n += length + 1 } END { print n + 0 }'
}

if wanted step; then
    for size in ${sizes//,/ }; do
        check "$size: random policy" policy_of "$size" || continue
        policy=(--policy "$work/$size")
        check "$size: rollout, group, advantage" play "$size" $((episodes / 4 + 1)) "$turns" "$tokens" "${policy[@]}" || continue
        check "$size: rollout and update agree" agree "$size" "${policy[@]}"
        row '  largest gap of log-probabilities (goal: 0.05)' "$(last sampling/logp_difference_max "$work/$size.check")"
        row '  mean gap (goal: 0.003)' "$(last sampling/logp_difference_mean "$work/$size.check")"
        check "$size: update" train "$size" "${policy[@]}"
        code=$?
        drop_optimizer "$size"
        [ $code = 0 ] || continue
        times "$size"
        row '  sampled tokens' "$(tokens_of "$size")"
        speed=$(last unique_tokens_per_second "$work/$size.measured")
        row '  update, unique tokens/s' "$speed"
    done
fi

# ---- decode and prefill -------------------------------------------------------------------------------------
speeds() { # FILE PREFIX: one row per JSON object
    local line name
    while read -r line; do
        printf '%s\n' "$line" >"$work/line"
        name="$2 $(grep -o '"measure":"[a-z]*"' "$work/line" | cut -d'"' -f4), context $(number context "$work/line")"
        case $line in *'"batch"'*) name="$name, batch $(number batch "$work/line"), $(number branches "$work/line") share a prompt" ;; esac
        case $line in
            *'"skipped"'*) row "$name" "$(sed 's/.*"skipped":"\([^"]*\)".*/not run: \1/' "$work/line")" ;;
            *'"bytes"'*) row "$name" "$(number tokens_per_second "$work/line" | awk '{ printf "%.0f", $1 }') tokens/s, $(share "$(number bytes "$work/line")" "$(number operations "$work/line")" "$(number seconds "$work/line")") of the roofline" ;;
            *) row "$name" "$(number tokens_per_second "$work/line" | awk '{ printf "%.0f", $1 }') tokens/s" ;;
        esac
    done <"$1"
}
if wanted decode; then
    for size in ${sizes//,/ }; do
        policy_of "$size" >"$work/out" 2>&1 || { row "$size: decode" 'FAILED: no policy'; failed=1; continue; }
        for tier in $tiers; do
            # The kernels that ONNX Runtime's attention may choose from, and whether steps are CUDA graphs.
            kernels=${tier%-eager} graphs=on
            if [ "$tier" != "$kernels" ]; then graphs=off; fi
            if [ "$tier" = none ]; then kernels=''; fi
            name="$size: decode and prefill${kernels:+, sdpa_kernel $kernels}"
            if [ $graphs = off ]; then name="$name, no CUDA graphs"; fi
            if [ "$kernels" = 11 ] && ! TROUPE_SDPA_KERNEL=11 rollout --version | grep -q 'sdpa_kernel 11$'; then
                row "$name" 'not run: no cuDNN 9.5 or later is found'
                continue
            fi
            if check "$name" env TROUPE_SDPA_KERNEL="$kernels" TROUPE_CUDA_GRAPHS=$graphs generate --policy "$work/$size" --device "$device" \
                --batch "$batches" --context "$contexts" --branches 4 --steps "$steps" --repeats "$repeats" && [ "$device$graphs" = "${device#sim}on" ]; then
                row '  decode steps replay CUDA graphs' "$(sed -n 's/.*without a CUDA graph, which is slower: /not all: /p' "$work/out" | grep . || echo yes)"
            fi
            grep '^{' "$work/out" >"$work/speeds"
            speeds "$work/speeds" " "
        done
    done
fi

# ---- training in fixed shapes ---------------------------------------------------------------------------------
# Metrics of an update of N micro-batches, into NAME.measured; each has as many groups as fit.
shaped() { # NAME SIZE SHAPE N
    local name=$1 policy=$work/$2 shape=$3 groups
    groups=$(python3 "$here/update_shapes.py" cost "$policy" --shape "$shape" --tokens "$batch_tokens" | tee "$work/cost" | grep -o '"groups": [0-9]*' | cut -d' ' -f2)
    python3 "$here/update_shapes.py" samples "$policy" --shape "$shape" --groups $((groups * $4)) |
        update --policy "$policy" --objective nll --optimizer sgd --lr 1e-9 --max-tokens-per-batch "$batch_tokens" --device "$device" --quiet |
        grep '"type":"metrics"' >"$work/$name.measured" || return
    [ "$(last unique_tokens "$work/$name.measured")" = $(($(cost nodes) * $4)) ] || { echo 'update counts other nodes'; return 1; }
}
passes() { # NAME: seconds of the passes
    awk -v f="$(last forward_seconds "$work/$1.measured")" -v b="$(last backward_seconds "$work/$1.measured")" 'BEGIN { print f + b }'
}
cost() { # NAME: a number of the shape that was measured last
    grep -o "\"$1\": [0-9]*" "$work/cost" | cut -d' ' -f2
}
if wanted train; then
    for size in ${sizes//,/ }; do
        check "$size: random policy" policy_of "$size" || continue
        for shape in $shapes; do
            # The first micro-batch compiles, loads and chooses: what counts is how much longer four take than one.
            check "$size: update, $shape: one micro-batch" shaped one "$size" "$shape" 1 &&
                check "$size: update, $shape: four" shaped four "$size" "$shape" 4 || continue
            seconds=$(awk -v one="$(passes one)" -v four="$(passes four)" 'BEGIN { print (four - one) / 3 }')
            row '  a micro-batch, s' "$seconds"
            row '  nodes, and those that are scored' "$(cost nodes), $(cost scored)"
            row '  nodes/s, and tokens/s with prompts counted in each completion' \
                "$(awk -v n="$(cost nodes)" -v t="$(cost tokens)" -v s="$seconds" 'BEGIN { if (s > 0) printf "%.0f, %.0f", n / s, t / s; else print "unknown" }')"
            row '  share of the measured matrix product' "$(share 0 "$(cost operations)" "$seconds")"
            row '  of its operations attention, head' \
                "$(awk -v a="$(cost attention)" -v h="$(cost head)" -v o="$(cost operations)" 'BEGIN { printf "%.0f %%, %.0f %%", 100 * a / o, 100 * h / o }')"
        done
    done
fi
if wanted profile; then
    size=${sizes%%,*}
    check "$size: random policy" policy_of "$size" &&
        for shape in $shapes; do
            TROUPE_KERNEL_TIMES=$work/kernels check "$size: update, $shape: by kernel" shaped profile "$size" "$shape" 1
            sed -E 's/.*"kernel":"([^"]*)","launches":([0-9]*),"seconds":([0-9.]*).*/\1\t\3 s in \2 launches/' "$work/kernels" | head -20 |
                while IFS=$'\t' read -r name text; do row "    $name" "$text"; done
        done
fi

if wanted kernels; then
    size=${sizes%%,*} context=1536 batch=64
    if ! command -v ncu >/dev/null || [ "$device" = sim ]; then
        row 'decode by kernel' 'not run: Nsight Compute (ncu) is not installed, or there is no GPU'
    elif check "$size: random policy" policy_of "$size"; then
        # The runs of the prompts, twice, are skipped: after these all rows decode.
        ramp=$((batch * context / 4096 + 2)) layers=$(last num_hidden_layers "$work/$size.json")
        for kernels in 11 3; do
            check "$size: decode by kernel, sdpa_kernel $kernels" env TROUPE_SDPA_KERNEL=$kernels TROUPE_CUDA_GRAPHS=off ncu --csv \
                --metrics gpu__time_duration.sum --clock-control none --launch-skip $(((20 * layers + 12) * (2 * ramp + 30))) --launch-count 1720 \
                generate --policy "$work/$size" --device "$device" --batch $batch --context $context --branches 1 --steps 128 --repeats 1 || continue
            python3 "$here/kernel_times.py" sample_rows <"$work/out" | while IFS=$'\t' read -r name text; do row "    $name" "$text"; done
        done
    fi
fi

# ---- a step in the paper's setting --------------------------------------------------------------------------
if wanted team; then
    size=${sizes%%,*}
    if check "$size: a policy for each of two agents" eval 'policy_of "$size" && { [ -d "$work/planner" ] || policy init "$work/planner" --from "$work/$size"; }'; then
        team=(--policy "tool=$work/$size" --policy "planner=$work/planner")
        started=$SECONDS
        if check "$size: two agents, $episodes episodes, $turns turns, 4 branches, $tokens tokens" play team "$episodes" "$turns" "$tokens" "${team[@]}" &&
            check "$size: update of both" train team "${team[@]}"; then
            row '  the whole step, s' "$((SECONDS - started))"
            times team
            row '  sampled tokens/s over the whole step' "$(awk -v n="$(tokens_of team)" -v s="$((SECONDS - started))" 'BEGIN { printf "%.0f", n / (s > 0 ? s : 1) }')"
        fi
        drop_optimizer "$size" planner
    fi
fi

# ---- one adapter per agent --------------------------------------------------------------------------------------
adapters_of() { # SIZE: two adapters of different ranks and targets
    policy_of "$1" && rm -rf "$work/adapter-tool" "$work/adapter-planner" &&
        policy init "$work/adapter-tool" --from "$work/$1" --adapter rank=16,alpha=32 --seed 1 &&
        policy init "$work/adapter-planner" --from "$work/$1" --adapter rank=8,alpha=16,targets=q_proj+v_proj+down_proj --seed 2
}
if wanted adapters; then
    size=${sizes%%,*}
    adapted=(--policy "tool=$work/adapter-tool" --policy "planner=$work/adapter-planner")
    # New adapters are the identity: train them once, then check that rollout and update both apply them.
    if check "$size: an adapter for each of two agents" adapters_of "$size" &&
        check "$size: adapters: rollout, group, advantage" play adapters $((episodes / 4 + 1)) "$turns" "$tokens" "${adapted[@]}" &&
        check "$size: adapters: update" train adapters "${adapted[@]}" --lr 1e-2 &&
        check "$size: adapters: rollout after training" play adapters $((episodes / 4 + 1)) "$turns" "$tokens" "${adapted[@]}"; then
        check "$size: adapters: rollout and update agree" agree adapters "${adapted[@]}"
        for agent in tool planner; do
            grep "\"policy\":\"[^\"]*$agent\"" "$work/adapters.check" >"$work/gap"
            row "  $agent: largest gap of log-probabilities (goal: 0.05)" "$(last sampling/logp_difference_max "$work/gap")"
            row "  $agent: mean gap (goal: 0.003)" "$(last sampling/logp_difference_mean "$work/gap")"
        done
        check "$size: adapters: decode and prefill" generate --policy "$work/adapter-tool" --device "$device" --batch "$batches" \
            --context "${contexts%%,*}" --branches 4 --steps "$steps" --repeats "$repeats"
        grep '^{' "$work/out" >"$work/speeds"
        speeds "$work/speeds" '  adapter,'
    fi
    check 'pipeline.sh, an adapter for each of two agents' env TROUPE_BIN="$here/bin" "$here/pipeline.sh" --run "$work/run-adapters" \
        --policies adapter-per-role --device "$device" --warmup 4 --steps 2 --tasks 2 --branches 2 --turns 1 --eval-every 0
fi

# ---- the loop -----------------------------------------------------------------------------------------------
if wanted loop; then
    check 'pipeline.sh --resident' env TROUPE_BIN="$here/bin" "$here/pipeline.sh" --run "$work/run" --device "$device" --resident "${loop[@]}" &&
        grep '^step ' "$work/out" | grep -v training | sed 's/^/  /' | tee -a "$table"
fi

# ---- PyTorch ------------------------------------------------------------------------------------------------
if wanted torch-decode || wanted torch-train; then
    if [ "$device" = sim ]; then
        row 'PyTorch' 'not run in the simulator'
        sizes=''
    elif ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        row 'PyTorch' 'not run: python3 has no torch that sees the GPU'
        sizes=''
    fi
fi
if wanted torch-decode; then
    for size in ${sizes//,/ }; do
        configuration "$size" >"$work/$size.json"
        check "$size: PyTorch, static cache, compiled" python3 "$here/torch_decode.py" --config "$work/$size.json" --device "$device" \
            --batch "$batches" --context "$contexts" --steps "$steps" --repeats "$repeats"
        grep '^{' "$work/out" >"$work/speeds"
        speeds "$work/speeds" '  PyTorch'
    done
fi
if wanted torch-train; then
    for size in ${sizes//,/ }; do
        configuration "$size" >"$work/$size.json"
        for shape in $shapes; do
            # Half as many groups as in our micro-batch at most: autograd keeps more of them.
            for layout in separate shared; do
                check "$size: PyTorch, $shape, $layout" python3 "$here/torch_train.py" --config "$work/$size.json" --device "$device" --shape "$shape" \
                    --groups 2 --layouts $layout --repeats "$repeats" || continue
                grep '^{' "$work/out" | tail -1 >"$work/line"
                case $(cat "$work/line") in
                    *'"skipped"'*) row "  PyTorch, $layout" "not run: $(sed 's/.*"skipped": "\([^"]*\)".*/\1/' "$work/line")" ;;
                    *) row "  PyTorch, $layout: tokens/s, share of the measured matrix product" \
                        "$(sed 's/.*"tokens_per_second": \([0-9]*\).*/\1/' "$work/line"), $(share 0 "$(sed 's/.*"operations": \([0-9]*\).*/\1/' "$work/line")" "$(sed 's/.*"seconds": \([0-9.]*\).*/\1/' "$work/line")")" ;;
                esac
            done
        done
    done
fi
row 'table' "$table"
exit "$failed"
