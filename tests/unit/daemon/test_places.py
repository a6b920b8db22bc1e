"""Directories that cannot be used are said at the start."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.nobody import as_nobody
from typing_extensions import override

import kdp
from kdp.daemon import places
from kdp.daemon.places import (
    beside,
    warn_of_closed_kubelet,
    warn_of_missing_places,
    warn_of_unusable_state,
    why_nothing_is_kept,
    written_places,
)
from kdp.daemon.plan import ServingPlan
from kdp.daemon.settings import DEFAULT_STATE_DIR, Settings
from kdp.kubelet.paths import KubeletPaths


@pytest.mark.parametrize(
    ("given", "root", "state"),
    [
        ({}, "/t", "/t/kdp"),
        ({"state_dir": None}, "/t", None),
        ({"kubelet_root": Path("/k")}, "/k", "/t/kdp"),
        ({"pod_resources_dir": Path("/var/lib/kubelet/pod-resources")}, "/var/lib/kubelet", "/t/kdp"),
        ({"device_plugin_dir": Path("/var/lib/kubelet/device-plugins")}, "/var/lib/kubelet", "/var/lib/kdp"),
    ],
)
def test_what_a_test_does_not_give_is_beside_its_plugin_directory(
    given: dict[str, Any], root: str, state: str | None
) -> None:
    given = {"device_plugin_dir": Path("/t/device-plugins"), **given}
    settings = beside(Settings(**given), given)
    assert settings.kubelet_root == Path(root)
    assert settings.state_dir == (None if state is None else Path(state))


@pytest.mark.parametrize(
    ("directory", "user", "level"),
    [(Path("/nowhere"), 0, logging.WARNING), (DEFAULT_STATE_DIR, 1000, logging.INFO)],
)
def test_a_directory_that_was_given_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, directory: Path, user: int, level: int
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(places, "why_no_file", lambda path: "Permission denied")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    warn_of_unusable_state(Settings(state_dir=directory))
    [record] = caplog.records
    assert record.levelno == level
    assert record.getMessage().startswith(f"--state-dir {directory}: nothing can be kept there (Permission denied), so")


@pytest.mark.parametrize(("mode", "missing"), [(0o555, "write to"), (None, None)])
def test_what_an_ordinary_user_may_not_do_with_the_kubelets_directory_is_said_first(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    mode: int | None,
    missing: str | None,
) -> None:
    directory = tmp_path / "device-plugins"
    if mode is not None:
        directory.mkdir(mode)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    warn_of_closed_kubelet(Settings(device_plugin_dir=directory))
    expected = f"{directory}: user 1000 may not {missing} the kubelet's directory, so no kubelet will list the "
    cure = "devices; run the plugin as root, or try it with kdp simulate, which needs no root"
    assert caplog.messages == ([] if missing is None else [expected + cure])


@pytest.mark.parametrize(("socket", "is_said"), [(..., True), (Path("/run/kdp/plugin.sock"), False), (None, False)])
def test_the_log_said_that_no_command_can_ask_although_the_socket_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, socket: Any, is_said: bool
) -> None:
    monkeypatch.setattr(places, "why_no_file", lambda path: "No space left on device")
    settings = Settings(state_dir=Path("/s"), socket=socket)
    warn_of_unusable_state(settings)
    assert ("cannot ask this process" in caplog.text) is is_said


def test_a_closed_directory_was_told_as_one_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "closed").mkdir(0)
    below = tmp_path / "closed/below"
    settings = Settings(host_root=below, state_dir=below)
    with as_nobody():
        warn_of_missing_places(settings)
        kept = why_nothing_is_kept(settings)
    assert caplog.messages == [f"--host-root {below}: Permission denied; correct the path, or run this as root"]
    assert kept == f"state directory {below}: Permission denied; a restart forgets which pod holds a device"


def test_a_file_was_told_as_a_directory_of_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    warn_of_closed_kubelet(Settings(device_plugin_dir=file))
    warn_of_missing_places(Settings(device_plugin_dir=file))
    remedy = "correct the path, or mount the node's directory there"
    assert caplog.messages == [f"--device-plugin-dir {file}: Not a directory; {remedy}"]


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> list[kdp.Device]:
        return []


def test_the_claims_of_a_driver_were_looked_for_in_a_directory_that_its_pod_may_not_write_to() -> None:
    """An alert of its manifests fired on each node: only the driver's own directory is mounted."""
    paths = KubeletPaths.under(Path("/k"))
    of_drivers = paths.plugins_dir
    settings = Settings(mode="dra", kubelet_root=Path("/k"))
    plan = ServingPlan((Widgets(),), settings)
    assert written_places(settings, plan.driver)["claims"] == of_drivers / "widget.example.com"
    named = attrs.evolve(plan, settings=attrs.evolve(settings, driver_name="w.example.com"))
    assert written_places(named.settings, named.driver)["claims"] == of_drivers / "w.example.com"
