#!/bin/sh
# Unpacks a container runtime and Prometheus of Debian's into tests/node/bin, beside the compiled commands. Nothing is installed, and
# no list of the system's apt is touched. usage: packages.sh
#
#   bin/runtime/        runc and busybox of the suite that this machine runs
#   bin/containerd-1/   containerd 1.7
#   bin/containerd-2/   containerd 2
#   bin/podman/         podman with what it needs, for CDI without a kubelet
#   bin/cni/            the plugins that give a pod its network, of the suite that this machine runs
#   bin/prometheus/     prometheus and promtool, of the suite that this machine runs
#
# A source that does not answer three times makes it end with 75, and bin/.unanswered says which packages are missing.
set -eu
cd "$(dirname "$0")"
. ../../scripts/debian.sh

is_debian "containerd, runc and a static busybox" || exit 0
unpacked runtime "$own" runc busybox-static
unpacked cni "$own" containernetworking-plugins
unpacked prometheus "$own" prometheus
unpacked podman machine podman
unpacked containerd-1 trixie containerd
unpacked containerd-2 sid containerd
[ ! -e bin/.unanswered ] || exit 75
