#!/bin/sh
# Starts @PROGRAM@ with this package's libraries and LibTorch on its path.
ITHACA_PACKAGE="$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)"
# shellcheck source=deploy/package/environment.sh disable=SC1091
. "$ITHACA_PACKAGE/libexec/environment.sh"
program=@PROGRAM@
if [ "$program" = ithaca-worker ] && ! has_libtorch; then
  echo "$program: no LibTorch 2.11 in '${libtorch:-}': set LIBTORCH to its" \
    "folder, put it at $ITHACA_PACKAGE/libtorch, or install torch for python3" >&2
  exit 2
fi
exec "$ITHACA_PACKAGE/libexec/$program" "$@"
