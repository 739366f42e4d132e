# Sourced with the target's architecture in $arch: sets $machine, and where it is another than this machine's, what CMake
# and scikit-build need to build for it.
case $arch in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "architecture is $arch, expected amd64 or arm64" >&2; exit 1 ;;
esac
if [ "$(uname -m)" != "$machine" ]; then
    export MOELAB_CROSS="$machine" CMAKE_TOOLCHAIN_FILE=/run/dockerfiles/cross.cmake _PYTHON_HOST_PLATFORM="linux-$machine"
fi
build=/tmp/kernels
