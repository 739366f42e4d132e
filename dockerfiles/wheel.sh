#!/bin/sh
# Builds the kernels for the target on the build machine and unpacks the wheel: wheel.sh SOURCE amd64|arm64 COMMIT TARGET
set -eu
source=$1 arch=$2 commit=$3 target=$4
. "$(dirname "$0")/cross.sh"
export MOELAB_GIT_COMMIT="$commit" PYTHONHASHSEED=0 PATH="/opt/build/bin:$PATH"
pip wheel --quiet --no-deps --no-build-isolation --no-index --config-settings "build-dir=$build" --wheel-dir /tmp/wheel \
    "$source"
mkdir -p "$target"
python3 -m zipfile -e /tmp/wheel/*.whl "$target"
