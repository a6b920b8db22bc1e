"""CDI: the runtime's configuration, the directory, and kdp's files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import attrs
import pytest

from kdp.admin.doctor import cdi
from kdp.admin.doctor.node import Node

from .samples import LEFT_OUT, node_in, resource, status, told, written

CONFIG = "host/etc/containerd/config.toml"


def spec(node: str | None = None, name: str = "w0") -> dict[str, Any]:
    edits = {"env": ["A=1"]} if node is None else {"deviceNodes": [{"path": node}]}
    return {"cdiVersion": "0.5.0", "kind": "kdp.example.com/w", "devices": [{"name": name, "containerEdits": edits}]}


def with_file(root: Path, text: str | None = None, name: str = "kdp_w.json") -> Node:
    written(root / "cdi" / name, json.dumps(spec()) if text is None else text)
    return node_in(root)


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        ("version = 3", "ok", "containerd uses CDI"),
        ("version = 2", "not known", "does not say enable_cdi"),
        ('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false', "warning", "1 CDI file here | set"),
        (
            'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/x"]\nenable_cdi = true',
            "warning",
            "looks for CDI files in /x, not in",
        ),
        ("no = = toml", "not known", "cannot be read as TOML"),
    ],
)
def test_containerd(tmp_path: Path, text: str, verdict: str, said: str) -> None:
    written(tmp_path / CONFIG, text)
    found, sentence = told(cdi.runtime(with_file(tmp_path)))
    assert (found, said in sentence) == (verdict, True), sentence


def test_a_nodes_link_was_followed_in_the_pod_that_has_the_nodes_files(tmp_path: Path) -> None:
    """/var/run is a link to /run on most nodes; what is at /host/var/run is then at /host/run."""
    written(
        tmp_path / CONFIG, 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/var/rundir/cdi"]'
    )
    (tmp_path / "host/rundir/cdi").mkdir(parents=True)
    (tmp_path / "host/var").mkdir()
    (tmp_path / "host/var/rundir").symlink_to("/rundir")
    node = attrs.evolve(node_in(tmp_path), cdi_dir=tmp_path / "host/rundir/cdi")
    assert told(cdi.runtime(node))[0] == "ok"
    other = attrs.evolve(node_in(tmp_path), cdi_dir=tmp_path / "host/rundir/other")
    assert told(cdi.runtime(other))[0] == "warning"

    # A plugin tells its own path, which the node's is below another directory.
    node = node_in(tmp_path, status(resource(), directories={"cdi": "/var/rundir/cdi"}))
    assert told(cdi.runtime(node))[0] == "ok"
    assert told(cdi.directory(node)) == ("ok", f"{tmp_path}/host/rundir/cdi is writable | ")


def test_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_in(tmp_path)
    assert told(cdi.directory(node))[0] == "ok"
    assert told(cdi.directory(node_in(tmp_path, environ={"KUBERNETES_SERVICE_HOST": "x"}))) == LEFT_OUT
    node.cdi_dir.mkdir()
    assert told(cdi.directory(node)) == ("ok", f"{node.cdi_dir} is writable | ")
    monkeypatch.setattr(cdi, "may_write", lambda path: False)
    assert "may not write" in told(cdi.directory(node))[1]
    monkeypatch.setattr(cdi, "is_read_only", lambda path: True)
    assert told(cdi.directory(node))[0] == "warning"
    node.cdi_dir.rmdir()
    node.cdi_dir.touch()
    assert told(cdi.directory(node))[0] == "failed"


def test_the_directory_of_the_plugin_is_looked_at_and_not_only_the_commands(tmp_path: Path) -> None:
    def telling(*directories: str | None) -> Node:
        return node_in(tmp_path, *(status(resource(), directories={"cdi": each}) for each in directories))

    assert told(cdi.directory(telling(None))) == ("ok", "the plugin writes no CDI files | ")
    (tmp_path / "theirs").mkdir()
    assert told(cdi.directory(telling(None, f"{tmp_path}/theirs"))) == ("ok", f"{tmp_path}/theirs is writable | ")
    written(tmp_path / "file", "")
    verdict, text = told(cdi.directory(telling(f"{tmp_path}/theirs", f"{tmp_path}/file")))
    assert (verdict, f"{tmp_path}/file is no directory" in text) == ("failed", True)
    written(tmp_path / "theirs/kdp_w.json", "{")
    assert f"{tmp_path}/theirs/kdp_w.json" in told(cdi.files(telling(f"{tmp_path}/theirs")))[1]
    written(tmp_path / CONFIG, 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/x"]')
    verdict, text = told(cdi.runtime(telling(f"{tmp_path}/theirs")))
    assert (verdict, f"in /x, not in {tmp_path}/theirs" in text) == ("warning", True)
    assert told(cdi.runtime(telling(None)))[0] == "ok"
    verdict, text = told(cdi.directory(node_in(tmp_path, status(resource()))))  # a version that tells none
    assert (verdict, f"{tmp_path}/cdi does not exist" in text) == ("ok", True)


@pytest.mark.parametrize(("is_used", "verdict"), [(False, "warning"), (True, "failed")])
def test_a_directory_that_could_not_be_made_was_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_used: bool, verdict: str
) -> None:
    monkeypatch.setattr(cdi, "why_no_file", lambda path: "Permission denied")
    documents = [status(resource(), directories={"cdi": f"{tmp_path}/cdi"})] if is_used else []
    node = node_in(tmp_path, *documents)
    found, text = told(cdi.directory(node))
    assert (found, f"user {os.geteuid()} cannot make it: Permission denied" in text) == (verdict, True)
    assert f"install -d -m 0700 -o {os.geteuid()} {tmp_path}/cdi" in text
    node.cdi_dir.mkdir()
    monkeypatch.setattr(cdi, "why_no_file", lambda path: "No space left on device")
    found, text = told(cdi.directory(node))
    assert (found, "No space left on device | make room there: df -h" in text) == (verdict, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is no JSON"), ("{}", "cdiVersion: is missing")],
)
def test_a_damaged_file(tmp_path: Path, text: str, said: str) -> None:
    verdict, sentence = told(cdi.files(with_file(tmp_path, text)))
    assert (verdict, said in sentence) == ("failed", True)


def test_a_file_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    import os

    (tmp_path / "cdi").mkdir()
    os.mkfifo(tmp_path / "cdi/kdp_w.json")
    assert "it is a FIFO" in told(cdi.files(node_in(tmp_path)))[1]


def test_a_device_that_two_files_have(tmp_path: Path) -> None:
    with_file(tmp_path)
    verdict, sentence = told(cdi.files(with_file(tmp_path, name="kdp_w_old.json")))
    assert (verdict, "so the runtime uses neither | remove" in sentence) == ("failed", True)


def test_a_file_that_names_a_missing_node(tmp_path: Path) -> None:
    verdict, sentence = told(cdi.files(with_file(tmp_path, json.dumps(spec("/dev/absent0")))))
    assert (verdict, "missing: /dev/absent0" in sentence) == ("warning", True)


OFF = 'version = 2\nimports = ["conf.d/*.toml"]\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n'
SECTION = '[plugins."io.containerd.grpc.v1.cri"]\n'


@pytest.mark.parametrize(
    ("imported", "verdict", "said"),
    [
        (f"{SECTION}enable_cdi = true\n", "ok", "containerd uses CDI (/etc/containerd/conf.d/10-cdi.toml)"),
        (f"{SECTION}sandbox_image = 'x'\n", "not known", "each have a part of the CRI plugin's settings"),
        ("[debug]\nlevel = 'info'\n", "warning", "/etc/containerd/config.toml turns CDI off"),
        ("no = = toml", "not known", "cannot be read as TOML"),
    ],
)
def test_an_imported_file_that_turns_cdi_on_was_not_read(
    tmp_path: Path, imported: str, verdict: str, said: str
) -> None:
    written(tmp_path / CONFIG, OFF)
    written(tmp_path / "host/etc/containerd/conf.d/10-cdi.toml", imported)
    found, text = told(cdi.runtime(with_file(tmp_path)))
    assert (found, said in text) == (verdict, True), text


def test_imports_in_a_circle_end(tmp_path: Path) -> None:
    written(tmp_path / CONFIG, 'version = 3\nimports = ["/etc/containerd/*.toml", 7]\n')
    assert told(cdi.runtime(with_file(tmp_path)))[0] == "ok"


@pytest.mark.parametrize("name", ["theirs.json", "theirs.yaml"])
def test_another_file_with_the_same_device_was_all_valid(tmp_path: Path, name: str) -> None:
    node = attrs.evolve(with_file(tmp_path), parse_yaml=json.loads)  # JSON is YAML
    written(tmp_path / "cdi" / name, json.dumps(spec()))
    verdict, text = told(cdi.files(node))
    assert verdict == "failed"
    assert f"kdp.example.com/w=w0 is in {tmp_path}/cdi/kdp_w.json and in {tmp_path}/cdi/{name}, so the" in text
    assert f"rm {tmp_path}/cdi/{name}" in text
    written(tmp_path / "cdi" / name, json.dumps(spec(name="w1")))
    assert told(cdi.files(node))[0] == "ok"
    written(tmp_path / "cdi" / name, "{ kdp.example.com/w")
    assert told(cdi.files(node))[0] == "ok"


def test_a_file_of_a_later_directory_is_used_instead(tmp_path: Path) -> None:
    node = attrs.evolve(with_file(tmp_path), cdi_dirs=(tmp_path / "cdi", tmp_path / "run"))
    written(tmp_path / "run/theirs.json", json.dumps(spec()))
    verdict, text = told(cdi.files(node))
    assert (verdict, f"which the runtime uses instead of {tmp_path}/cdi/kdp_w.json" in text) == ("failed", True)
    node = attrs.evolve(node, cdi_dirs=(tmp_path / "run", tmp_path / "cdi"))
    assert told(cdi.files(node))[0] == "ok"


def test_the_command_for_a_directory_in_a_files_place_removed_no_directory(tmp_path: Path) -> None:
    (tmp_path / "cdi/kdp_w.json").mkdir(parents=True)
    verdict, text = told(cdi.files(node_in(tmp_path)))
    assert (verdict, text.endswith(f": rm -r {tmp_path}/cdi/kdp_w.json")) == ("failed", True), text
