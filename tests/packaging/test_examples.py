"""The examples as users install them: wheels in an environment of their own, away from this repository."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import anyio
import attrs
import pytest

from kdp.testing import SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from .conftest import ROOT, Built, once

pytestmark = pytest.mark.slow


@attrs.frozen
class Example:
    """A backend of an example.

    Attributes:
        folder: Where the example is.
        name: The backend's entry point.
    """

    folder: Path
    name: str

    def parameters(self, place: Path) -> list[str]:
        """Return the options with which its manifest was made; files that they name are copied to a place."""
        manifest = self.folder / "manifests/daemonset.yaml"
        if not manifest.exists():
            return []
        words = shlex.split(manifest.read_text().splitlines()[0].removeprefix("# "))
        given = [after for word, after in itertools.pairwise(words) if word == "--set"]
        options: list[str] = []
        for each in given:
            name, _, value = each.partition("=")
            if (self.folder / value).is_file():
                value = str(shutil.copy(self.folder / value, place / Path(value).name))
            options.append(f"--set={name}={value}")
        return options


def _examples() -> list[Example]:
    found: list[Example] = []
    for project in sorted(ROOT.glob("examples/*/pyproject.toml")):
        points = tomllib.loads(project.read_text())["project"]["entry-points"]["kdp.backends"]
        found += [Example(project.parent, name) for name in points]
    return found


EXAMPLES = _examples()


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One environment with the wheels of kdp and of every example."""

    def install(home: Path) -> None:
        wheels = home / "wheels"
        for folder in {example.folder for example in EXAMPLES}:
            build = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={wheels}"]
            subprocess.run(build, cwd=folder, capture_output=True, check=True, timeout=300)
        venv.create(home, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet", "--no-compile", f"{built.wheel}[cli]", *map(str, wheels.iterdir())]
        subprocess.run(install, check=True, timeout=300)

    return once(tmp_path_factory, "installed", install)


@pytest.fixture
def environment() -> dict[str, str]:
    """The process's environment without what would lead back to this repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KDP_", "VIRTUAL"))}


def _told(log: Path) -> bool:
    """Whether a plugin without a resource has said why: something is missing, or nothing was found."""
    return any(
        words in log.read_text() for words in ("WARNING", "ERROR", "devices discovered: 0", "has no hardware here")
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
async def test_an_installed_example_discovers_and_serves(
    installed: Path, environment: dict[str, str], tmp_path: Path, example: Example
) -> None:
    """Where its hardware is not, it says so in one sentence, and runs on."""
    kdp, options = str(installed / "bin/kdp"), example.parameters(tmp_path)
    devices = [kdp, "devices", example.name, *options, "--format=json"]

    shown = await anyio.run_process(devices, cwd=tmp_path, env=environment, check=False)

    said = shown.stderr.decode()
    assert shown.returncode in (0, 1), said
    assert "Traceback" not in said
    resources = set(json.loads(shown.stdout)["resources"]) if shown.returncode == 0 else set[str]()
    assert shown.returncode == 0 or said.startswith("kdp devices: ")
    async with SimulatedKubelet() as kubelet:
        paths = (
            f"--device-plugin-dir={kubelet.paths.device_plugin_dir}",
            f"--pod-resources-dir={kubelet.paths.pod_resources_dir}",
            "--state-dir=none",
        )
        log = (tmp_path / "log").open("wb")
        serves = [kdp, "run", example.name, *options, *paths]
        async with await anyio.open_process(serves, cwd=tmp_path, env=environment, stderr=log) as process:
            try:
                with anyio.fail_after(PATIENCE):
                    for resource in resources:
                        await kubelet.until(streaming=resource)
                    while not resources and not _told(tmp_path / "log"):  # noqa: ASYNC110 - of another process
                        await anyio.sleep(0.05)
                    process.send_signal(signal.SIGTERM)
                    code = await process.wait()
            except BaseException:
                process.kill()  # else leaving this block waits for it for ever
                raise
        log.close()
    assert code == 0, (tmp_path / "log").read_text()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_list_of_installed_backends_has_each_with_its_distribution(
    installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [str(installed / "bin/kdp"), "backends", "--format=json"]

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)

    listed = json.loads(done.stdout)["backends"]
    assert {backend["name"] for backend in listed} == {example.name for example in EXAMPLES}
    assert {(backend["error"], backend["version"]) for backend in listed} == {(None, "0.1.0")}
    assert all(backend["distribution"].startswith("kdp-") for backend in listed)


def test_nothing_of_it_comes_from_this_repository(installed: Path, environment: dict[str, str], tmp_path: Path) -> None:
    look = (
        "import kdp, sys; from importlib.metadata import entry_points as e; print(kdp.__file__, *sys.path, sep='\\n'); "
    )
    look += "print(*(p.load().__module__ for p in e(group='kdp.backends')))"

    done = subprocess.run(
        [installed / "bin/python", "-c", look],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert str(ROOT) not in done.stdout
    assert len(done.stdout.splitlines()[-1].split()) == len(EXAMPLES)


def test_simulate_without_the_test_kit_names_the_extra(
    installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [str(installed / "bin/kdp"), "simulate", "minimal"]

    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2, done.stdout + done.stderr
    assert (
        "the command 'simulate' comes with the distribution kdp-testkit; pip install 'kdp-sdk[testing]'" in done.stderr
    )
    assert "Traceback" not in done.stderr
