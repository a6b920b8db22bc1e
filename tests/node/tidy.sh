#!/bin/sh
# Tidies the module files, each with its own minor's sources only: `go mod tidy` looks at every build tag, and would let
# one minor's requirements raise the versions of another's.
#
# A new release: change the version of k8s.io/kubernetes and, by the same step, of the replace lines; run this.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tidy() { # MODFILE MINOR
    mkdir "$work/$2"
    cp -r devmgr "$work/$2/"
    find "$work/$2/devmgr" -name 'minor_*.go' ! -name "minor_$2.go" -delete
    [ "$1" != go.mod ] || cp -r peers "$work/$2/"
    cp "$1" "$work/$2/go.mod"
    cp "${1%.mod}.sum" "$work/$2/go.sum" 2> /dev/null || true
    (cd "$work/$2" && go mod tidy)
    cp "$work/$2/go.mod" "$1"
    cp "$work/$2/go.sum" "${1%.mod}.sum"
}

tidy go.mod 137
tidy k136.mod 136
tidy k134.mod 134
