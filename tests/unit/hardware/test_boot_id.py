"""Which boot of the node this is."""

from __future__ import annotations

from pathlib import Path

from kdp.hardware import Host
from kdp.hardware.host import boot_id_of


def test_a_container_that_has_the_nodes_files_elsewhere_knows_the_boot(tmp_path: Path) -> None:
    """Its manifest does not mount the node's /proc. Without the boot ID, old claims would pass for prepared."""
    assert boot_id_of(Host(tmp_path)) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_nodes_files_say_it_first(tmp_path: Path) -> None:
    folder = tmp_path / "proc/sys/kernel/random"
    folder.mkdir(parents=True)
    (folder / "boot_id").write_text("another\n")

    assert boot_id_of(Host(tmp_path)) == "another"
