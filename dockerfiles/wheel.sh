#!/bin/sh
# Builds the kernels for the target on the build machine and unpacks the wheel: wheel.sh SOURCE amd64|arm64 COMMIT TARGET
set -eu
source=$1 arch=$2 commit=$3 target=$4
case $arch in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "wheel.sh: architecture is $arch, expected amd64 or arm64" >&2; exit 1 ;;
esac
export MOELAB_GIT_COMMIT="$commit" PYTHONHASHSEED=0 PATH="/opt/build/bin:$PATH"
if [ "$(uname -m)" != "$machine" ]; then
    export MOELAB_CROSS="$machine" CMAKE_TOOLCHAIN_FILE=/run/dockerfiles/cross.cmake _PYTHON_HOST_PLATFORM="linux-$machine"
fi
pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir /tmp/wheel "$source"
mkdir -p "$target"
python3 -m zipfile -e /tmp/wheel/*.whl "$target"
