#!/bin/sh
# Python packages for the target, fetched by the build machine: packages.sh LOCKS amd64|arm64 NAME TARGET
#
# LOCKS/NAME-ARCH.txt (or LOCKS/NAME.txt, for both) pins every package with its hashes. Wheels in /run/wheels are
# preferred; without any, torch comes from the index of its CPU builds (--torch-backend cpu), where anybody can have the
# wheel with the pinned hash.
set -eu
locks=$1 arch=$2 name=$3 target=$4
case $arch in
    amd64) platform=x86_64-manylinux_2_28 ;;
    arm64) platform=aarch64-manylinux_2_28 ;;
    *) echo "packages.sh: architecture is $arch, expected amd64 or arm64" >&2; exit 1 ;;
esac
lock=$locks/$name-$arch.txt
[ -e "$lock" ] || lock=$locks/$name.txt
export UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy UV_HTTP_TIMEOUT=180 UV_PYTHON_DOWNLOADS=never
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PYTHONHASHSEED=0

if ls /run/wheels/*.whl >/dev/null 2>&1; then
    set -- --find-links /run/wheels
elif [ "$arch" = amd64 ] && grep -q '^torch==.*+cpu' "$lock"; then
    set -- --torch-backend cpu
else
    set --
fi
mkdir -p "$target"
/opt/build/bin/uv pip install --quiet --no-deps --require-hashes --only-binary :all: --python /usr/bin/python3 \
    --python-version 3.11 --python-platform "$platform" --target "$target" "$@" --requirement "$lock"
rm -rf "$target/.lock" "$target/bin"
# Headers and test suites that nothing here runs.
rm -rf "$target/torch/include" "$target/torch/test" "$target/torch/share/cmake"
find "$target" -name '*.dist-info' -prune -exec sh -c 'rm -f "$1"/INSTALLER "$1"/REQUESTED "$1"/direct_url.json' _ {} \;
