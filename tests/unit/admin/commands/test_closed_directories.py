"""Paths below a directory that the user may not search: no command ends with a traceback, or tells what it cannot know.

Python 3.11's `Path.is_dir` and its siblings raise PermissionError there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result
from tests.nobody import as_nobody

from kdp.command.app import kdp

TARGETS = """
from pathlib import Path

import kdp


class Plain(kdp.DeviceBackend):
    resource = "example.com/plain"

    def discover(self):
        return [kdp.Device(id="opened")]


class Configured(Plain):
    def __init__(self, *, file: Path) -> None:
        self.file = file
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, with one in it, "closed", that nobody may enter but root."""
    with TemporaryDirectory(dir="/tmp") as directory:
        here = Path(directory)
        here.chmod(0o755)
        (here / "t.py").write_text(TARGETS)
        for name in ("state", "kubelet/device-plugins", "closed/below", "open/below"):
            (here / name).mkdir(parents=True)
        (here / "open/below/t.py").write_text(TARGETS)
        (here / "closed").chmod(0)
        yield here
        (here / "closed").chmod(0o755)


def invoke(place: Path, line: str) -> Result:
    """Call a command as an ordinary user.

    It is called before as this user, with an open directory: another user might not be able to import what it needs.
    """
    env = {
        "KDP_STATE_DIR": f"{place}/state",
        "KDP_KUBELET_ROOT": f"{place}/kubelet",
        "KDP_DEVICE_PLUGIN_DIR": f"{place}/kubelet/device-plugins",
        "HOME": f"{place}",
    }
    given = line.replace("{}", str(place))
    CliRunner(env=env).invoke(kdp, given.replace("/closed", "/open").split())
    with as_nobody():
        return CliRunner(env=env).invoke(kdp, given.split())


def here(text: str, place: Path) -> str:
    """Return an expected text with the directory and the user of a test."""
    return text.replace("{}", str(place)).replace("65534", str(os.geteuid() or 65534))


MAY_RUN = (
    "kdp devices: a plugin may run that this user may not ask: {}/closed/below: Permission denied; run this as root, "
    "or as the plugin's user; kdp devices TARGET --discover opens the hardware itself"
)
NOT_KNOWN = "so what is left there is not known; run this as root"

CASES = {
    "devices --state-dir {}/closed/below": (1, MAY_RUN),
    "devices {}/t.py:Plain --state-dir {}/closed/below": (1, MAY_RUN),
    "devices {}/closed/below/t.py:Plain --discover": (
        2,
        (
            "kdp devices: target '{}/closed/below/t.py:Plain': the file {}/closed/below/t.py cannot be read "
            "(Permission denied); expected module:Class, path/file.py:Class or the name of an entry point in group "
            "kdp.backends"
        ),
    ),
    "uninstall --dry-run --state-dir {}/closed/below": (
        1,
        f"kdp uninstall: user 65534 may not look into {{}}/closed/below, {NOT_KNOWN}",
    ),
    "uninstall --dry-run --device-plugin-dir {}/closed/below": (
        1,
        f"kdp uninstall: user 65534 may not look into {{}}/closed/below, {NOT_KNOWN}",
    ),
    "uninstall --dry-run --kubelet-root {}/closed": (
        1,
        f"kdp uninstall: user 65534 may not look into {{}}/closed/plugins_registry, {{}}/closed/plugins, {NOT_KNOWN}",
    ),
    "doctor --bundle {}/closed/below/b.tar.gz": (
        2,
        (
            "kdp doctor: --bundle {}/closed/below/b.tar.gz: its directory cannot be used (Permission denied); name "
            "another file"
        ),
    ),
    "doctor --bundle {}/t.py/b.tar.gz": (
        2,
        "kdp doctor: --bundle {}/t.py/b.tar.gz: its directory cannot be used (Not a directory); name another file",
    ),
    "snapshot -o {}/closed/below/s.tar.gz": (
        2,
        (
            "kdp snapshot: --output {}/closed/below/s.tar.gz: its directory cannot be used (Permission denied); name "
            "another file"
        ),
    ),
    "manifests {}/t.py:Plain --image i --format helm -o {}/closed/below": (
        2,
        "kdp manifests: --output {}/closed/below: cannot be read (Permission denied); name another directory",
    ),
    "manifests {}/t.py:Plain --image i --config {}/closed/below --config-label example.com/c": (
        2,
        (
            "kdp manifests: --config {}/closed/below: with --config-label it must be a directory with a file for each "
            "configuration (Permission denied)"
        ),
    ),
}


@pytest.mark.parametrize("line", CASES)
def test_a_closed_directory_above_a_path_ended_a_command_with_a_traceback(place: Path, line: str) -> None:
    code, sentence = CASES[line]
    result = invoke(place, line)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == here(sentence, place) + "\n"


@pytest.mark.parametrize("command", ["status", "probe ready", "probe live"])
def test_a_command_that_asks_the_plugin_ended_with_a_traceback(place: Path, command: str) -> None:
    """The answer to a question goes to stdout."""
    result = invoke(place, f"{command} --state-dir {{}}/closed/below")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout == (
        f"the state directory {place}/closed/below cannot be read (Permission denied); run this as root, or as the "
        "user whose process the plugin is\n"
    )


def test_devices_were_not_shown_if_the_kubelets_directory_is_closed(place: Path) -> None:
    """A kubelet makes its directory so that only root and its group may enter it."""
    result = invoke(place, "devices {}/t.py:Plain --kubelet-root {}/closed/below")
    assert (result.exit_code, "opened" in result.stdout) == (0, True)
    assert result.stderr.splitlines()[-1] == (
        f"kdp devices: warning: {place}/closed/below/pod-resources/kubelet.sock: Permission denied, so which pod holds "
        "a device is not shown; run this as root to see it"
    )


def test_devices_were_not_shown_if_the_hosts_root_is_closed(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = invoke(place, "devices {}/t.py:Plain --host-root {}/closed/below")
    assert (result.exit_code, "opened" in result.stdout) == (0, True)
    assert f"--host-root {place}/closed/below: Permission denied; correct the path, or run this as root" in caplog.text


@pytest.mark.parametrize("format", ["yaml", "systemd"])
def test_manifests_were_not_written_if_a_parameter_names_a_closed_path(place: Path, format: str) -> None:
    line = "manifests {}/t.py:Configured --image i --set file={}/closed/below/f --format "
    result = invoke(place, line + format)
    assert (result.exit_code, f"file={place}/closed/below/f" in result.stdout) == (0, True), result.output
    assert (
        here(
            "kdp manifests: warning: file={}/closed/below/f: user 65534 may not look at it; the pod gets it as a "
            "directory of its node",
            place,
        )
        in result.stderr
    )


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            "--state-dir",
            [
                "not known  Does a plugin run, and answer? the state directory {} cannot be read (Permission denied)",
                "failed     Can a plugin keep its state? {} cannot be examined: Permission denied",
            ],
        ),
        (
            "--device-plugin-dir",
            [
                "failed     Is the plugin directory there? {} cannot be examined: Permission denied",
                "not known  Can a plugin make its socket there? {} cannot be examined: Permission denied",
                (
                    "failed     Does a kubelet listen on kubelet.sock? user 65534 may not see whether "
                    "{}/kubelet.sock exists"
                ),
            ],
        ),
        (
            "--kubelet-root",
            [
                (
                    "warning    Does the pod-resources API answer? user 65534 may not see whether "
                    "{}/pod-resources/kubelet.sock exists"
                ),
            ],
        ),
        ("--cdi-dir", ["warning    Can CDI files be written? {} cannot be examined: Permission denied"]),
        ("--host-root", []),
    ],
)
def test_doctors_questions_failed_or_told_what_they_cannot_know(place: Path, option: str, expected: list[str]) -> None:
    result = invoke(place, f"doctor {option} {{}}/closed/below")
    assert "this question failed" not in result.stdout
    assert f"there is no {place}/closed" not in result.stdout
    told = result.stdout.splitlines()
    assert [line for line in expected if here(line.replace("{}", "{}/closed/below"), place) not in told] == []
