#!/bin/sh
# Unpacks a container runtime and Prometheus of Debian's into tests/node/bin, beside the compiled commands. Nothing is
# installed, and no list of the system's apt is touched.
# usage: packages.sh [NAME...]     NAMEs as they are called in bin/; none: everything
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

ASKED=" $* "
wanted() { case $ASKED in "  " | *" $1 "*) return 0 ;; *) return 1 ;; esac; }

is_debian "containerd, runc and a static busybox" || exit 0
! wanted runtime || unpacked runtime "$own" runc busybox-static
! wanted cni || unpacked cni "$own" containernetworking-plugins
! wanted prometheus || unpacked prometheus "$own" prometheus
! wanted podman || unpacked podman machine podman
! wanted containerd-1 || unpacked containerd-1 trixie containerd
! wanted containerd-2 || unpacked containerd-2 sid containerd
[ ! -e bin/.unanswered ] || exit 75
