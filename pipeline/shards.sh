# shellcheck shell=bash disable=SC2034,SC2154
# Shards of a step (--shards): processes of rollout that each play every N-th task and write a file of their own. A file has its
# name once it is whole, so that only what failed, or was killed, is played again, now or by the next pipeline.sh.

play_shards() { # STEP DIRECTORY: writes DIRECTORY/shard-I-of-N.jsonl of the tasks in DIRECTORY/tasks.jsonl
    local shard players=() player names=()
    if ! compgen -G "$2/shard-*-of-$shards.jsonl" >/dev/null; then # else these are the tasks that they were played from
        (draw "$1") >"$2/tasks.jsonl"
        statuses=($?)
        leftmost_failure tasks
    fi
    for ((shard = 0; shard < shards; shard++)); do
        play_shard "$1" "$2" "$shard" &
        players+=($!)
        names+=("rollout --shard $shard/$shards")
    done
    statuses=()
    for player in "${players[@]}"; do
        wait "$player"
        statuses+=($?)
    done
    leftmost_failure "${names[@]}"
}
play_shard() { # STEP DIRECTORY SHARD
    local file=$2/shard-$3-of-$shards.jsonl try code=0 threads=()
    # Together they take the cores once.
    [[ " ${stage_flags[rollout]:-}" == *' --threads'[\ =]* ]] || threads=(--threads $((($(nproc) + shards - 1) / shards)))
    for try in 1 2 3; do
        [ ! -f "$file" ] || return 0
        [ "$try" = 1 ] || say "step $1: rollout --shard $3/$shards failed with exit code $code, and is played again" >&2
        (play "$1" --shard "$3/$shards" "${threads[@]}") <"$2/tasks.jsonl" >"$file.tmp"
        code=$?
        case $code in
            0) durable "$file.tmp" && mv "$file.tmp" "$file" || die 74 "cannot write $file" ;;
            2 | 65 | 130) return "$code" ;; # would fail again, or is not wanted any more
        esac
    done
    return "$code"
}
forget_shards() { # DIRECTORY: but those of as many shards as there are now
    find "$1" -name 'shard-*' ! -name "shard-*-of-$shards.jsonl" -exec rm -f {} +
}

part_read=shards
