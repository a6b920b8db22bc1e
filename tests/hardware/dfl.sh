#!/bin/sh
# Compiles the kernel's own drivers/fpga, unchanged, for the kernel in bin/kernel into bin/dfl. Twenty seconds.
set -eu
cd "$(dirname "$0")"
[ ! -e bin/dfl/.complete ] || exit 0
for program in gcc make xz; do
    command -v $program > /dev/null || {
        echo "$program is not installed: the FPGA drivers are not compiled"
        exit 0
    }
done
version=$(cat bin/kernel/version)
headers=$PWD/bin/headers
source=$(basename bin/source/usr/src/linux-source-*.tar.xz .tar.xz)
echo "compiling the FPGA drivers of $source for $version"

# The headers are not where their Makefile says.
sed -i "s|^include /usr/src/|include $headers/usr/src/|" "$headers/usr/src/linux-headers-$version/Makefile"
rm -rf bin/dfl
mkdir bin/dfl
tar -xJf "bin/source/usr/src/$source.tar.xz" -C bin/dfl --strip-components=3 "$source/drivers/fpga"
configuration=
for part in "" _BRIDGE _REGION _DFL _DFL_FME _DFL_FME_MGR _DFL_FME_BRIDGE _DFL_FME_REGION _DFL_AFU _DFL_PCI; do
    configuration="$configuration CONFIG_FPGA$part=m"
done
# shellcheck disable=SC2086 # a list
make -s -C "$headers/usr/src/linux-headers-$version" M="$PWD/bin/dfl" $configuration -j2 modules > bin/dfl/log 2>&1 || {
    tail -20 bin/dfl/log
    exit 1
}
strip --strip-debug bin/dfl/*.ko
find bin/dfl -name '*.[cho]' -delete
touch bin/dfl/.complete
