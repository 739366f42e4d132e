#!/bin/sh
# Copies the byte code alone out of Python's library: stdlib.sh LIBRARY TARGET. What only builds use stays behind.
set -eu
mkdir -p "$2"
cd "$1"
find . -name '*.pyc' ! -path './ensurepip/*' ! -path './distutils/*' ! -path './lib2to3/*' | sort >/tmp/bytecode.list
tar --create --files-from=/tmp/bytecode.list --file=/tmp/bytecode.tar
tar --extract --file=/tmp/bytecode.tar --directory="$2"
