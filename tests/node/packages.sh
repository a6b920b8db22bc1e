#!/bin/sh
# Unpacks a container runtime of Debian's into tests/node/bin, beside the compiled commands. Nothing is installed, and
# no list of the system's apt is touched. usage: packages.sh
#
#   bin/runtime/        runc and busybox of the suite that this machine runs
#   bin/containerd-1/   containerd 1.7
#   bin/containerd-2/   containerd 2
#   bin/cni/            the plugins that give a pod its network, of the suite that this machine runs
#
# A source that does not answer three times makes it end with 75, and bin/.unanswered says which packages are missing.
set -eu
cd "$(dirname "$0")"

command -v apt-get > /dev/null && [ -r /etc/os-release ] || {
    echo "this is not Debian: install containerd, runc and a static busybox; the tests find them on PATH"
    exit 0
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the machine's own apt uses: the mirror, and the key that signs it.
sources=/etc/apt/sources.list.d/debian.sources
mirror=$(sed -n 's/^URIs: *//p' $sources 2> /dev/null | head -1)
[ -n "$mirror" ] || {
    echo "$sources names no mirror: install containerd, runc and a static busybox; the tests find them on PATH"
    exit 0
}
own=$(. /etc/os-release && echo "$VERSION_CODENAME")

unpacked() { # FOLDER SUITE PACKAGE...
    folder=bin/$1 suite=$2
    shift 2
    [ ! -e "$folder/.complete" ] || return 0
    echo "unpacking $* of $suite"
    for pause in 5 15 0; do
        if downloaded "$suite" "$@"; then
            rm -rf "$folder"
            mkdir -p "$folder"
            for package in "$work/$suite.debs"/*.deb; do dpkg -x "$package" "$folder"; done
            touch "$folder/.complete"
            return 0
        fi
        sleep "$pause"
    done
    echo "$*: $mirror did not give them in three attempts" | tee -a bin/.unanswered >&2
}

downloaded() { # SUITE PACKAGE...
    suite=$1
    shift
    mkdir -p "$work/$suite/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$work/$suite.list"
    apt "$suite" update || return 1
    rm -rf "$work/$suite.debs"
    mkdir "$work/$suite.debs"
    (cd "$work/$suite.debs" && apt "$suite" download "$@")
}

apt() { # SUITE ARGUMENT...
    suite=$1
    shift
    apt-get -qq -o APT::Update::Error-Mode=any -o Dir::Etc::SourceList="$work/$suite.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$work/$suite" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o APT::Sandbox::User=root "$@"
}

mkdir -p bin
rm -f bin/.unanswered
unpacked runtime "$own" runc busybox-static
unpacked cni "$own" containernetworking-plugins
unpacked containerd-1 trixie containerd
unpacked containerd-2 sid containerd
[ ! -e bin/.unanswered ] || exit 75
