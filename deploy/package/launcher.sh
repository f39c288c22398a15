#!/bin/sh
# Starts @PROGRAM@ with this package's libraries and LibTorch on its path.
ITHACA_PACKAGE="$(cd "$(dirname "$0")/.." && pwd)"
# shellcheck source=deploy/package/environment.sh disable=SC1091
. "$ITHACA_PACKAGE/libexec/environment.sh"
exec "$ITHACA_PACKAGE/libexec/@PROGRAM@" "$@"
