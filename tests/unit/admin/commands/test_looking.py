"""Which pod holds a device, as ``kdp devices --discover`` finds out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kdp.admin.commands import looking
from kdp.command import asking

RESOURCE = "example.com/widget"


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    paths = SimpleNamespace(pod_resources_socket=tmp_path / "kubelet.sock")
    return cast("Any", SimpleNamespace(state_dir=tmp_path, kubelet_root=tmp_path, paths=paths))


def held_by(monkeypatch: pytest.MonkeyPatch, settings: Any, *answers: tuple[int, str]) -> object:
    """Return what is found beside running plugins with these answers."""
    sockets = [Path(str(number)) for number in range(len(answers))]
    monkeypatch.setattr(looking, "living_plugins", lambda **_: (sockets, []))
    monkeypatch.setattr(asking, "ask", lambda path, _: answers[int(path)])
    monkeypatch.setattr(looking, "_asked_of_kubelet", lambda _: "the kubelet was asked")
    return looking._holders(settings, [RESOURCE])


def served(name: str, **devices: dict[str, str | None]) -> tuple[int, str]:
    listed = [{"id": device_id, "health": "Healthy", **more} for device_id, more in devices.items()]
    return 0, json.dumps({"ready": True, "resources": [{"name": name, "listed": listed}]})


def test_a_running_plugin_is_asked_and_not_the_kubelet(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """A List may make the kubelet give a device to two pods."""
    one = served(RESOURCE, w0={"held_by": "ns/a (main)"}, w1={"held_by": None})
    assert held_by(monkeypatch, settings, served("a/b", c={}), one) == {(RESOURCE, "w0"): "ns/a (main)"}
    assert held_by(monkeypatch, settings, served(RESOURCE, w0={})) is None  # it has not asked yet


def test_the_kubelet_is_asked_if_no_plugin_of_the_resource_runs(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    others = served("a/b", c={"held_by": "ns/a (main)"}), (1, "no answer"), (0, "[]"), (0, "{")
    assert held_by(monkeypatch, settings, *others) == "the kubelet was asked"
