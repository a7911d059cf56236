#!/usr/bin/env bash
# tests/gpu_pack.sh: packs what tests/gpu.sh needs on a machine that has a GPU and no Rust.
set -uo pipefail
export LC_ALL=C

usage() {
    cat <<'TEXT'
Builds programs and tests and packs all that is needed on a machine with a GPU.

  tests/gpu_pack.sh DIR [--profile dev]   into DIR; DIR/gpu.sh --help says what it does there
  tests/gpu_pack.sh --archive DIR         DIR with a small ONNX Runtime as DIR.tar.xz, less than 60 MB: for machines without a network

If the machine with the GPU is offline and has no CUDA libraries either, run XDG_CACHE_HOME=DIR/cache ./scripts/fetch-cuda.sh before DIR is copied.
TEXT
}
stop() { # MESSAGE HINT [CODE]
    printf 'gpu_pack.sh: %s\nhint: %s\n' "$1" "$2" >&2
    exit "${3:-2}"
}

pack() { # DIR
    local root target messages name executable
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    mkdir -p "$1/bin" "$1/scripts" "$1/tests" "$1/tokenizer" || exit 74
    cd "$root" || exit 74
    # Always the whole workspace, and an example with its programs: crates would be built again with fewer features of
    # their dependencies.
    cargo build --profile "$profile" --workspace --bins --example roofline --locked --quiet || exit 1
    target=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    case $profile in dev) target=$target/debug ;; *) target=$target/$profile ;; esac
    for name in envs policy rollout group advantage update report troupe-pipeline; do cp "$target/$name" "$1/bin/" || exit 74; done
    messages=$1/messages.json
    {
        cargo build --profile "$profile" --workspace --example roofline --bench generate --locked --quiet --message-format=json &&
            cargo test --no-run --workspace --lib --test suite --locked --quiet --message-format=json
    } >"$messages" || exit 1
    while read -r name package kind target; do
        executable=$(grep -F "/$package#" "$messages" | grep -F "\"kind\":[\"$kind\"]" | grep -F "\"name\":\"$target\"" |
            sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
        [ -x "$executable" ] || stop "cargo built no $target of $package" "see its messages in $messages" 1
        cp "$executable" "$1/$name" || exit 74
    done <<'LIST'
bin/roofline device example roofline
bin/generate rollout bench generate
tests/device device test suite
tests/update update test suite
tests/rollout-sampler rollout lib rollout
LIST
    rm -f "$messages"
    if command -v strip >/dev/null; then strip "$1"/bin/* "$1"/tests/*; fi
    cp -r tests/golden "$1/" || exit 74
    python3 tests/full_tokenizer.py "$1/tokenizer" 151936 && python3 tests/full_tokenizer.py "$1/tokenizer/small" 2048 || exit 1
    cp scripts/fetch-cuda.sh scripts/fetch-runtime.sh "$1/scripts/" || exit 74
    cp pipeline.sh bench/speed/torch_continuous.py bench/speed/torch_decode.py bench/speed/torch_train.py \
        bench/speed/update_shapes.py tests/slim_provider.py tests/kernel_times.py tests/gpu.sh tests/gpu_policies.sh tests/gpu_parts.sh "$1/" || exit 74
    printf 'gpu_pack.sh: %s is ready, %s; run %s/gpu.sh on the machine with the GPU\n' "$1" "$(du -sh "$1" | cut -f1)" "$1"
}

# Kernels of the provider that a visit never starts, by name: other operators, head sizes that no family has, and in f16 head
# sizes that no row measures.
never='moe|int4|fpA_in|device_kernel|traitsILi(32|256)E.*half_t|ELi96ELi|ELi192ELi|batched_impl.*half_t|LinearAttention|masked_multihead|TopK|FillOutput'
archive() { # DIR
    local libraries name size
    [ -x "$1/gpu.sh" ] || stop "$1 was not made by this script" 'tests/gpu_pack.sh DIR'
    libraries=$("$1/scripts/fetch-cuda.sh" onnxruntime) || exit 69
    # The CUDA provider is by far the largest file, so it is stripped.
    for name in "$libraries"/onnxruntime-gpu-*; do
        name=${name##*/}
        mkdir -p "$1/cache/troupe/cuda-13.0/$name" || exit 74
        cp "$libraries/$name"/libonnxruntime.so.* "$libraries/$name"/libonnxruntime_providers_shared.so "$1/cache/troupe/cuda-13.0/$name/" &&
            python3 "$1/slim_provider.py" "$libraries/$name/libonnxruntime_providers_cuda.so" \
                "$1/cache/troupe/cuda-13.0/$name/libonnxruntime_providers_cuda.so" --without "$never" || exit 1
    done
    tar -C "$1" -c . | xz -9 >"$1.tar.xz" || exit 74
    size=$(wc -c <"$1.tar.xz")
    printf 'gpu_pack.sh: %s: %s bytes\n' "$1.tar.xz" "$size"
    [ "$size" -lt 60000000 ] || stop "$1.tar.xz is larger than 60 MB" 'leave more kernels out' 1
}

directory='' archiving=no profile=release
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --archive) archiving=yes ;;
        --profile) [ $# -ge 2 ] || stop '--profile needs a value' 'gpu_pack.sh --help'; profile=$2 && shift ;;
        -*) stop "unknown argument $1" 'gpu_pack.sh --help' ;;
        *) directory=${1%/} ;;
    esac
    shift
done
[ -n "$directory" ] || stop 'no folder is named' 'gpu_pack.sh --help'
mkdir -p "$directory" && directory=$(cd "$directory" && pwd) || exit 74
if [ $archiving = yes ]; then archive "$directory"; else pack "$directory"; fi
