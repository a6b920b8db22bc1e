#!/bin/sh
# Compiles what the tests of a real node need into tests/node/bin, and skips what is up to date.
# usage: build.sh [NAME...]     NAMEs as they are called in bin/; none: everything
#
# The release is stamped into what comes of k8s.io/kubernetes: unstamped, a kubelet calls itself v0.0.0-master, and the
# API server and the kubelet disagree about their versions. Needs Go; the first time takes a quarter of an hour.
set -eu
cd "$(dirname "$0")"

command -v go > /dev/null || {
    echo "go is not installed: the real kubelet is compiled from its Go module" >&2
    exit 1
}

release() { sed -n 's/^\tk8s.io\/kubernetes v//p; s/^require k8s.io\/kubernetes v//p' "$1" | head -1; }

# built NAME FILE...: bin/NAME is there and no older than the files it is made of.
built() {
    [ -x "bin/$1" ] || return 1
    name=$1
    shift
    for file in "$@"; do [ "bin/$name" -nt "$file" ] || return 1; done
}

devmgr() { # MODFILE TAGS
    version=$(release "$1")
    name=devmgr-${version%.*}
    wanted "$name" || return 0
    built "$name" build.sh "$1" "${1%.mod}.sum" devmgr/*.go devmgr/*.s && return
    echo "compiling $name (Kubernetes $version)"
    # checklinkname: its observer stands in for listen(2) in Go's own package net.
    go build -trimpath -modfile="$1" -tags "$2" -ldflags "-s -w -checklinkname=0" -o "bin/$name" ./devmgr
}

stamp() { # of the release that go.mod names
    version=$(release go.mod)
    minor=${version#*.}
    printf -- "-X k8s.io/component-base/version.gitVersion=v%s" "$version"
    printf -- " -X k8s.io/component-base/version.gitMajor=%s" "${version%%.*}"
    printf -- " -X k8s.io/component-base/version.gitMinor=%s" "${minor%%.*}"
}

# commands NAME...: of k8s.io/kubernetes, in one go, so that one is linked while the next is compiled.
commands() {
    packages=
    for name in "$@"; do
        wanted "$name" && ! built "$name" build.sh go.mod go.sum || continue
        packages="$packages k8s.io/kubernetes/cmd/$name"
    done
    [ -n "$packages" ] || return 0
    echo "compiling$(echo "$packages" | sed 's, k8s.io/kubernetes/cmd/, ,g')"
    # shellcheck disable=SC2086 # a list
    go build -trimpath -ldflags "-s -w $(stamp)" -o bin/ $packages
}

etcd() {
    wanted etcd && ! built etcd build.sh go.mod go.sum || return 0
    echo "compiling etcd"
    go build -trimpath -ldflags "-s -w" -o bin/etcd go.etcd.io/etcd/server/v3
}

peer() { # NAME DIRECTORY PACKAGE FILE...
    wanted "peer-$1" || return 0
    peer=peer-$1 directory=$2 package=$3
    shift 3
    built "$peer" build.sh "$@" && return
    echo "compiling $peer"
    bin=$PWD/bin
    (cd "$directory" && go build -trimpath -ldflags "-s -w" -o "$bin/$peer" "$package")
}

ASKED=" $* "
wanted() { case $ASKED in "  " | *" $1 "*) return 0 ;; *) return 1 ;; esac; }

mkdir -p bin
devmgr go.mod ""
devmgr k136.mod k136
devmgr k134.mod k134
commands kubelet kube-apiserver kube-controller-manager kube-scheduler kubectl
etcd

if wanted cdi-validate && ! built cdi-validate build.sh cdi/go.mod cdi/go.sum cdi/*.go; then
    echo "compiling cdi-validate"
    (cd cdi && go build -trimpath -ldflags "-s -w" -o ../bin/cdi-validate .)
fi
if wanted helm && ! built helm build.sh helm/go.mod helm/go.sum; then
    echo "compiling helm"
    (cd helm && go build -trimpath -ldflags "-s -w" -o ../bin/helm helm.sh/helm/v4/cmd/helm)
fi
if wanted kube-state-metrics && ! built kube-state-metrics build.sh ksm/go.mod ksm/go.sum; then
    echo "compiling kube-state-metrics"
    (cd ksm && go build -trimpath -ldflags "-s -w" -o ../bin/kube-state-metrics k8s.io/kube-state-metrics/v2)
fi
peer reference . ./peers/reference go.mod go.sum peers/reference/*.go
peer dra . ./peers/dra go.mod go.sum peers/dra/*.go
peer sample . k8s.io/kubernetes/test/images/sample-device-plugin go.mod go.sum
peer rdma peers/rdma . peers/rdma/go.mod peers/rdma/go.sum peers/rdma/*.go
