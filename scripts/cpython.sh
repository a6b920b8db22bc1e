#!/bin/sh
# cpython.sh VERSION: prints a CPython of this version, for example 3.14. It prefers one of this machine: on PATH, or of pyenv.
# Otherwise it unpacks the one of Debian's suites below .pythons. Nothing is installed. Ends with 75 if there is none.
set -eu
version=$1
cd "$(dirname "$0")/.."

for candidate in "/usr/bin/python$version" "$(command -v "python$version" || true)" \
    "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
    if found=$("$candidate" -c 'import ensurepip, sys, venv; print("%d.%d" % sys.version_info[:2], sys.executable)' 2> /dev/null) \
        && [ "${found% *}" = "$version" ]; then
        echo "${found#* }"
        exit 0
    fi
done

mkdir -p .pythons
cd .pythons
. ../scripts/debian.sh
python=$PWD/bin/$version/usr/bin/python$version
if [ ! -e "bin/$version/.ready" ]; then
    {
        is_debian "python$version" || exit 75
        unpacked patchelf "$own" patchelf
        for suite in trixie testing sid; do
            listed "$suite" || continue
            # shellcheck disable=SC2046 # lists
            packages=$(apt-cache $(where "$suite") depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
                --no-replaces --no-enhances "python$version-venv" 2> /dev/null \
                | grep -E "^(lib|zlib1g|python3-pip-whl|python$version)" | sort -u)
            [ -n "$packages" ] || continue
            # shellcheck disable=SC2086
            unpacked "$version" "$suite" $packages
            break
        done
        [ -e "$python" ] && [ -e bin/patchelf/.complete ] || exit 75
        # The interpreter brings its own C library, since this machine's may be older, and its own wheel of pip.
        libraries=$(find "$PWD/bin/$version" -name 'libc.so.6' -printf '%h\n' -quit)
        loader=$(bin/patchelf/usr/bin/patchelf --print-interpreter "$python")
        bin/patchelf/usr/bin/patchelf --force-rpath --set-rpath "$libraries" \
            --set-interpreter "$libraries/${loader##*/}" "$python"
        sed -i "s|/usr/share/python-wheels|$PWD/bin/$version/usr/share/python-wheels|" \
            "bin/$version/usr/lib/python$version/ensurepip/__init__.py" \
            "bin/$version/usr/lib/python$version"/_sysconfigdata_*.py
        "$python" -c 'import ensurepip, ssl, sqlite3, venv' || exit 75
        touch "bin/$version/.ready"
    } >&2
fi
echo "$python"
