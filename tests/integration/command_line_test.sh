#!/usr/bin/env bash
# `ithaca` against a real coordinator with two workers of its own: every dtype,
# precision, schedule and order checked against the definition, files in and
# out, and each way of going wrong with its exit code.
#
# usage: command_line_test.sh ITHACA COORDINATOR WORKER
set -uo pipefail

readonly ITHACA="$PWD/$1" COORDINATOR="$PWD/$2"
readonly WORK="${TEST_TMPDIR:-$(mktemp -d)}"
failures=0

fail() {
  echo "FAIL: $*" >&2
  failures=$((failures + 1))
}

# expect CODE ARGUMENTS...: ithaca ends with CODE. Its output stays in
# $WORK/out and $WORK/err.
expect() {
  local expected="$1" code=0
  shift
  "$ITHACA" "$@" >"$WORK/out" 2>"$WORK/err" || code=$?
  [[ $code -eq $expected ]] && return
  fail "ithaca $*: exit code $code, expected $expected"
  cat "$WORK/out" "$WORK/err" >&2
}

# says FILE TEXT: the last command's out or err has TEXT.
says() {
  grep -qF -- "$2" "$WORK/$1" && return
  fail "expected '$2' in its $1, got:"
  cat "$WORK/$1" >&2
}

read -r port metrics_port < <(python3 - <<'PYTHON'
import socket
sockets = [socket.socket() for _ in range(2)]
for s in sockets:
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))
PYTHON
)
export ITHACA_ADDRESS="127.0.0.1:$port"

"$COORDINATOR" --listen="$ITHACA_ADDRESS" \
  --metrics-listen="127.0.0.1:$metrics_port" --local-workers=2 --group-size=2 \
  --device=cpu --worker-binary="$PWD/$3" >"$WORK/coordinator.log" 2>&1 &
readonly coordinator=$!
trap 'kill -KILL $coordinator 2>/dev/null' EXIT

ready() {
  local answer
  exec 3<>"/dev/tcp/127.0.0.1/$metrics_port" || return
  printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3
  read -r answer <&3
  exec 3>&-
  [[ $answer == *" 200 "* ]]
} 2>/dev/null

for ((i = 0; i < 600; ++i)); do
  ready && break
  if ! kill -0 $coordinator 2>/dev/null || ((i == 599)); then
    echo "FAIL: the coordinator did not become ready; its log:" >&2
    cat "$WORK/coordinator.log" >&2
    exit 1
  fi
  sleep 0.1
done

# ------------------------------------------------------------ what it can do

expect 0 info
says out "health      serving"
says out "ready"
expect 0 info --json
says out '"serving": true'

# -------------------------------------------------------------- right numbers

readonly shape=(--image-tokens 61 --text-tokens 7 --heads 5 --head-dim 24)
for dtype in float32 float16 bfloat16; do
  for precision in native fp8_e4m3 int8; do
    for schedule in fused per_head; do
      for order in image_first text_first; do
        expect 0 attend "${shape[@]}" --valid-text 4 --dtype $dtype \
          --precision $precision --schedule $schedule --order $order --verify
        says out "over 340 of 340 rows: right"
        says out "$schedule schedule, $precision precision"
      done
    done
  done
done
expect 0 attend --batch 2 --image-tokens 33 --text-tokens 6 --valid-text 0,5 \
  --heads 6 --kv-heads 2 --head-dim 40 --dtype float32 --scale 0.3 --verify
expect 0 attend "${shape[@]}" --image-queries-only --verify --kernel math
says out "math kernel"
says out "over 305 of 305 rows: right"
expect 0 attend --image-tokens 1 --heads 1 --text-tokens 0 --verify
expect 0 attend --shape small --verify --json --request-id named-by-me
says out '"request_id": "named-by-me"'
says out '"passed": true'

# --------------------------------------------------------------- files, bench

python3 - "$WORK/call.safetensors" <<'PYTHON'
import array, json, random, struct, sys
random.seed(5)
shape, header, data = [1, 9, 2, 8], {}, b""
for name in ("query", "key", "value"):
    numbers = array.array("f", (random.gauss(0, 1) for _ in range(9 * 2 * 8)))
    header[name] = {"dtype": "F32", "shape": shape,
                    "data_offsets": [len(data), len(data) + 4 * len(numbers)]}
    data += numbers.tobytes()
text = json.dumps(header).encode()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
PYTHON
expect 0 attend --input "$WORK/call.safetensors" --text-tokens 3 \
  --valid-text 2 --verify --output "$WORK/out.safetensors"
says out "over 18 of 18 rows: right"
[[ -s $WORK/out.safetensors ]] || fail "--output wrote no file"
# The output file is a tensor of the query's shape: 576 bytes after the header.
python3 - "$WORK/out.safetensors" <<'PYTHON' || fail "--output's file is wrong"
import json, struct, sys
content = open(sys.argv[1], "rb").read()
size, = struct.unpack("<Q", content[:8])
entry = json.loads(content[8:8 + size])["output"]
assert entry["dtype"] == "F32" and entry["shape"] == [1, 9, 2, 8], entry
assert len(content) == 8 + size + 576
PYTHON

expect 0 bench --calls 40 --concurrency 3 --json
says out '"calls": 40'
says out '"failed_calls": 0'
says out '"scatter"'
expect 0 bench --calls 5 --shape small
says out "5 calls in "
[[ -s $WORK/err ]] && fail "a progress bar without a terminal"

# ----------------------------------------------------------------- going wrong

expect 2 attend --dtype float64
says err "expected one of bfloat16, float16, float32; got 'float64'"
expect 2 attend --no-such-flag
expect 2 attend --plane unary --shape wan720
says err "one message holds at most 1024 MiB"
expect 2 attend --input "$WORK/missing.safetensors"
says err "missing.safetensors"
expect 2 attend --input "$WORK/call.safetensors" --heads 2
expect 3 attend --heads 6 --kv-heads 4
says err "INVALID_ARGUMENT"
expect 3 attend --text-tokens 4 --valid-text 5
says err "valid_text_tokens"
expect 3 attend --kernel cudnn
says err "UNIMPLEMENTED"
expect 3 attend --input "$WORK/call.safetensors" --text-tokens 10
says err "INVALID_ARGUMENT"
expect 4 attend --address 127.0.0.1:1 --connect-timeout-seconds 0.5
says err "no coordinator answers at 127.0.0.1:1"
expect 4 attend --shape flux --timeout-seconds 0.001
says err "DEADLINE_EXCEEDED"
# After all that, the next good call is right.
expect 0 attend "${shape[@]}" --verify

# ------------------------------------------------------------------- the end

kill -TERM $coordinator
wait $coordinator
code=$?
trap - EXIT
[[ $code -eq 0 ]] || fail "the coordinator ended with $code after SIGTERM"
expect 4 info --connect-timeout-seconds 0.5

if ((failures > 0)); then
  echo "the coordinator's log ends:" >&2
  tail -n 40 "$WORK/coordinator.log" >&2
  exit 1
fi
echo "ok"
