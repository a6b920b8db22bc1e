#!/bin/sh
# Prints the interpreter that the environments are made with: $PYTHON if it is set, or else the first one found that is
# new enough and can make an environment.
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        command -v "$candidate"
        exit 0
    fi
done
echo "kdp needs Python 3.11 or newer with its venv module (on Debian: python3-venv);" \
    "found none among: ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}. Name one with PYTHON=..." >&2
exit 1
