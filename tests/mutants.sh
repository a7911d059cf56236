#!/usr/bin/env bash
# tests/mutants.sh: changes the code one expression at a time and requires that a test fails, with cargo-mutants.
set -euo pipefail
cd "$(dirname "$0")/.."
# Compiling takes longer than these tests, and is fastest without optimization.
export ORT_DISABLE_TELEMETRY=1 CARGO_PROFILE_DEV_OPT_LEVEL=0

usage() {
    cat <<'TEXT'
Changes the rules one expression at a time, and runs the tests that should notice. What survives is printed, and is exit 2.

Examples:
  tests/mutants.sh --changed                    only lines that differ from origin's main branch
  tests/mutants.sh --changed HEAD~3             only lines changed by the last three commits
  tests/mutants.sh group advantage              all of two parts
  tests/mutants.sh --within 600 math            ends after ten minutes, whether or not it is through
  tests/mutants.sh episode -- --file '*/episode.rs' --in-place   more flags for cargo mutants
  tests/mutants.sh --list                       the parts, their files, their tests

Each part is a few files and the tests that should notice; code beyond the parts is not mutated. .cargo/mutants.toml lists the
mutants that survive for a reason. Needs cargo-mutants (cargo install cargo-mutants).
TEXT
}

# Part, package (and after a comma the one that has the tests), files, test targets, and after `--` the names of the tests, without those that take minutes.
parts() {
    cat <<'TABLE'
group         group      group/src                                              --bins --test suite
advantage     advantage  advantage/src                                          --bins --test suite
loss          update     update/src/{objective,aggregate,loss,minibatch,tree}.rs --lib --test suite -- objective aggregate loss minibatch tree golden_step stage refusals
optimizer     update     update/src/optimizer                                   --lib --test suite -- optimizer golden_step stage device
episode       rollout    rollout/src/{episode.rs,episode,task_run.rs}            --test suite -- episode joint stage
plan-path     games,envs crates/games/src/plan_path                                     --lib --test suite -- plan_path contract tasks
sokoban       games,envs crates/games/src/sokoban                                       --lib --test suite -- sokoban contract tasks
sudoku        games,envs crates/games/src/sudoku                                        --lib --test suite -- sudoku contract tasks
math          problems,envs crates/problems/src/math                                          --lib --test suite -- math tasks
code          problems,envs crates/problems/src/code                                          --lib --test suite -- code no_sandbox tasks
TABLE
}

chosen=() base='' within='' more=()
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --list) parts; exit 0 ;;
        --changed)
            base=origin/HEAD
            if [ $# -gt 1 ] && git rev-parse -q --verify "$2^{commit}" >/dev/null; then base=$2; shift; fi ;;
        --within) within=${2:?--within needs seconds}; shift ;;
        --) shift; more=("$@"); break ;;
        *)
            parts | grep -q "^$1 " || { echo "mutants.sh: there is no part $1"; echo 'hint: tests/mutants.sh --list'; exit 2; } >&2
            chosen+=("$1") ;;
    esac
    shift
done
command -v cargo-mutants >/dev/null ||
    { echo 'mutants.sh: cargo-mutants is not installed'; echo 'hint: cargo install --locked cargo-mutants'; exit 69; } >&2
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
if [ -n "$base" ]; then
    git diff "$base" >"$out/diff" || exit 2
    more+=(--in-diff "$out/diff")
fi
[ ${#chosen[@]} -gt 0 ] || mapfile -t chosen < <(parts | cut -d ' ' -f 1)

started=$SECONDS survived=0
for part in "${chosen[@]}"; do
    read -r _ package files tests < <(parts | grep "^$part ")
    flags=()
    if [ "$package" != "${package#*,}" ]; then flags+=(--test-package "${package#*,}"); fi
    package=${package%%,*}
    for file in $(eval "echo $files"); do
        if [ -d "$file" ]; then file="$file/**"; fi
        flags+=(--file "$file")
    done
    # Skip the build if there is nothing to do.
    [ -n "$(cargo mutants --list --package "$package" "${flags[@]}" "${more[@]}")" ] || continue
    limit=()
    if [ -n "$within" ]; then
        left=$((within - (SECONDS - started)))
        [ "$left" -gt 0 ] || { echo "not run within $within s: $part"; continue; }
        limit=(timeout --foreground "$left")
    fi
    echo "== $part"
    code=0
    # Test targets also apply to the build, test names only to the run.
    flag=--cargo-arg
    for word in $tests; do
        if [ "$word" = -- ]; then flag=--cargo-test-arg; fi
        flags+=("$flag=$word")
    done
    "${limit[@]}" cargo mutants --package "$package" "${flags[@]}" --output "$out/$part" --no-shuffle "${more[@]}" || code=$?
    case $code in
        0 | 3) ;; # a test that hangs has detected the mutant, too
        124) echo "not through within $within s: $part" ;;
        2) survived=1 ;;
        *) exit "$code" ;;
    esac
    if [ -n "${TROUPE_MUTANTS_OUT:-}" ]; then mkdir -p "$TROUPE_MUTANTS_OUT" && cp -r "$out/$part" "$TROUPE_MUTANTS_OUT/"; fi
    cat "$out/$part/mutants.out/missed.txt" 2>/dev/null || true
done
[ $survived = 0 ] || exit 2
