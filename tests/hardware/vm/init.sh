#!/bin/sh
# The first process of a guest: it loads the modules, makes the host's files its own (read-only by 9p, with memory above
# them for what is written), runs /out/command there and leaves its exit code in /out/code. Then the guest is off.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev

while read -r module; do
    insmod "/modules/$module.ko" || echo "module $module: not loaded"
done < /modules/order

shared=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,cache=loose,$shared" host /host || poweroff -f
mount -t tmpfs own /own
mkdir /own/written /own/work
mount -t overlay -o lowerdir=/host,upperdir=/own/written,workdir=/own/work overlay /root
for folder in proc sys dev; do
    mkdir -p /root/$folder
    mount --move /$folder /root/$folder
done
mkdir -p /root/dev/pts /root/dev/shm /root/out
mount -t devpts pts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs run /root/run
mount -t cgroup2 cgroup /root/sys/fs/cgroup
mount -t 9p -o "$shared" out /root/out || poweroff -f
ip link set lo up

# Not only a root directory but the root of the mount namespace: whoever enters that, as nsenter(1) does, must find this.
cd /root
mount --move . /
read -r up _ < proc/uptime
echo "guest: up after $up s"
chroot . /bin/bash /out/command < dev/null
echo $? > out/code
read -r up _ < proc/uptime
echo "guest: done after $up s"
sync
poweroff -f
