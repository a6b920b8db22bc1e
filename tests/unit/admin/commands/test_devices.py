"""``kdp devices`` beside plugins that run. A real one answers it in tests/integration/daemon/test_status.py."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result
from tests.nobody import as_nobody
from tests.one_answer import answering

from kdp.command.app import kdp

TARGET = """
import kdp


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def discover(self):
        return [kdp.Device(id="opened")]
"""


def answer(resource: str, device: str) -> bytes:
    """Return what a plugin of the class `Widgets` tells of its devices."""
    listed = [{"id": device, "health": "Healthy", "state": "healthy", "reason": None, "held_by": None}]
    found = {
        "pid": 7,
        "ready": True,
        "backends": [{"class": "Widgets", "reason": None}],
        "resources": [{"name": resource, "state": "connected", "devices": 1, "healthy": 1, "listed": listed}],
    }
    return b"HTTP/1.1 200 X\r\nKdp-Protocol: 1\r\n\r\n" + json.dumps(found).encode()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, with a class."""
    with TemporaryDirectory(dir="/tmp") as directory:
        here = Path(directory)
        here.chmod(0o755)
        (here / "widgets.py").write_text(TARGET)
        yield here


def devices(place: Path, *arguments: str) -> Result:
    where = ["--state-dir", f"{place}/state", "--kubelet-root", f"{place}/kubelet"]
    return CliRunner().invoke(kdp, ["devices", f"{place}/widgets.py:Widgets", *where, *arguments])


def test_two_plugins_of_one_class_are_both_shown(place: Path) -> None:
    """The resource of a class may be a parameter, so a node may have several."""
    with contextlib.ExitStack() as plugins:
        for name in ("a", "b"):
            # The first connection only looks whether somebody listens.
            path = place / f"state/{name}.sock"
            plugins.enter_context(answering(path, answer(f"example.com/{name}", f"{name}0"), asked=2))
        text = devices(place)
    assert text.exit_code == 0
    assert [line for line in text.stdout.splitlines() if line.startswith(("example.com/", "a0", "b0"))] == [
        "example.com/a: 1 device, 1 healthy",
        "a0  Healthy",
        "example.com/b: 1 device, 1 healthy",
        "b0  Healthy",
    ]


@pytest.mark.parametrize("is_closed", [True, False])
def test_the_hardware_was_opened_beside_a_plugin_that_the_user_may_not_ask(place: Path, is_closed: bool) -> None:
    """It was said Healthy of a device whose fault the plugin knew, and nothing told that a plugin runs."""
    state = place / "state"
    (place / "kubelet").mkdir()
    assert "opened" in devices(place).stdout
    path = state / "a.sock"
    with answering(path, b"", asked=0):
        path.chmod(0)
        if is_closed:
            state.chmod(0)
        with as_nobody():
            refused = devices(place)
            discovered = devices(place, "--discover")
        state.chmod(0o755)
    named = state if is_closed else path
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"kdp devices: a plugin may run that this user may not ask: {named}: Permission denied; run this as root, or "
        "as the plugin's user; kdp devices TARGET --discover opens the hardware itself\n"
    )
    assert (discovered.exit_code, "opened" in discovered.stdout) == (0, True)


def test_what_a_plugin_of_root_left_on_a_laptop_kept_others_from_their_hardware(place: Path) -> None:
    """``sudo kdp run`` once, and README's ``kdp devices`` was refused for ever."""
    state = place / "state"
    state.mkdir()
    assert "opened" in devices(place).stdout  # nobody may not be able to import what it needs
    state.chmod(0)
    with as_nobody():
        found = devices(place)
    state.chmod(0o755)
    assert (found.exit_code, "opened" in found.stdout) == (0, True)


def test_the_hardware_was_opened_if_nobody_listens_at_the_socket_that_is_named(place: Path) -> None:
    result = devices(place, "--socket", f"{place}/none.sock")
    assert result.exit_code == 1
    assert result.stderr == (
        f"kdp devices: {place}/none.sock: No such file or directory; kdp devices TARGET --discover opens the hardware "
        "itself\n"
    )
