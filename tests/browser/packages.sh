#!/bin/sh
# Unpacks a browser of Debian's into tests/browser/bin, with the libraries and a font that this machine lacks. Nothing is
# installed, and no list of the system's apt is touched. usage: packages.sh
#
# A source that does not answer three times makes it end with 75, and bin/.unanswered says which packages are missing.
set -eu
cd "$(dirname "$0")"
. ../../scripts/debian.sh

is_debian "Chromium and a font" || exit 0
unpacked chromium machine chromium fonts-dejavu-core
[ ! -e bin/.unanswered ] || exit 75
