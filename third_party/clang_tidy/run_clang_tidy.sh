#!/bin/bash
# run_clang_tidy.sh OUT CONFIG SOURCE FLAGS...: checks one source with CONFIG's
# checks; writes OUT if it is clean.
set -uo pipefail
out="$1" config="$2" source="$3"
shift 3
# clang-tidy counts on stderr what it suppressed in system headers.
if report=$(/usr/bin/clang-tidy --quiet --config-file="$config" "$source" -- \
  "$@" 2>/dev/null); then
  printf '%s' "$report" >"$out"
else
  printf '%s\n' "$report" >&2
  exit 1
fi
