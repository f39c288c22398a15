#!/usr/bin/env bash
# Everything of Ithaca that needs a GPU, run from a package that was built with
# --config=cuda: tests/run_all.sh. Needs the GPU's driver, and python3 with
# torch 2.11 (or LIBTORCH and the CUDA libraries on LD_LIBRARY_PATH); no
# network.
#
#   OUT=DIR            where logs and numbers go (default: .)
#   BUDGET_SECONDS=N   for all steps together (default: 525)
#   ONLY=REGEX         only steps whose name matches
#
# A step that fails or takes too long does not stop the others. Prints one
# table last; exits 1 if a step failed.
set -uo pipefail

ITHACA_PACKAGE="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export ITHACA_PACKAGE
# The package's libraries are for its own programs, not for python3.
host_libraries="${LD_LIBRARY_PATH:-}"
# shellcheck source=/dev/null
. "$ITHACA_PACKAGE/libexec/environment.sh"
# Asked for once here instead of once a program.
export LIBTORCH="${libtorch:-}"
export programs="$ITHACA_PACKAGE/libexec"
mkdir -p "${OUT:-.}"
out="$(cd "${OUT:-.}" && pwd)"
deadline=$((SECONDS + ${BUDGET_SECONDS:-525}))
only="${ONLY:-.}"
# One NCCL group a test; multicast needs more rights than tests should have.
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
names=() results=() seconds=() notes=()

# step NAME LIMIT_SECONDS COMMAND...: its output goes to $work/NAME.log.
step() {
  local name="$1" limit="$2"
  shift 2
  [[ $name =~ $only ]] || return 0
  local left=$((deadline - SECONDS)) begin=$SECONDS status=0 result note
  if ((left < 10)); then
    names+=("$name") results+=(SKIPPED) seconds+=(0) notes+=("no time left")
    return 0
  fi
  ((limit = limit < left ? limit : left))
  printf '== %s (at most %d s)\n' "$name" "$limit"
  timeout --kill-after=5 "$limit" "$@" >"$work/$name.log" 2>&1 || status=$?
  grep -q '^\[  SKIPPED \]' "$work/$name.log" && ((status = status ? status : 77))
  case $status in
    0) result=passed ;;
    77) result=SKIPPED ;;
    124 | 137) result=TIMEOUT ;;
    *) result="FAILED($status)" ;;
  esac
  note="$(summary "$work/$name.log")"
  names+=("$name") results+=("$result") seconds+=($((SECONDS - begin)))
  notes+=("$note")
  printf '   %s in %d s  %s\n' "$result" $((SECONDS - begin)) "$note"
  if [[ $result != passed ]]; then
    grep -nE 'FAIL|Failure|rror|Expected|actual|Which is|wrong|ERROR' \
      "$work/$name.log" | head -n 25 | cut -c1-300
    tail -n 8 "$work/$name.log" | cut -c1-300
  fi
}

# One line of what a log says.
summary() {
  grep -hE '^\[  (PASSED|FAILED)  \] [0-9]+ tests?|^[0-9]+ passed, [0-9]+ failed|ERROR SUMMARY|RACECHECK SUMMARY' \
    "$1" | tail -n 2 | tr '\n' ' ' | cut -c1-110
}

sanitizer() {
  local candidate
  for candidate in "$(command -v compute-sanitizer)" \
    /usr/local/cuda/bin/compute-sanitizer \
    /usr/local/cuda/compute-sanitizer/compute-sanitizer \
    /opt/nvidia/*/*/compute-sanitizer; do
    [[ -x $candidate ]] && printf '%s' "$candidate" && return
  done
}

# shellcheck disable=SC2317  # run by a shell of its own
machine() {
  nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,clocks.sm \
    --format=csv,noheader
  LD_LIBRARY_PATH="$host_libraries" python3 -c 'import torch
print("torch", torch.__version__, "cuDNN", torch.backends.cudnn.version(),
      "NCCL", ".".join(map(str, torch.cuda.nccl.version())))'
  "$ITHACA_PACKAGE/bin/ithaca-worker" --version
  local program missing
  for program in "$programs"/*; do
    missing="$(ldd "$program" 2>/dev/null | grep 'not found')" || continue
    printf 'missing libraries of %s:\n%s\n' "$program" "$missing"
  done
}

export -f machine
export host_libraries

step machine 60 bash -c machine
[[ -s $work/machine.log ]] && cat "$work/machine.log"

step layout_cuda_test 90 "$programs/layout_cuda_test"
step cuda_device_test 40 "$programs/cuda_device_test"
step cuda_regions_test 40 "$programs/cuda_regions_test"
step attention_kernels_test 90 "$programs/torch_cuda_attention_kernels_test"
step ulysses_exact_test 60 "$programs/ulysses_exact_cuda_test"
step quantized_accuracy_test 60 "$programs/quantized_accuracy_test"
# Measured before the long tests: what is late is cut.
step attention_benchmark 110 "$programs/gpu_attention_benchmark" \
  --json="$out/attention_benchmark.json"
step layout_benchmark 60 "$programs/layout_cuda_benchmark"
step service_test 170 env LD_LIBRARY_PATH="$host_libraries" python3 \
  "$ITHACA_PACKAGE/tests/service_test.py" "$ITHACA_PACKAGE" "$work/service" \
  --seconds=160
step nccl_communicator_test 100 "$programs/nccl_communicator_test"
step ulysses_grid_test 120 "$programs/ulysses_grid_cuda_test"

check="$(sanitizer)"
if [[ -n $check ]]; then
  # Without the tests whose gigabytes a checker would take minutes over.
  quick='--gtest_filter=-*OffsetsArePast32Bits*:*LargeTensors*'
  step memcheck 70 "$check" --tool=memcheck --error-exitcode=9 \
    "$programs/layout_cuda_test" "$quick"
  step racecheck 70 "$check" --tool=racecheck --error-exitcode=9 \
    "$programs/layout_cuda_test" "$quick"
else
  names+=(sanitizer) results+=(SKIPPED) seconds+=(0)
  notes+=("no compute-sanitizer here")
fi

# One file of everything that was said, and the services' own logs at its end.
for log in "$work"/*.log "$work"/service/*.log; do
  [[ -f $log ]] || continue
  printf '######## %s\n' "$(basename "$log")"
  tail -c 2000000 "$log"
done >"$out/gpu_test.log"

failed=0
{
  for name in attention_benchmark layout_benchmark; do
    [[ -f $work/$name.log ]] && printf '\n-- %s\n' "$name" &&
      grep -v '^$' "$work/$name.log"
  done
  if [[ -f $work/quantized_accuracy_test.log ]]; then
    printf '\n-- accuracy against NATIVE\n'
    grep '^ACCURACY' "$work/quantized_accuracy_test.log"
  fi
  if [[ -f $work/service_test.log ]]; then
    printf '\n-- service: what failed, and times\n'
    grep -E '^FAIL|after [0-9.]+ s' "$work/service_test.log" | cut -c1-200
  fi
  printf '\n-- steps\n%-26s %-12s %8s  %s\n' step result seconds note
  for i in "${!names[@]}"; do
    printf '%-26s %-12s %8d  %s\n' "${names[i]}" "${results[i]}" \
      "${seconds[i]}" "${notes[i]}"
  done
} | tee "$out/gpu_test_table.txt"
for result in "${results[@]}"; do
  [[ $result == passed ]] || failed=1
done
exit "$failed"
