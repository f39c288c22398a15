#!/bin/bash
# run_clang_tidy.sh OUT CONFIG CHECKS SOURCE FLAGS...: checks one source with
# CONFIG's checks and what CHECKS adds or takes; writes OUT if it is clean.
set -uo pipefail
out="$1" config="$2" checks="$3" source="$4"
shift 4
# clang-tidy counts on stderr what it suppressed in system headers.
if report=$(/usr/bin/clang-tidy --quiet --config-file="$config" \
  --checks="$checks" "$source" -- "$@" 2>/dev/null); then
  printf '%s' "$report" >"$out"
else
  printf '%s\n' "$report" >&2
  exit 1
fi
