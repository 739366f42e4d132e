#!/bin/sh
# Builds the C++ tests of the kernels for the target on the build machine: cpptests.sh KERNELS amd64|arm64 TARGET
set -eu
kernels=$1 arch=$2 target=$3
case $arch in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "cpptests.sh: architecture is $arch, expected amd64 or arm64" >&2; exit 1 ;;
esac
if [ "$(uname -m)" != "$machine" ]; then
    export MOELAB_CROSS="$machine" CMAKE_TOOLCHAIN_FILE=/run/dockerfiles/cross.cmake
fi
cmake -S "$kernels" -B /tmp/cpptests -G Ninja -DMOELAB_TESTS=ON >/dev/null
cmake --build /tmp/cpptests >/dev/null
mkdir -p "$target"
cp /tmp/cpptests/tests/moelab_tests "$target/"
