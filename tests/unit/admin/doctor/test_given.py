"""What plugins were given is read of living processes: here they only listen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kdp.admin.doctor.given import PluginInputs, given_to_plugins
from kdp.operations.status_document import StatusDocument

from .samples import dead, node_in, written

LISTENS = """
import os, socket, sys
made = socket.socket(socket.AF_UNIX)
made.bind(sys.argv[1])
if sys.argv[2] != "/":
    os.chroot(sys.argv[2])
made.listen()
print("listens", flush=True)
sys.stdin.read()
"""


@contextmanager
def living(
    socket: Path, *arguments: str, root: Path = Path("/"), cwd: Path | None = None, **environ: str
) -> Generator[int]:
    command = [sys.executable, "-c", LISTENS, str(socket), str(root), *arguments]
    with subprocess.Popen(
        command, env={"PATH": "/bin", **environ}, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listens\n"
        yield process.pid
        process.communicate()


def parameters_of(file: Path, text: str) -> Mapping[str, object]:
    return {f"of {file.name}": text}


def given(tmp_path: Path, *sockets: Path, **told: object) -> PluginInputs:
    document = StatusDocument.from_json({"ready": True, "resources": [], **told})
    return given_to_plugins(node_in(tmp_path), dict.fromkeys(sockets, document), parameters_of)


def kept(directory: Path, file: str, text: str) -> Path:
    return written(directory / "config-0.json", json.dumps({"version": 1, "file": file, "text": text}))


def test_all_values_are_taken_where_plugins_have_a_name_in_common(tmp_path: Path) -> None:
    sockets = tmp_path / "a.sock", tmp_path / "b.sock"
    first = living(sockets[0], "--set", "token=one", "--set=token=two", KDP_SET_PIN="4", VENDOR_WORD="a=b")
    with first, living(sockets[1], "--set", "token=three", VENDOR_WORD="c"):
        found = given(tmp_path, *sockets)
    assert found.parameters == {"token": ["one", "two", "three"], "KDP_SET_PIN": ["4"]}
    assert found.environ["VENDOR_WORD"] == ["a=b", "c"]
    assert found.not_read == []


def test_the_files_of_a_directory_and_a_kubeconfig_are_read(tmp_path: Path) -> None:
    for name in ("default.yaml", "large.yaml", "..data/large.yaml"):
        written(tmp_path / "configs" / name, f"text of {name}")
    written(tmp_path / "k", "of the kubeconfig")
    with living(tmp_path / "a.sock", "--kubeconfig", "k", cwd=tmp_path, KDP_CONFIG="configs"):
        found = given(tmp_path, tmp_path / "a.sock")
    assert found.parameters["of default.yaml"] == ["text of default.yaml"]
    assert found.parameters["of large.yaml"] == ["text of large.yaml"]
    assert b"of the kubeconfig" in found.texts
    assert found.not_read == []


def test_the_last_good_configuration_is_read_in_each_state_directory(tmp_path: Path) -> None:
    kept(tmp_path / "state", "/etc/one.yaml", "of the doctor")
    kept(tmp_path / "other", "/etc/two.yaml", "of the plugin")
    written(tmp_path / "other/config-1.json", "damaged")
    with living(tmp_path / "a.sock"):
        found = given(tmp_path, tmp_path / "a.sock", directories={"state": str(tmp_path / "other")})
    assert (found.parameters["of one.yaml"], found.parameters["of two.yaml"]) == (["of the doctor"], ["of the plugin"])
    assert b"damaged" in found.texts


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    dead(tmp_path / "d.sock")
    written(tmp_path / "state", "no directory")
    (tmp_path / "loop").symlink_to("loop")
    with living(tmp_path / "a.sock", "--config", "/none.yaml", KDP_CONFIG=str(tmp_path / "loop")) as pid:
        found = given(tmp_path, tmp_path / "d.sock", tmp_path / "a.sock")
    assert found.not_read == [
        f"{tmp_path}/state/config-*.json (Not a directory)",
        f"variables, arguments, and files of the plugin at {tmp_path}/d.sock (no process is seen)",
        f"/none.yaml of process {pid} (No such file or directory)",
        f"{tmp_path}/loop of process {pid} (Too many levels of symbolic links)",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root directory")
def test_a_container_has_a_root_of_its_own(tmp_path: Path) -> None:
    written(tmp_path / "root/mounted/c.yaml", "of the container")
    (tmp_path / "root/c.yaml").symlink_to("/mounted/c.yaml")
    kept(tmp_path / "root/kept", "/etc/two.yaml", "of its state")
    with living(tmp_path / "a.sock", "--config", "/c.yaml", root=tmp_path / "root"):
        found = given(tmp_path, tmp_path / "a.sock", directories={"state": "/kept"})
    assert (found.parameters["of c.yaml"], found.parameters["of two.yaml"]) == (["of the container"], ["of its state"])
    assert found.not_read == []


@pytest.mark.parametrize(("count", "size"), [(300, 3), (20, 1 << 20)], ids=["many", "large"])
def test_a_directory_of_files_had_no_bound(tmp_path: Path, count: int, size: int) -> None:
    """300 sparse files of a plugin's directory were 2.4 GB of a bundle."""
    for number in range(count):
        written(tmp_path / f"configs/{number:03}.yaml", "x" * size)
    with living(tmp_path / "a.sock", cwd=tmp_path, KDP_CONFIG="configs") as pid:
        found = given(tmp_path, tmp_path / "a.sock")
    assert 10 < sum("of " in name for name in found.parameters) <= 200
    assert sum(len(str(text)) for texts in found.parameters.values() for text in texts) <= 17 << 20
    [told] = found.not_read
    assert told.endswith(f"of process {pid} (too much)")
