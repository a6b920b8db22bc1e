"""``kdp uninstall``: what it says, and with which exit code it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kdp.command.app import kdp

TARGET = """
import kdp

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"
    def discover(self): raise AssertionError("the hardware is none of an uninstall's business")
"""


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's directories, short enough for sockets."""
    root = tmp_path_factory.mktemp("n")
    for name in ("kubelet/device-plugins", "cdi", "kdp", "features"):
        (root / name).mkdir(parents=True)
    (root / "widgets.py").write_text(TARGET)
    return root


def options(root: Path) -> list[str]:
    places = (("cdi-dir", "cdi"), ("state-dir", "kdp"), ("labels-dir", "features"))
    kubelet = (("kubelet-root", "kubelet"), ("device-plugin-dir", "kubelet/device-plugins"))
    return [f"--{name}={root}/{folder}" for name, folder in (*kubelet, *places)]


def invoke(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(kdp, ["uninstall", *options(root), *arguments])


def test_it_says_what_it_removes_and_a_dry_run_removes_nothing(root: Path) -> None:
    lock = root / "kdp/example.com_widget.device-plugin.lock"
    lock.touch()

    tried = invoke(root, "--dry-run")

    assert (tried.exit_code, lock.exists()) == (3, True)
    state = f"{root}/kdp (state directory)"
    assert tried.stdout == f"{lock} (lock): would be removed\n{state}: would be removed, if it is empty then\n"
    done = invoke(root)
    assert (done.exit_code, lock.exists()) == (0, False)
    assert done.stdout == f"{lock} (lock): removed\n{root}/kdp (state directory): removed\n"
    assert (invoke(root, "--dry-run").exit_code, invoke(root).exit_code) == (0, 0)


def test_a_directory_that_was_mistyped_is_named(root: Path) -> None:
    done = invoke(root, f"--state-dir={root}/nosuch", "--dry-run")
    assert done.exit_code == 0
    assert done.stdout.startswith("nothing of kdp is left in ")
    assert done.stdout.endswith(f"{root}/nosuch (there is no such directory)\n")


def test_with_a_target_its_files_go_and_the_others_are_named(root: Path) -> None:
    # Kubelets in other places have other accounts.
    (root / f"kdp/example.com_widget@{zlib.crc32(os.fsencode(root / 'kubelet')):08x}.dra.lock").touch()
    other = root / "kdp/example.org_other.dra.lock"
    other.touch()

    done = invoke(root, f"{root}/widgets.py:Widgets")

    assert done.exit_code == 0
    assert f"{other} (lock): left, may be another plugin's\n" in done.stdout
    assert [path.name for path in (root / "kdp").iterdir()] == [other.name]


def test_while_a_plugin_lives_nothing_is_removed_unless_told(root: Path) -> None:
    (root / "kdp/example.com_widget.dra.lock").touch()
    path = root / "kubelet/device-plugins/kdp-example.com_widget-0a1b2c3d-1.sock"
    with closing(socket.socket(socket.AF_UNIX)) as living:
        living.bind(os.fspath(path))
        living.listen()

        refused = invoke(root)

        assert refused.exit_code == 1
        assert f"{path} (socket of a plugin): a process answers there: end the plugin\n" in refused.output
        assert (
            "nothing was removed; end the plugins that the lines above are about, or name the TARGET" in refused.output
        )
        assert "--force" not in refused.output
        assert (root / "kdp/example.com_widget.dra.lock").exists()
        assert invoke(root, "--force").exit_code == 0
    assert not path.exists()


def test_it_stays_until_asked_to_stop(root: Path) -> None:
    (root / "kdp/example.com_widget.dra.lock").touch()
    command = [sys.executable, "-m", "kdp", "uninstall", *options(root), "--stay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as staying:
        assert staying.stdout is not None
        for line in staying.stdout:
            if line == "staying until asked to stop\n":
                break
        assert staying.poll() is None
        staying.send_signal(signal.SIGTERM)
        assert staying.wait(60) == 0
    assert not (root / "kdp").exists()
