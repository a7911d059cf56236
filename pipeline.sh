#!/usr/bin/env bash
# pipeline.sh: the training loop. Every number of a run is in pipeline/numbers.sh or in its run.json.
#
# A step is one pipe; each stage is a program that can be run, read and replaced on its own:
#
#   envs tasks | rollout | group | advantage | update
#
# The run directory holds every stream of every step. A step is committed by steps/NNNNNN/done, written last and by
# rename: kill anything at any time, and the same command repeats at most the step in flight and ends with the same
# bytes (the `timing` objects aside). With --resident one pipe takes all steps, and leaves the same files.
#
# This file is the order of things; what each of them is, is in pipeline/.
set -uo pipefail
[ "${BASH_VERSINFO[0]}" -ge 4 ] || { printf 'pipeline.sh: bash %s is too old\nhint: bash 4.4 or newer runs it (macOS: brew install bash)\n' "$BASH_VERSION" >&2; exit 69; }
{ # Up to its end before any of it runs: an error while this file is read must not pass for its end.
export ORT_DISABLE_TELEMETRY=1 LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for part in processes numbers arguments programs environment run evaluation shards step resident; do
    part_read='' # each part ends with its name in it: one that was cut, or could not be read, must not pass for nothing
    . "$root/pipeline/$part.sh"
    [ "$part_read" = "$part" ] || { printf 'pipeline.sh: cannot read %s\n' "$root/pipeline/$part.sh" >&2; exit 74; }
done

trap 'stop 130' INT
read_config "$@"
read_arguments "${arguments[@]}"
need_python
choose_defaults
check_arguments
ask_environment
set_up
choose_settings
choose_method
choose_episodes
[ -z "$evaluate" ] || evaluate_only

open_run
heed_signals
remember_values
choose_policies
choose_learner
make_policies
find_place
compress_step "$run/steps/$(printf %06d "$done_steps")" # it may have been killed before
evaluate_if_due "$done_steps"
for ((step = done_steps + 1; step <= steps; step++)); do
    train "$step"
    evaluate_if_due "$step"
    stop_if_flat "$step"
done
end_stages || exit $?
settle
[ "$eval_every" -gt 0 ] || page
say "the run is in $run, its report in $run/report.html"
exit
}
