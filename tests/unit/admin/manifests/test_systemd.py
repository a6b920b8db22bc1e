"""The systemd unit, as systemd itself reads it where `systemd-analyze` is there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from kdp.admin.manifests.deployment import Deployment, Folder
from kdp.admin.manifests.systemd import unit
from kdp.daemon.parsers import Address
from kdp.errors import InvalidValueError
from kdp.model.backend import Needs

FOLDERS = (
    Folder(name="d", path="/var/lib/kubelet/device-plugins", seen_at="/d", writable=True, why="sockets"),
    Folder(name="s", path="/var/lib/kdp", seen_at="/s", writable=True, made=True, why="state"),
    Folder(name="c", path="/var/run/cdi", seen_at="/c", writable=True, made=True, why="cdi"),
    Folder(name="x", path="/opt/my state", seen_at="/x", writable=True, made=True, why="state"),
    Folder(name="n", path="/dev", seen_at="/dev", why="nodes"),
)


def text(**changes: Any) -> str:
    given: dict[str, Any] = {"name": "kdp-widgets", "target": "widgets", "folders": FOLDERS}
    return unit(Deployment(**{**given, **changes}), executable="/bin/true")


def settings(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_it_may_write_where_it_must_and_open_what_it_names() -> None:
    made = settings(text(needs=Needs(opened_nodes=("/dev/hwrng",), capabilities=("NET_ADMIN",))))

    its = ["/var/lib/kdp", "/var/run/cdi", '"/opt/my state"']
    assert made["ReadWritePaths"] == ["/var/lib/kubelet/device-plugins", *its]
    assert made["ExecStartPre"] == [f"+/bin/mkdir -p {path}" for path in its]
    assert (made["DevicePolicy"], made["DeviceAllow"]) == (["closed"], ["/dev/hwrng rw"])
    assert made["CapabilityBoundingSet"] == ["CAP_NET_ADMIN"]
    plain = settings(text())
    assert plain["CapabilityBoundingSet"] == [""]
    assert "DeviceAllow" not in plain


def test_its_tasks_and_descriptors_had_no_limit() -> None:
    made = settings(text())

    assert (made["TasksMax"], made["LimitNOFILE"]) == (["128"], ["1024"])


def test_a_directory_of_others_keeps_its_owner_and_mode() -> None:
    """As StateDirectory, one that the backend only reads became the process's own, with all that is in it."""
    read = Folder(name="w", path="/var/lib/widgetd", seen_at="/w", made=True, why="the backend reads it")
    written = Folder(
        name="p", path="/run/widgetd", seen_at="/p", made=True, writable=True, why="the backend writes to it"
    )

    made = settings(text(folders=(read, written)))

    assert not made.keys() & {"StateDirectory", "RuntimeDirectory"}
    assert (made["ReadWritePaths"], made["ExecStartPre"]) == (["/run/widgetd"], ["+/bin/mkdir -p /run/widgetd"])


def test_it_may_open_what_a_containers_runtime_would_bring() -> None:
    made = settings(text(needs=Needs(opened_nodes=("/dev/a b%",), injected_nodes=("char-nvidia*", "/dev/card"))))

    assert made["DeviceAllow"] == ['"/dev/a b%%" rw', "char-nvidia* rw", "/dev/card rw"]


def test_a_node_that_systemd_would_ignore_is_refused() -> None:
    with pytest.raises(
        InvalidValueError, match="node '/run/driver/dev/card': a systemd unit may open nodes below /dev"
    ):
        text(needs=Needs(opened_nodes=("/run/driver/dev/card",)))


def test_the_nodes_tmp_is_not_hidden_from_who_needs_something_there() -> None:
    path = "/tmp/nvidia-mps"
    folder = Folder(name="t", path=path, seen_at=path, why="the backend reads it")

    assert "PrivateTmp" not in settings(text(folders=(*FOLDERS, folder)))
    assert settings(text(folders=(*FOLDERS, attrs.evolve(folder, path="/tmpfs"))))["PrivateTmp"] == ["yes"]


def test_words_reach_the_command_as_they_are() -> None:
    made = settings(text(options=("--set=a=b c", '--set=q="x"', "--set=p=100%", "--set=d=$HOME", "", ";")))

    assert made["ExecStart"][0].endswith(
        'run widgets "--set=a=b c" "--set=q=\\"x\\"" "--set=p=100%%" "--set=d=$$HOME" "" ";"'
    )


def test_an_argument_with_a_newline_stays_one_argument() -> None:
    made = settings(
        text(target="a\tb:C", options=("--set=a=b\nUser=nobody", "--set=n=\\n", "--set=r=\udcff", "--set=e=é"))
    )

    assert made["ExecStart"][0].endswith(
        ' run "a\\x09b:C" "--set=a=b\\x0aUser=nobody" "--set=n=\\\\n" "--set=r=\\xff" --set=e=é'
    )
    assert made["User"] == ["root"]


def test_a_path_with_a_newline_is_refused() -> None:
    path = "/opt/a\nUser=nobody"
    folder = Folder(name="n", path=path, seen_at=path, writable=True, made=True, why="state")

    with pytest.raises(
        InvalidValueError, match=r"path '.*\\nUser=nobody': a systemd unit cannot name it; expected one without"
    ):
        text(folders=(folder,))


@pytest.fixture
def analyze() -> str:
    command = shutil.which("systemd-analyze")
    if command is None:
        pytest.skip("systemd-analyze is missing: install systemd")
    return command


def test_systemd_finds_nothing_wrong(analyze: str, tmp_path: Path) -> None:
    file = tmp_path / "kdp-widgets.service"
    needs = Needs(opened_nodes=("/dev/hwrng",), injected_nodes=("char-nvidia*",))
    file.write_text(text(needs=needs, options=("--set=a=b c", "--set=a=b\nc", "--set=p=100%")))

    done = subprocess.run([analyze, "verify", "--man=no", str(file)], capture_output=True, text=True, check=False)

    ours = [line for line in done.stderr.splitlines() if "kdp-widgets" in line]
    assert (done.returncode, ours) == (0, [])


def test_systemd_calls_it_hardened(analyze: str, tmp_path: Path) -> None:
    """Its exposure is from 0 (best) to 10; services without any setting have 9.6."""
    file = tmp_path / "kdp-widgets.service"
    file.write_text(text())
    command = [analyze, "security", "--offline=yes", "--json=short", "--threshold=30", str(file)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze is older than 250 and judges running services only")
    assert done.returncode == 0, [each for each in json.loads(done.stdout) if float(each.get("exposure") or 0) > 0.1]


def test_a_port_for_others_was_closed_to_them() -> None:
    """The log said that it listens at all addresses, and systemd dropped what came from outside."""
    assert "IPAddressDeny" not in settings(text(http=Address("", 9400)))
    for http in (None, Address("127.0.0.1", 9400), Address("localhost", 9400)):
        assert settings(text(http=http))["IPAddressDeny"] == ["any"]
