"""The bundle: everything that an issue needs, and nothing that opens a door or tells one machine from another."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from tests.nobody import as_nobody

from kdp.admin.doctor.answers import Question, examine, failed, ok
from kdp.admin.doctor.bundle import CONTENTS, PLACE, BundleSettings, listed, make, read
from kdp.admin.doctor.node import Node
from kdp.command.app import kdp
from kdp.errors import ConfigurationError
from kdp.hardware.host import Host
from kdp.hardware.snapshot import archive
from kdp.hardware.snapshot.archive import Snapshot

from .samples import device, event, node_in, resource, status, written

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
    document = status(resource(*listed), events=[event("Bearer ghp_16C7e42F292c6912E7710c838347Ae178B4a")])
    made = node_in(
        tmp_path,
        {
            **document,
            "settings": {"cdi": "beside", "http": ":9090"},
            "auth": {"password": "xyzzy", "attempts": 324418017263},
        },
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


SETTINGS = BundleSettings(
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
    assert documents["settings.json"]["doctor"]["settings"] == {"KDP_HTTP": ":8080"}
    plugins = [{"cdi": "beside", "http": ":9090"}, "not told"]
    assert [*documents["settings.json"]["plugins"].values()] == plugins
    assert "allocations.json" in documents["state.json"][f"{tmp_path}/state"]
    [served] = documents["status-0.json"]["status"]["resources"]
    assert [each["health"] for each in served["listed"]] == ["Unhealthy"] * 5
    assert "refused with" in documents["status-1.json"]["status"]["problem"]
    assert made.files["/sys/bus/pci/devices/0000:03:00.0/vendor"].data == b"0x15b3\n"
    contents = made.files[f"{PLACE}/CONTENTS"].data.decode().splitlines()
    assert contents == listed(made)
    assert contents[0].startswith("Before you send this, look through logs/")
    about_files, not_read = contents[: len(documents) + 3], contents[len(documents) + 3 :]
    assert "kdp-bundle/status-0.json: what a plugin says of itself: " in "\n".join(about_files)
    assert "kdp-bundle/status-1.json: only the reason why a plugin did not answer with its status, 1 KiB" in about_files
    assert not_read == [
        f"not read, so a secret of it may be left in a log or reason: {what}"
        for number in (0, 1)
        for what in [f"variables, arguments, and files of the plugin at {tmp_path}/{number}.sock (no process is seen)"]
    ]


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
    answered, silent = found.statuses
    assert answered.status is not None
    assert (answered.socket, answered.problem, answered.status.resources[0].devices) == (f"{tmp_path}/0.sock", "", 5)
    assert (silent.status, "refused with" in silent.problem) == (None, True)
    assert found.about["made"] == f"{found.made:%Y-%m-%dT%H:%M:%SZ}"


def test_a_page_is_made_of_a_bundle(node: Node, tmp_path: Path) -> None:
    archive.write(bundle(node), tmp_path / "b.tar.gz")
    result = CliRunner().invoke(kdp, ["status", str(tmp_path / "b.tar.gz"), "--format", "html"])
    assert result.exit_code == 1
    assert "<title>1 of 2 ready: devices of 2 plugins</title>" in result.stdout
    assert f"{tmp_path}/b.tar.gz: {tmp_path}/0.sock" in result.stdout


@pytest.mark.parametrize(
    "data",
    [b"no archive", gzip.compress(b"no archive"), gzip.compress(bytes(10240))],
    ids=["plain", "compressed", "zeros"],
)
def test_a_file_that_is_no_archive_was_refused_with_the_name_of_another_command(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "b.tar.gz").write_bytes(data)
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path / "b.tar.gz")
    assert str(caught.value).startswith(f"bundle {tmp_path}/b.tar.gz: is not a bundle")
    assert str(caught.value).endswith("; expected a .tar.gz as kdp doctor --bundle writes it")


@pytest.mark.parametrize("text", ["", "7", '[{"answer": "perhaps"}]'])
def test_what_is_no_bundle_is_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    snapshot = Snapshot()
    if text:
        snapshot.files[f"{PLACE}/about.json"] = archive.FileEntry(b"{}")
        snapshot.files[f"{PLACE}/answers.json"] = archive.FileEntry(text.encode())
    archive.write(snapshot, tmp_path / "b.tar.gz")
    with pytest.raises(ConfigurationError, match="expected a file as kdp doctor --bundle writes it"):
        read(tmp_path / "b.tar.gz")


def test_the_status_documents_of_all_plugins_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdp.admin.doctor.bundle._MOST_TOLD", 1000)
    paths = tuple(tmp_path / f"{number}.sock" for number in range(3))
    made = node_in(tmp_path, sockets=paths, ask=lambda _: (0, json.dumps({"told": "x" * 600})))
    taken = make(made, [], BundleSettings())
    told = [taken.files[f"{PLACE}/status-{number}.json"].data for number in range(3)]
    assert [b"xxx" in each for each in told] == [True, False, False]
    assert b"left out: the plugins of this node tell more than" in told[1]


def test_a_log_of_the_pod_in_whose_volume_the_socket_is_is_taken(tmp_path: Path) -> None:
    uid = "11111111-2222-3333-4444-555555555555"
    path = Path(f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/run/plugin.sock")
    answer = 0, json.dumps(status(resource()))
    made = node_in(tmp_path, host=Host(tmp_path / "host"), sockets=(path,), ask=lambda _: answer)
    written(tmp_path / f"host/var/log/pods/kube-system_kdp_{uid}/main/0.log", "started\n")
    taken = make(made, examine([], made), BundleSettings())
    assert taken.files[f"{PLACE}/logs/1-main-0.log"].data == b"started\n"
    assert [each.label for each in made.plugins()] == [f"plugin.sock of pod {uid}"]


def test_without_the_right_to_see_logs_there_was_no_bundle(tmp_path: Path) -> None:
    path = Path("/var/lib/kubelet/pods/11111111-2222-3333-4444-555555555555/volumes/kubernetes.io~empty-dir/run/p.sock")
    made = node_in(tmp_path, host=Host(tmp_path / "host"), sockets=(path,), ask=lambda _: (1, ""))
    make(made, [], BundleSettings())  # imports all that it needs
    closed = tmp_path / "host/var/log/pods"
    closed.mkdir(parents=True)
    closed.chmod(0)
    tmp_path.chmod(0o755)
    with as_nobody():
        taken = make(made, [], BundleSettings())
    closed.chmod(0o755)
    assert [name for name in taken.files if "/logs/" in name] == []


def test_a_node_where_nothing_can_be_read_makes_a_bundle_too(tmp_path: Path) -> None:
    node = node_in(tmp_path, state_dir=None)
    made = make(node, examine([Question(id="b", title="?", why="!", ask=lambda _: ok("yes"))], node), BundleSettings())
    archive.write(made, tmp_path / "b.tar.gz")
    assert read(tmp_path / "b.tar.gz").findings[0].answer.seen == "yes"
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "b.tar.gz").read_bytes())) as opened:
        assert "kdp-bundle/CONTENTS" in opened.getnames()


def test_its_contents_are_the_first_thing_in_it(node: Node, tmp_path: Path) -> None:
    archive.write(bundle(node), tmp_path / "b.tar.gz", first=CONTENTS)
    with tarfile.open(tmp_path / "b.tar.gz") as opened:
        assert opened.getnames()[0] == "kdp-bundle/CONTENTS"
        assert len(opened.getnames()) == len({*opened.getnames()})
    assert read(tmp_path / "b.tar.gz").about["kdp"] == "0.1.0"


PLACES = ("log", "reason", "answer", "event", "variable", "file", "socket", "json")


def test_no_secret_of_any_document_is_left(node: Node, tmp_path: Path) -> None:
    """An auditor planted them where vendors' programs leave them. All notations are in test_tokens.py."""
    secrets = {place: f"{place}Zq11Secret" for place in PLACES}
    texts = {place: f"login with password={secret} was refused" for place, secret in secrets.items()}
    parameters = {"license": "CfgLicence11", "endpoint": "https://u:CfgUrlPw22@h.example.com", "pin": "5544332211"}
    elsewhere = [*parameters.values(), "CfgUrlPw22", "KubeTok77opaque", "VarTok88opaque", "StateTok99"]
    elsewhere += [secrets["variable"], secrets["file"]]
    log = "\n".join([texts["log"], *elsewhere, json.dumps({"m": texts["json"], "n": 1})])
    devices = [device(f"w{number}", reason=text) for number, text in enumerate([texts["reason"], *elsewhere])]
    document = status(resource(*devices), events=[event(texts["event"])])
    node = node_in(
        tmp_path / "second", document, texts["socket"], host=node.host, ask_log=lambda _: (0, log),
        environ={"V": texts["variable"], "VENDOR_TOKEN": "VarTok88opaque"},
    )  # fmt: skip
    written(tmp_path / "second/state/allocations.json", json.dumps({"tok": "StateTok99"}))
    hidden = ['{"users": [{"name": "u", "user": {"token": "KubeTok77opaque"}}]}', "tok: 1\nstate_key: StateTok99\n"]
    settings = BundleSettings(parameters=parameters, hidden=[text.encode() for text in (*hidden, texts["file"])])
    question: Question[Any] = Question(
        id="a", title="?", why="!", ask=lambda _: failed(texts["answer"], texts["answer"])
    )
    archive.write(make(node, examine([question], node), settings), tmp_path / "b.tar.gz", first=CONTENTS)
    held = everything(tmp_path / "b.tar.gz")
    held += b"".join(decoded(word) for word in re.findall(rb"[A-Za-z0-9+/]{8,}", held))
    assert [each for each in (*secrets.values(), *elsewhere) if each.lower().encode() in held.lower()] == []
    assert all(f'"w{number}"'.encode() in held for number in range(len(devices)))


def decoded(word: bytes) -> bytes:
    return base64.b64decode(word[: len(word) // 4 * 4])


HEALTHY_LOG = """\
2026-03-04T09:00:00.000Z INFO    kdp.daemon: example.com/w: registered with the kubelet (2 devices, 1 healthy)
2026-03-04T09:00:01.000Z WARNING kdp.supervision: example.com/w: device mlx5_0 is now Unhealthy (key=xid-79)
2026-03-04T09:00:02.000Z ERROR   vendor: authentication failed: Forbidden; see /var/log/vendor/auth.log
2026-03-04T09:00:03.000Z INFO    vendor: 0000:03:00.0 has driver vfio-pci, firmware 28.39.1002, mode=performance
2026-03-04T09:00:04.000Z INFO    vendor: config sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
"""


def test_a_bundle_of_a_plugin_without_secrets_says_all_that_its_log_says(tmp_path: Path) -> None:
    written(tmp_path / "host/sys/bus/pci/devices/0000:03:00.0/vendor", "0x15b3\n")
    ids = ["mlx5_0", "gpu-0-replica-3", "0000:03:00.0", "card-7f3a9c"]
    reason = "XID 79: GPU has fallen off the bus"
    document = status(resource(*(device(each, reason=reason, nodes=["/dev/vfio/12"]) for each in ids)))
    node = node_in(
        tmp_path, document, host=Host(tmp_path / "host"), ask_log=lambda _: (0, HEALTHY_LOG),
        environ={"HOME": "/root", "PATH": "/usr/bin:/bin", "SSH_AUTH_SOCK": "/tmp/agent.1", "XDG_SESSION_ID": "3"},
    )  # fmt: skip
    given: dict[str, object] = {"device": "mlx5_0", "mode": "performance", "count": 2, "path": "/dev/vfio/12"}
    answers = examine([Question(id="a", title="?", why="!", ask=lambda _: failed("no driver", "modprobe x"))], node)
    made = make(node, answers, BundleSettings(parameters=given))
    assert made.files[f"{PLACE}/logs/plugin-0.log"].data.decode() == HEALTHY_LOG
    found = json.loads(made.files[f"{PLACE}/status-0.json"].data)["status"]
    assert found == json.loads(json.dumps(document))
    assert b"***" not in b"".join(file.data for file in made.files.values())


def test_the_plugins_own_last_lines_are_in_it_without_secrets(node: Node) -> None:
    """In a container there are no files of the kubelet."""
    made = bundle(node)
    assert [path for path in made.files if "/logs/" in path] == [f"{PLACE}/logs/plugin-0.log"]
    lines = made.files[f"{PLACE}/logs/plugin-0.log"].data.decode().splitlines()
    assert lines[0].endswith("example.com/w: registered with the kubelet")
    assert lines[1].endswith("login with *** failed")
    assert "password=*** was refused by card" in lines[2]
    assert any("logs/plugin-0.log: the last lines of a plugin's log" in line for line in listed(made))


def test_a_link_in_a_pods_logs_put_any_file_of_the_node_into_the_bundle(tmp_path: Path) -> None:
    """A pod with the node's logs mounted can make one."""
    uid = "11111111-2222-3333-4444-555555555555"
    secret = written(tmp_path / "shadow", "root:hash\n")
    logs = tmp_path / f"host/var/log/pods/kube-system_w-x_{uid}"
    written(logs / "plugin/0.log", "a line\n")
    (logs / "plugin/1.log").symlink_to(secret)
    (logs / "linked").symlink_to(tmp_path / "elsewhere")
    written(tmp_path / "elsewhere/0.log", "of another place\n")
    socket = Path(f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/run/plugin.sock")

    made = make(node_in(tmp_path, sockets=(socket,), ask=lambda _: (1, "nobody")), [], BundleSettings())

    kept = {path: file.data for path, file in made.files.items() if "/logs/" in path}
    assert [*kept.values()] == [b"a line\n"]
