#!/bin/sh
# pythons.sh VERSIONS PIP-ARGUMENTS -- PYTEST-ARGUMENTS: runs the unit and integration tests with each of these versions
# of CPython ("3.12 3.13"), each in an environment of its own. Names the versions that cannot be had and goes on.
# Fails if a run fails, and if fewer than two versions are had, that of .venv included.
set -eu
cd "$(dirname "$0")/.."
versions=$1
shift
install=
while [ "$1" != -- ]; do
    install="$install $1"
    shift
done
shift

had=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
echo "CPython $had: in .venv, run by make test"
count=1 failed='' missing=''
for version in $versions; do
    [ "$version" != "$had" ] || continue
    if ! python=$(sh scripts/cpython.sh "$version"); then
        missing="$missing $version"
        continue
    fi
    count=$((count + 1))
    echo "CPython $version: $python"
    folder=.venv-$version
    # shellcheck disable=SC2086 # a list
    [ -e "$folder/.ready" ] && [ "$folder/.ready" -nt pyproject.toml ] && [ "$folder/.ready" -nt testkit/pyproject.toml ] \
        || { PYTHON=$python sh scripts/environment.sh "$folder" $install && touch "$folder/.ready"; }
    "$folder/bin/python" -m pytest "$@" -m "not repository and not slow" -p no:cacheprovider tests/unit tests/integration \
        || failed="$failed $version"
done
[ -z "$missing" ] || echo "CPython:$missing not found on this machine or in Debian's suites, and not tested" >&2
[ -z "$failed" ] || { echo "CPython:$failed failed" >&2; exit 1; }
[ "$count" -ge 2 ] || { echo "CPython: only $had was found, and at least two versions must run" >&2; exit 1; }
