"""The bundle: everything that an issue needs, and nothing that opens a door or tells one machine from another."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import attrs
import pytest

from kdp.doctor.answers import Question, failed, ok
from kdp.doctor.bundle import PLACE, Settings, listed, make, read
from kdp.doctor.examination import examine
from kdp.doctor.node import Node
from kdp.errors import ConfigurationError
from kdp.hardware.host import Host
from kdp.hardware.snapshot import archive
from kdp.hardware.snapshot.archive import Snapshot

from .samples import device, node_in, resource, status, written

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6Ik.eyJpc3MiOiJrdWJlcm5ldGVz.c2lnbmF0dXJl"
SECRETS = {
    "a token by its shape": JWT,
    "another one": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "a bootstrap token": "07401b.f395accd246ae52d",
    "a password in an address": "tr0ub4dor",
    "a short password": "xyzzy",
    "a variable's": "opensesame",
    "a parameter's": "license-8472-TPK",
    "a parameter's without a telling name": "value-of-a-parameter",
    "a serial number": "0324418017263",
    "the same in hexadecimal": b"0324418017263".hex(),
    "one that only a reason names": "SN-99431A7",
    "a MAC address": "0c:42:a1:7e:35:9b",
    "the same without colons": "0c42a17e359b",
    "a UUID": "9f86d081-884c-4d65-9a2f-eaa0c55ad015",
    "what a container was given": "given-to-the-container",
    "that as the kubelet writes it": base64.b64encode(b"given-to-the-container").decode(),
    "a state of an allocation": "state-of-the-vendor",
    "a token that the plugin's own log has": "glpat-Zx81kPq03LmNw72",
    "a password there": "hunter2horse",
}

LOG = (
    "2026-03-04T09:00:00.000Z INFO    kdp.daemon: example.com/w: registered with the kubelet\n"
    "2026-03-04T09:00:01.000Z ERROR   vendor: login with glpat-Zx81kPq03LmNw72 failed\n"
    "2026-03-04T09:00:02.000Z ERROR   vendor: password=hunter2horse was refused by card 0324418017263\n"
    "2026-03-04T09:00:03.000Z ERROR   vendor: opensesame does not open 0c:42:a1:7e:35:9b\n"
)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    pci = tmp_path / "host/sys/bus/pci/devices/0000:03:00.0"
    for name, text in {
        "vendor": "0x15b3\n",
        "serial": "0324418017263\n",
        "net/eth0/address": "0c:42:a1:7e:35:9b\n",
    }.items():
        written(pci / name, text)
    reasons = [
        f"login failed: token={JWT}",
        "cannot fetch https://robot:tr0ub4dor@registry.example.com/v2",
        "the card with serial number SN-99431A7 answered 'password is xyzzy'",
        "card 0324418017263 at 0C-42-A1-7E-35-9B is gone; the door opens with opensesame",
        f"wwid {b'0324418017263'.hex()}, key license-8472-TPK",
    ]
    listed = [
        device(f"GPU-9f86d081-884c-4d65-9a2f-eaa0c55ad015-{i}", reason=reason) for i, reason in enumerate(reasons)
    ]
    document = status(resource(*listed), events=[{"text": "Bearer ghp_16C7e42F292c6912E7710c838347Ae178B4a"}])
    made = node_in(
        tmp_path,
        {**document, "auth": {"password": "xyzzy", "attempts": 324418017263}},
        f"{tmp_path}/1.sock: refused with 07401b.f395accd246ae52d; is the plugin running?",
        host=Host(tmp_path / "host"),
        environ={"REGISTRY_TOKEN": "opensesame", "HOME": "/root"},
        ask_log=lambda path: (0, LOG) if path.name == "0.sock" else (1, "here are /livez"),
    )
    pods = [{"PodUID": "9f86d081-884c-4d65-9a2f-eaa0c55ad015", "ContainerName": "main", "ResourceName": "example.com/w",
             "DeviceIDs": {"0": ["w0"]}, "AllocResp": SECRETS["that as the kubelet writes it"]}]  # fmt: skip
    data = {"PodDeviceEntries": pods, "RegisteredDevices": {"example.com/w": ["w0", "w1"]}}
    written(made.paths.device_plugin_dir / "kubelet_internal_checkpoint", json.dumps({"Data": data, "Checksum": 1}))
    written(tmp_path / "state/allocations.json", json.dumps({"state": "state-of-the-vendor"}))
    return made


def _question() -> Question[Any]:
    return Question(id="a", title="Is it?", why="It matters.", ask=lambda _: failed(f"no: {JWT}", "rm -r x"))


SETTINGS = Settings(
    settings={"KDP_HTTP": ":8080"},
    parameters={"license_key": "license-8472-TPK", "other": "value-of-a-parameter", "password": "xyzzy"},
)


def bundle(node: Node) -> Snapshot:
    return make(node, examine([_question()], node), SETTINGS)


def everything(file: Path) -> bytes:
    """Return the archive's plain bytes: contents, names, and link targets."""
    return gzip.decompress(file.read_bytes())


@pytest.mark.thorough
def test_the_shells_directory_is_no_password(node: Node, tmp_path: Path) -> None:
    node = attrs.evolve(node, environ={"PWD": str(tmp_path), "OLDPWD": "/root", "MYSQL_PWD": "opensesame"})
    state = json.loads(bundle(node).files[f"{PLACE}/state.json"].data)
    assert f"{tmp_path}/state" in state
    assert b"opensesame" not in b"".join(file.data for file in bundle(node).files.values())


def test_what_an_issue_needs_is_in_it(node: Node, tmp_path: Path) -> None:
    made = bundle(node)
    documents = {
        path.removeprefix(f"{PLACE}/"): json.loads(file.data)
        for path, file in made.files.items()
        if path.startswith(PLACE) and path.endswith(".json")
    }
    assert sorted(documents) == [
        *("about.json", "answers.json", "checkpoint.json", "settings.json", "state.json", "status-0.json"),
        "status-1.json",
    ]
    assert documents["about.json"]["kdp"] == "0.1.0"
    assert documents["answers.json"][0]["seen"].startswith("no: ")
    assert documents["checkpoint.json"]["registered"] == {"example.com/w": ["w0", "w1"]}
    assert documents["checkpoint.json"]["pods"][0]["DeviceIDs"] == {"0": ["w0"]}
    assert documents["settings.json"]["settings"] == {"KDP_HTTP": ":8080"}
    assert "allocations.json" in documents["state.json"][f"{tmp_path}/state"]
    [served] = documents["status-0.json"]["status"]["resources"]
    assert [each["health"] for each in served["listed"]] == ["Unhealthy"] * 5
    assert "refused with" in documents["status-1.json"]["status"]["problem"]
    assert made.files["/sys/bus/pci/devices/0000:03:00.0/vendor"].data == b"0x15b3\n"
    contents = made.files[f"{PLACE}/CONTENTS"].data.decode().splitlines()
    assert contents == listed(made)
    assert len(contents) == len(documents) + 2


def test_no_secret_is_left(node: Node, tmp_path: Path) -> None:
    archive.write(bundle(node), tmp_path / "b.tar.gz")
    text = everything(tmp_path / "b.tar.gz").lower()
    for what, secret in SECRETS.items():
        for form in {secret.lower(), secret.lower().replace(":", "-")}:
            assert form.encode() not in text, what


def test_equal_serial_numbers_stay_equal_across_hardware_and_documents(node: Node) -> None:
    made = bundle(node)
    stand_in = made.files["/sys/bus/pci/devices/0000:03:00.0/serial"].data.strip().decode()
    assert stand_in not in ("", "0324418017263")
    assert f"card {stand_in} at" in made.files[f"{PLACE}/status-0.json"].data.decode()


def test_the_answers_are_read_elsewhere(node: Node, tmp_path: Path) -> None:
    archive.write(bundle(node), tmp_path / "b.tar.gz")
    found = read(tmp_path / "b.tar.gz")
    assert found.about["kdp"] == "0.1.0"
    [finding] = found.findings
    assert (finding.question.id, finding.answer.verdict.value, finding.answer.remedy) == ("a", "failed", "rm -r x")


@pytest.mark.parametrize("text", ["", "7", '[{"answer": "perhaps"}]'])
def test_what_is_no_bundle_is_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    snapshot = Snapshot()
    if text:
        snapshot.files[f"{PLACE}/about.json"] = archive.FileEntry(b"{}")
        snapshot.files[f"{PLACE}/answers.json"] = archive.FileEntry(text.encode())
    archive.write(snapshot, tmp_path / "b.tar.gz")
    with pytest.raises(ConfigurationError, match="expected a file as kdp doctor --bundle writes it"):
        read(tmp_path / "b.tar.gz")


def test_a_log_of_the_pod_in_whose_volume_the_socket_is_is_taken(tmp_path: Path) -> None:
    uid = "11111111-2222-3333-4444-555555555555"
    path = Path(f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/run/plugin.sock")
    answer = 0, json.dumps(status(resource()))
    made = node_in(tmp_path, host=Host(tmp_path / "host"), sockets=(path,), ask=lambda _: answer)
    written(tmp_path / f"host/var/log/pods/kube-system_kdp_{uid}/main/0.log", "started\n")
    taken = make(made, examine([], made), Settings())
    assert taken.files[f"{PLACE}/logs/1-main-0.log"].data == b"started\n"
    assert [each.label for each in made.plugins()] == [f"plugin.sock of pod {uid}"]


def test_a_node_where_nothing_can_be_read_makes_a_bundle_too(tmp_path: Path) -> None:
    node = node_in(tmp_path, state_dir=None)
    made = make(node, examine([Question(id="b", title="?", why="!", ask=lambda _: ok("yes"))], node), Settings())
    archive.write(made, tmp_path / "b.tar.gz")
    assert read(tmp_path / "b.tar.gz").findings[0].answer.seen == "yes"
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "b.tar.gz").read_bytes())) as opened:
        assert "kdp-bundle/CONTENTS" in opened.getnames()


def test_the_plugins_own_last_lines_are_in_it_without_secrets(node: Node) -> None:
    """In a container there are no files of the kubelet."""
    made = bundle(node)
    assert [path for path in made.files if "/logs/" in path] == [f"{PLACE}/logs/plugin-0.log"]
    lines = made.files[f"{PLACE}/logs/plugin-0.log"].data.decode().splitlines()
    assert lines[0].endswith("example.com/w: registered with the kubelet")
    assert lines[1].endswith("login with *** failed")
    assert "password=*** was refused by card" in lines[2]
    assert any("logs/plugin-0.log: the last lines of a plugin's log" in line for line in listed(made))
