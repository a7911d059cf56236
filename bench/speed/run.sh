#!/bin/sh
# Builds the programs and compares them with the yardsticks: markdown on stdout, progress on stderr.
#
#   bench/speed/run.sh > table.md                  # a quarter of an hour at most on a machine that is otherwise idle
#   bench/speed/run.sh --rounds 1 --peers hand     # a quick look
#
# PYTHON names an interpreter with torch, transformers, trl, datasets and safetensors (bench/speed/README.md);
# default python3. TROUPE_BIN names a folder with built programs. If that is target/debug, our benches are
# debug builds too, and say nothing about speed.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export ORT_DISABLE_TELEMETRY=1 PYTHONDONTWRITEBYTECODE=1

profile=bench
case ${TROUPE_BIN:-} in
    '') cargo build --release --quiet --workspace --bins >&2 ;;
    */debug) profile=dev ;;
esac

# The path of a bench executable, from cargo's messages.
executable() {
    cargo bench --quiet --workspace --profile "$profile" --bench "$1" --no-run --message-format=json |
        grep '"kind":\["bench"\]' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}
generate=$(executable generate)
update=$(executable update)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cc -shared -fPIC -O2 -o "$folder/mkl_avx512.so" bench/speed/mkl_avx512.c

"$python" bench/speed/compare.py --binaries "${TROUPE_BIN:-target/release}" --generate "$generate" --update "$update" \
    --mkl "$folder/mkl_avx512.so" "$@"
