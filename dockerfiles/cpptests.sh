#!/bin/sh
# Adds the C++ tests to the build that wheel.sh left: cpptests.sh KERNELS amd64|arm64 COMMIT TARGET
set -eu
kernels=$1 arch=$2 commit=$3 target=$4
. "$(dirname "$0")/cross.sh"
export MOELAB_GIT_COMMIT="$commit" PATH="/opt/build/bin:$PATH"
cmake -S "$kernels" -B "$build" -DMOELAB_TESTS=ON >/dev/null
cmake --build "$build"
mkdir -p "$target"
cp "$build/tests/moelab_tests" "$target/"
