#!/bin/sh
# Unpacks what a guest is made of into tests/hardware/bin, and builds the FPGA drivers there. Nothing is installed.
# usage: packages.sh
#
#   bin/qemu/     qemu-system-x86_64 with its libraries and firmware
#   bin/busybox/  the guest's first programs
#   bin/kernel/   Debian's newest kernel for this suite, with its modules
#   bin/headers/  what modules for it are compiled with
#   bin/source/   the kernel's drivers/fpga, which Debian's configuration leaves out
#   bin/dfl/      those drivers, compiled (dfl.sh)
#   bin/secilc/   the compiler of SELinux policies
#   bin/verbs/    ibv_rc_pingpong, and the library's part for soft-RoCE
#
# A source that does not answer three times makes it end with 75, and bin/.unanswered says which packages are missing.
set -eu
cd "$(dirname "$0")"
. ../../scripts/debian.sh

is_debian "qemu-system-x86_64 and busybox-static" || exit 0
architecture=$(dpkg --print-architecture)
[ "$architecture" = amd64 ] || {
    echo "the guests are amd64 machines, and this one is $architecture: they are not prepared"
    exit 0
}

unpacked qemu machine qemu-system-x86
unpacked busybox "$own" busybox-static
unpacked secilc machine secilc
unpacked verbs machine ibverbs-utils ibverbs-providers
if [ ! -e bin/kernel/.complete ] || [ ! -e bin/dfl/.complete ]; then
    kernel=$(needed "$own" linux-image-amd64 'linux-image-[0-9].*') || true
    version=${kernel#linux-image-}
    if [ -n "$kernel" ]; then
        [ "$(cat bin/kernel/version 2> /dev/null)" = "$version" ] || rm -rf bin/kernel bin/headers bin/source bin/dfl
        unpacked kernel "$own" "$kernel"
        [ ! -e bin/kernel/.complete ] || echo "$version" > bin/kernel/version
        unpacked headers "$own" "linux-headers-$version" \
            "$(needed "$own" "linux-headers-$version" 'linux-headers-.*-common')" \
            "$(needed "$own" "linux-headers-$version" 'linux-kbuild-.*')"
        unpacked source "$own" "linux-source-$(echo "$version" | cut -d. -f1,2)"
    else
        echo "linux-image-amd64: $mirror did not name a kernel" | tee -a bin/.unanswered >&2
    fi
fi
[ ! -e bin/.unanswered ] || exit 75
sh dfl.sh
