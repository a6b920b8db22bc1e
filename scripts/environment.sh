#!/bin/sh
# environment.sh FOLDER PIP-ARGUMENTS...: makes the virtual environment in FOLDER if there is none that works, and
# installs into it. pip itself comes first: before 25.1 it does not know --group.
set -eu
folder=$1
shift
if ! "$folder/bin/python" -c '' >/dev/null 2>&1; then
    python=$(sh "$(dirname "$0")/python.sh")
    rm -rf "$folder"
    "$python" -m venv "$folder"
fi
echo "Setting up $folder: this takes a minute the first time and nothing until pyproject.toml changes." >&2
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "pip>=25.1" || {
    echo "$folder cannot be set up: the package index does not answer; connect to it, or set PIP_INDEX_URL" >&2
    exit 1
}
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
