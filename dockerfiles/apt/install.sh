#!/bin/sh
# Installs Debian packages into a layer: install.sh PACKAGE...
#
# As of the day on which the base image was made (dated.sh). Files that would differ between two builds of the same
# packages are removed.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
sh "$(dirname "$0")/dated.sh" /etc/apt "$parts"
chmod 755 "$parts"
sources="-o Dir::Etc::sourceparts=$parts -o Dir::Etc::sourcelist=/dev/null"

# shellcheck disable=SC2086 # options are words
apt-get $sources -o Acquire::Retries=5 -qq update
# Python's packages byte-compile themselves, under emulation for a minute or more, into files that would be removed
# below: a compiler that does nothing stands in for theirs meanwhile.
compiler=/usr/lib/python3.11/py_compile.py
fresh=false
if [ ! -e "$compiler" ]; then
    fresh=true
    dpkg-divert --quiet --local --rename --add "$compiler"
    mkdir -p "$(dirname "$compiler")"
    echo 'import sys; "-" in sys.argv and sys.stdin.read()' >"$compiler"
fi
# shellcheck disable=SC2086
apt-get $sources -o Acquire::Retries=5 -o Dpkg::Use-Pty=0 -qq install --no-install-recommends "$@" >/dev/null
if $fresh; then
    rm "$compiler"
    dpkg-divert --quiet --local --rename --remove "$compiler"
    rmdir --ignore-fail-on-non-empty "$(dirname "$compiler")"
fi

rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/cache/ldconfig/aux-cache
rm -f /var/log/*.log /var/cache/debconf/*-old /var/lib/dpkg/*-old
# Byte code carries the order of a hash table that differs from run to run.
find /usr/lib/python3* /usr/share/python3 -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
