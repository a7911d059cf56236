# shellcheck shell=bash disable=SC2034,SC2154
# Processes beside each other, and what starts them (--launcher): ranks of `update` (--ranks), and shards of a step (--shards).
# A shard is a rollout that plays every N-th task and writes a file of its own. The file has its name once it is whole, so that
# only what failed, or was killed, is played again, now or by the next pipeline.sh.

declare -a learner # the command of `update`
choose_learner() {
    local program=mpirun
    [ "$starter" != srun ] || program=srun
    learner=(update)
    [ "$ranks" -gt 1 ] || return 0
    command -v "$program" >/dev/null || die 69 "$program is not installed" 'packages such as openmpi-bin and mpich have mpirun, slurm-client has srun'
    case $starter in
        srun) learner=(srun --ntasks="$ranks" --input=0 --kill-on-bad-exit=1 --mpi="${SLURM_MPI_TYPE:-pmix}" --quiet update-mpi) ;;
        mpirun) learner=(mpirun -n "$ranks" update-mpi) ;;
        *)
            learner=(mpirun --bind-to none -n "$ranks" update-mpi)
            has_threads update || learner+=(--threads "$(share_of_cores "$ranks")") ;;
    esac
}
has_threads() { [[ " ${stage_flags[$1]:-}" == *' --threads'[\ =]* ]]; } # STAGE, by its --flags
share_of_cores() { echo $((($(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + $1 - 1) / $1)); }              # PROCESSES on this machine, which take each core once
play_shards() { # STEP DIRECTORY: writes DIRECTORY/shard-I-of-N.jsonl of the tasks in DIRECTORY/tasks.jsonl
    local shard process processes=() names=()
    if ! compgen -G "$2/shard-*-of-$shards.jsonl" >/dev/null; then # else these are the tasks that they were played from
        (draw "$1") >"$2/tasks.jsonl"
        statuses=($?)
        leftmost_failure tasks
    fi
    for ((shard = 0; shard < shards; shard++)); do
        play_shard "$1" "$2" "$shard" &
        processes+=($!)
        names+=("rollout --shard $shard/$shards")
    done
    statuses=()
    for process in "${processes[@]}"; do
        wait "$process"
        statuses+=($?)
    done
    leftmost_failure "${names[@]}"
}
play_shard() { # STEP DIRECTORY SHARD
    local file=$2/shard-$3-of-$shards.jsonl try code=0 threads=()
    [ "$3" = 0 ] || quiet=(--quiet) # the first speaks for all
    if [ "$starter" = srun ]; then
        # The shard opens its files where it runs: Slurm breaks long lines of what it passes on.
        player=(srun --ntasks=1 --exact --input=none --quiet bash -c 'exec "${@:3}" <"$1" >"$2"' shard "$2/tasks.jsonl" "$file.tmp" rollout)
    elif ! has_threads rollout; then
        threads=(--threads "$(share_of_cores "$shards")")
    fi
    for try in 1 2 3; do
        [ ! -f "$file" ] || return 0
        [ "$try" = 1 ] || say "step $1: rollout --shard $3/$shards failed with exit code $code, and is played again" >&2
        : >"$file.tmp" || die 74 "cannot write $file.tmp"
        (play "$1" --shard "$3/$shards" "${threads[@]}") <"$2/tasks.jsonl" >>"$file.tmp"
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
