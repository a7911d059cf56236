#!/bin/sh
# Builds what is measured and compares it with the yardsticks: markdown on stdout, progress on stderr.
#
#   benches/run.sh > table.md                  # a quarter of an hour at most on a machine that is otherwise idle
#   benches/run.sh --rounds 1 --peers hand     # a quick look
#
# PYTHON names an interpreter with torch, transformers, trl, datasets and safetensors (benches/README.md); default python3.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export ORT_DISABLE_TELEMETRY=1 PYTHONDONTWRITEBYTECODE=1

cargo build --release --quiet -p policy -p envs -p rollout -p update >&2

# The path of a bench executable, from cargo's own messages.
executable() {
    cargo bench --quiet -p "$1" --bench "$2" --no-run --message-format=json 2>/dev/null |
        grep '"kind":\["bench"\]' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}
generate=$(executable rollout generate)
update=$(executable update update)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cc -shared -fPIC -O2 -o "$folder/mkl_avx512.so" benches/mkl_avx512.c

"$python" benches/compare.py --binaries target/release --generate "$generate" --update "$update" \
    --mkl "$folder/mkl_avx512.so" "$@"
