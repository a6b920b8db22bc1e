"""No form of a secret is left in a redacted snapshot: not in contents, names, or link targets."""

from __future__ import annotations

import gzip
import re
import tarfile
from pathlib import Path

import pytest

from kdp.hardware import Host
from kdp.hardware.snapshot import archive
from kdp.hardware.snapshot.redact import redact

MAC = "001122aabbcc"
PORT = "5000c500a1b2c3d4"
UUID = "f47ac10b58cc4372a5670e02b2c3d479"
NIC = "/sys/devices/pci0000:65/0000:65:00.0"
SERIAL = "S64ANJ0R123456"
ALIAS = "rack12-unit7"


def pg83(payload: bytes) -> bytes:
    return bytes([0, 0x83, 0, len(payload) + 4, 1, 3, 0, len(payload)]) + payload


TEXTS = {
    f"{NIC}/net/enx{MAC}/address": "00:11:22:AA:BB:CC\n",
    f"{NIC}/net/enx{MAC}/uevent": f"INTERFACE=enx{MAC}\nHID_UNIQ=00-11-22-aa-bb-cc\nPCI_SLOT_NAME=0000:65:00.0\n",
    f"{NIC}/net/enx{MAC}/ifalias": f"{ALIAS}\n",
    f"{NIC}/net/enx{MAC}/phys_port_id": MAC.upper(),
    f"{NIC}/net/enx{MAC}/phys_switch_id": "e41d2d0300a1b2c3",
    f"{NIC}/config": "",
    f"{NIC}/hw_addr": "0011.22aa.bbcc",
    f"{NIC}/vendor": "0x10de\n",
    f"{NIC}/resource": "0x00000000f6000000 0x00000000f6ffffff 0x0000000000140204\n",
    f"{NIC}/infiniband/mlx5_0/node_guid": "0211:22ff:feaa:bbcc\n",
    f"{NIC}/infiniband/mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:0211:22ff:feaa:bbcc\n",
    f"{NIC}/note": "the card 00:11:22:aa:bb:cc at 0000:65:00.0 answers on fe80::211:22ff:feaa:bbcc",
    "/sys/class/fc_host/host1/port_name": f"0x{PORT}\n",
    "/sys/class/sas_device/x/sas_address": f"0x{PORT.upper()}\n",
    "/sys/block/sda/device/wwid": f"naa.{PORT}\n",
    f"/sys/block/sda/holders/wwn-0x{PORT}": "",
    "/sys/block/sda/reversed": "0x" + bytes.fromhex(PORT)[::-1].hex(),
    "/sys/block/sda/other": "eui.0025385b71b00a1c",
    "/sys/class/nvme/nvme0/hostid": UUID,
    "/sys/class/nvme/nvme0/hostnqn": "nqn.2014-08.org.nvmexpress:uuid:F47AC10B-58CC-4372-A567-0E02B2C3D479",
    "/sys/class/nvme/nvme0/subsysnqn": f"nqn.2014.08.org.nvmexpress:144d144d{SERIAL}      Samsung",
    "/sys/class/nvme/nvme0/wwid": f"nvme.144d-{SERIAL.encode().hex()}-53616d73756e67-00000001",
    "/sys/class/nvme/nvme0/serial": f"{SERIAL}      \n",
    "/sys/class/nvme/nvme0/sn": "K9X81177",
    "/sys/class/dmi/id/product_uuid": "F47AC10B-58CC-4372-A567-0E02B2C3D479",
    "/sys/class/dmi/id/board_serial": "To be filled by O.E.M.",
    "/sys/class/dmi/id/text": "as To be filled by O.E.M. says",
    f"/dev/disk/by-id/nvme-Samsung_{SERIAL}/x": "1",
    "/proc/driver/nvidia/gpus/0000:65:00.0/information": f"GPU UUID:  GPU-{UUID[:8]}-58cc-4372-a567-0e02b2c3d479",
    "/sys/bus/pci/slots/0/address": "0000:65:00\n",
}
BINARY = {
    "/sys/block/sda/device/vpd_pg83": pg83(bytes.fromhex(PORT)),
    "/sys/block/sda/device/vpd_pg80": b"\0\x80\0\x0e" + SERIAL.encode(),
    "/sys/block/sda/device/inquiry": bytes(8) + b"ATA     Samsung SSD 870 1B6Q" + SERIAL.encode(),
    f"{NIC}/rom": b"\1\2" + bytes.fromhex(MAC) + b"\3" + bytes.fromhex(PORT)[::-1] + b"\4",
    f"{NIC}/dsn": b"\0" + bytes.fromhex("001122ffffaabbcc")[::-1],
}
SECRETS = [MAC, PORT, UUID, SERIAL, ALIAS, "0025385b71b00a1c", "e41d2d0300a1b2c3", "021122fffeaabbcc", "K9X81177"]


def node() -> archive.Snapshot:
    taken = archive.Snapshot(kernel="Linux 6.1 x86_64")
    for path, text in TEXTS.items():
        taken.files[path] = archive.FileEntry(text.encode())
    for path, data in BINARY.items():
        taken.files[path] = archive.FileEntry(data)
    taken.directories.add(f"{NIC}/net/enx{MAC}/queues")
    taken.links[f"/sys/class/net/enx{MAC}"] = f"../../devices/pci0000:65/0000:65:00.0/net/enx{MAC}"
    taken.links[f"/dev/disk/by-id/wwn-0x{PORT.upper()}"] = "../../sda"
    taken.unreadable[f"{NIC}/net/enx{MAC}/duplex"] = "Invalid argument"
    return taken


def forms(secret: str) -> set[bytes]:
    plain = re.sub(r"[^0-9a-z]", "", secret.lower()).encode()
    found = {plain, plain.hex().encode()}
    if re.fullmatch(rb"[0-9a-f]{12,}", plain):
        raw = bytes.fromhex(plain.decode())
        found |= {raw, raw[::-1], raw[::-1].hex().encode()}
    return found


def leaks(file: Path) -> list[str]:
    """Search everything that the archive holds, as it is and without case and separators."""
    with gzip.open(file) as packed, tarfile.open(fileobj=packed, mode="r|") as held:
        texts: list[bytes] = []
        for member in held:
            texts += [member.name.encode(), member.linkname.encode()]
            if member.isfile():
                stream = held.extractfile(member)
                assert stream is not None
                texts.append(stream.read())
    views = [view for text in texts for view in (text, re.sub(rb"[^0-9a-z]", b"", text.lower()))]
    return [f"{secret}: {view!r}" for secret in SECRETS for form in forms(secret) for view in views if form in view]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    taken = node()
    archive.write(taken, tmp_path / "plain.tar.gz")
    assert len(leaks(tmp_path / "plain.tar.gz")) > len(SECRETS), "the search finds what is there"
    redact(taken, ["serials", "addresses"])
    archive.write(taken, tmp_path / "node.tar.gz")
    return tmp_path / "node.tar.gz"


def test_no_form_of_a_secret_is_left(file: Path) -> None:
    assert leaks(file) == []


def test_a_redacted_tree_is_still_a_tree(file: Path) -> None:
    host = Host.of_snapshot(file)
    (name,) = (interface.name for interface in host.net_interfaces())
    assert re.fullmatch(r"enx0{10}\d\d", name)
    assert host.reading(f"/sys/class/net/{name}/address").value == ":".join(re.findall("..", name[3:]))
    assert host.reading(f"{NIC}/vendor").value == "0x10de"
    assert host.reading(f"{NIC}/resource").value == TEXTS[f"{NIC}/resource"].strip()
    assert "PCI_SLOT_NAME=0000:65:00.0" in (host.reading(f"/sys/class/net/{name}/uevent").value or "")
    assert host.reading("/sys/bus/pci/slots/0/address").value == "0000:65:00"
    port = host.reading("/sys/class/fc_host/host1/port_name").value
    assert port == host.reading("/sys/class/sas_device/x/sas_address").value
    assert host.reading("/sys/block/sda/device/wwid").value == f"naa.{(port or '')[2:]}"
    assert host.reading("/sys/class/dmi/id/text").value == TEXTS["/sys/class/dmi/id/text"]
