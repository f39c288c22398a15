#!/usr/bin/env bash
# Everything of Ithaca that needs several GPUs of one host, run from a package
# that was built with --config=cuda: tests/run_many.sh. Needs what run_all.sh
# needs, and for the service numpy and grpcio.
#
#   OUT=DIR            where logs and numbers go (default: .)
#   BUDGET_SECONDS=N   for all steps together (default: 525)
#   ONLY=REGEX         only steps whose name matches
#   WORLD_SIZES=2,4    groups that are measured (default: 2, 4 and 8 as far as
#                      there are GPUs, or 2 ranks on the only one)
#
# Groups of the tests have 1 to 8 ranks whatever the GPUs: where there are too
# few, ranks share them, each with an NCCL host identity of its own. That tries
# everything out on one GPU; what it measures then says nothing, and the table
# says "shared".
#
# A step that fails or takes too long does not stop the others. Prints one
# table last: each figure beside its target and beside what
# docs/measurements/many-gpus.md expects of it. Exits 1 if a step failed; a
# target that is missed is no failure.
set -uo pipefail

ITHACA_PACKAGE="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export ITHACA_PACKAGE
# The package's libraries are for its own programs, not for python3.
host_libraries="${LD_LIBRARY_PATH:-}"
# shellcheck source=/dev/null
. "$ITHACA_PACKAGE/libexec/environment.sh"
export LIBTORCH="${libtorch:-}"
programs="$ITHACA_PACKAGE/libexec"
mkdir -p "${OUT:-.}"
out="$(cd "${OUT:-.}" && pwd)"
deadline=$((SECONDS + ${BUDGET_SECONDS:-525}))
only="${ONLY:-.}"
# Multicast needs more rights than tests should have.
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
results="$out/many_gpus.jsonl"
: >"$results"
sizes=()
[[ -n ${WORLD_SIZES:-} ]] && sizes=("--world-sizes=$WORLD_SIZES")
names=() outcomes=() seconds=() notes=()

# step NAME LIMIT_SECONDS COMMAND...: its output goes to $work/NAME.log.
step() {
  local name="$1" limit="$2"
  shift 2
  [[ $name =~ $only ]] || return 0
  local left=$((deadline - SECONDS)) begin=$SECONDS status=0 outcome note
  names+=("$name")
  if ((left < 10)); then
    outcomes+=(SKIPPED) seconds+=(0) notes+=("no time left")
    return 0
  fi
  ((limit = limit < left ? limit : left))
  printf '== %s (at most %d s)\n' "$name" "$limit"
  timeout --kill-after=5 "$limit" "$@" >"$work/$name.log" 2>&1 || status=$?
  case $status in
    0) outcome=passed ;;
    124 | 137) outcome=TIMEOUT ;;
    *) outcome="FAILED($status)" ;;
  esac
  note="$(grep -hE '^\[  (PASSED|FAILED)  \] [0-9]+ tests?|^[0-9]+ passed, [0-9]+ failed|^NOTE' \
    "$work/$name.log" | tail -n 2 | tr '\n' ' ' | cut -c1-110)"
  outcomes+=("$outcome") seconds+=($((SECONDS - begin))) notes+=("$note")
  printf '   %s in %d s  %s\n' "$outcome" $((SECONDS - begin)) "$note"
  if [[ $outcome != passed ]]; then
    grep -nE 'FAIL|Failure|rror|Expected|actual|Which is|wrong|WRONG' \
      "$work/$name.log" | head -n 20 | cut -c1-300
    tail -n 8 "$work/$name.log" | cut -c1-300
  fi
}

# shellcheck disable=SC2317  # run by a shell of its own
machine() {
  nvidia-smi --query-gpu=index,name,driver_version,memory.total \
    --format=csv,noheader
  # Which links join the GPUs: NV18 is 18 NVLinks, 450 GB/s each way.
  nvidia-smi topo -m | sed 's/\x1b\[[0-9;]*m//g' | head -n 12
  LD_LIBRARY_PATH="$host_libraries" python3 -c 'import torch
print("torch", torch.__version__, "NCCL",
      ".".join(map(str, torch.cuda.nccl.version())))'
}
export -f machine
export host_libraries

step machine 60 bash -c machine
[[ -s $work/machine.log ]] && cat "$work/machine.log"

# Measured before the long tests: what is late is cut.
step nccl_communicator_test 90 "$programs/nccl_communicator_test"
step exchange_benchmark 80 "$programs/exchange_benchmark" \
  --results="$results" --seconds=40 "${sizes[@]}"
step path_benchmark 150 "$programs/path_benchmark" \
  --results="$results" --seconds=70 "${sizes[@]}"
step nccl_equality_test 60 "$programs/nccl_equality_test"
step service 180 env LD_LIBRARY_PATH="$host_libraries" PYTHONUNBUFFERED=1 \
  python3 "$ITHACA_PACKAGE/tests/many_gpus_service.py" "$ITHACA_PACKAGE" \
  "$work/service" --results="$results" --seconds=170
# Two groups on the same GPUs are no case of the service: a GPU has one worker.
step ulysses_exact_test 60 "$programs/ulysses_exact_nccl_test" \
  --gtest_filter=-*GroupsAtOnce*
step ulysses_grid_test 120 "$programs/ulysses_grid_nccl_test"

for log in "$work"/*.log "$work"/service/*.log; do
  [[ -f $log ]] || continue
  printf '######## %s\n' "$(basename "$log")"
  tail -c 1000000 "$log"
done >"$out/many_gpus.log"

failed=0
{
  "$programs/path_model_table" >"$work/model.jsonl"
  python3 "$ITHACA_PACKAGE/tests/many_gpus_table.py" "$results" \
    "$work/model.jsonl" || failed=1
  printf '\n%-24s %-12s %8s  %s\n' step outcome seconds note
  for i in "${!names[@]}"; do
    printf '%-24s %-12s %8d  %s\n' "${names[i]}" "${outcomes[i]}" \
      "${seconds[i]}" "${notes[i]}"
  done
} >"$out/many_gpus_table.txt"
cat "$out/many_gpus_table.txt"
for outcome in "${outcomes[@]}"; do
  [[ $outcome == passed ]] || failed=1
done
exit "$failed"
