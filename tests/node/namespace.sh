#!/bin/sh
# The first process of a node's namespaces: it lays out their file system, says "ready" and waits for the end of its
# input; with it ends every process of the node. Run by nodekit/kubelet.py under unshare(1).
# usage: namespace.sh WORK
#
# Outside nothing is mounted, and nothing is written but below WORK: /var/lib, /var/log and /run are folders of WORK,
# /etc is the machine's with /etc/cdi of WORK, and the settings that a kubelet would change are plain files.
set -eu
work=$1

for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=$work/sys/$(echo "${setting%=*}" | tr / .)
    echo "${setting#*=}" > "$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done
mount -t overlay -o "lowerdir=/etc,upperdir=$work/etc,workdir=$work/etc.work" overlay /etc
mkdir -p /etc/cdi
mount --bind "$work/cdi" /etc/cdi
mount --bind "$work/lib" /var/lib
mount --bind "$work/log" /var/log
mount --bind "$work/run" /run
mount --make-rshared /
echo ready
exec cat > /dev/null
