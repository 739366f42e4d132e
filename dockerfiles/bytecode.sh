#!/bin/sh
# Byte code for all modules under some folders: bytecode.sh FOLDER...
#
# Made by the build machine, since emulated it would take minutes and a read-only image could never make its own. The
# same bytes every time: no time stamps, one process, fixed hashes. Sources in an image do not change: never checked.
set -eu
for folder in "$@"; do
    # Files that are not for this Python (test data with wrong syntax) have none; that is not an error.
    PYTHONHASHSEED=0 python3 -m compileall -q -j 1 -s "$folder" --invalidation-mode unchecked-hash "$folder" >/dev/null || true
done
