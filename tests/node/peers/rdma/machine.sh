#!/bin/sh
# Runs a command as on a machine with one RDMA card: in a mount namespace of its own, with the files of sysfs and /dev that
# Mellanox' plugin reads. Nothing of it is left. Needs root and util-linux.
# usage: machine.sh COMMAND...
set -eu
[ "${KDP_RDMA_STAGE-}" ] || {
    KDP_RDMA_STAGE=$(mktemp -d)
    export KDP_RDMA_STAGE
    status=0
    unshare --mount --propagation private "$0" "$@" || status=$?
    rmdir "$KDP_RDMA_STAGE"
    exit "$status"
}
stage=$KDP_RDMA_STAGE
unset KDP_RDMA_STAGE
mount -t tmpfs tmpfs "$stage"

card=$stage/pci/0000:3b:00.0
mkdir -p "$card/infiniband/mlx5_0" "$stage/class/infiniband_verbs/uverbs0" "$stage/class/infiniband_mad/umad0" "$stage/class/net"
echo pci:v000015B3d0000101Dsv000015B3sd00000043bc02sc00i00 > "$card/modalias"
echo -1 > "$card/numa_node"
ln -s ../../../bus/pci/drivers/mlx5_core "$card/driver"
echo mlx5_0 | tee "$stage/class/infiniband_verbs/uverbs0/ibdev" > "$stage/class/infiniband_mad/umad0/ibdev"
printf '15b3  Mellanox Technologies\nC 02  Network controller\n' > "$stage/pci.ids"
echo '{"periodicUpdateInterval": 1, "configList": [{"resourceName": "hca", "rdmaHcaMax": 4,
  "selectors": {"vendors": ["15b3"]}}]}' > "$stage/config.json"

mkdir "$stage/dev"
for entry in /dev/*; do
    twin=$stage/dev/${entry#/dev/}
    if [ -L "$entry" ]; then
        cp -P "$entry" "$twin"
    elif [ -d "$entry" ]; then
        mkdir "$twin"
        mount --rbind "$entry" "$twin"
    else
        touch "$twin"
        mount --bind "$entry" "$twin"
    fi
done
mkdir "$stage/dev/infiniband"
for name in rdma_cm umad0 uverbs0; do
    touch "$stage/dev/infiniband/$name"
    mount --bind /dev/null "$stage/dev/infiniband/$name"
done

mount --bind "$stage/class" /sys/class
mount --bind "$stage/pci" /sys/bus/pci/devices
mount --rbind "$stage/dev" /dev
PCIDB_PATH=$stage/pci.ids KDP_RDMA_CONFIG=$stage/config.json exec "$@"
